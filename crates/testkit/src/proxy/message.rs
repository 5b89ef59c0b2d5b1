//! What a program says to PostgreSQL, cut into messages (PostgreSQL's documentation, "Message Formats").

use std::collections::HashMap;

/// Codes of requests that come before the startup message and have an answer of one byte.
const ENCRYPTION_REQUESTS: [u32; 2] = [80_877_103, 80_877_104];

/// Cuts a stream into messages.
#[derive(Debug, Default)]
pub(super) struct Messages {
    buffer: Vec<u8>,
    /// The startup message, which alone has no type, has passed.
    has_started: bool,
}

impl Messages {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, if it has arrived.
    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        let type_bytes = usize::from(self.has_started);
        let length = u32::from_be_bytes(self.buffer.get(type_bytes..type_bytes + 4)?.try_into().ok()?);
        let end = type_bytes + usize::try_from(length).ok()?;
        let message: Vec<u8> = self.buffer.get(..end)?.to_vec();
        self.buffer.drain(..end);
        if !self.has_started {
            let code = message.get(4..8).and_then(|code| code.try_into().ok()).map(u32::from_be_bytes);
            self.has_started = !code.is_some_and(|code| ENCRYPTION_REQUESTS.contains(&code));
        }
        Some(message)
    }
}

/// The statements that one connection has prepared, by name.
#[derive(Debug, Default)]
pub(super) struct Statements {
    prepared: HashMap<Vec<u8>, String>,
}

impl Statements {
    /// The SQL that a message has executed, be it a simple query or a statement that was prepared; empty where none is.
    pub(super) fn executed(&mut self, message: &[u8]) -> String {
        let mut strings = message.get(5..).unwrap_or_default().split(|byte| *byte == 0);
        let mut string = || strings.next().unwrap_or_default();
        match message.first() {
            Some(b'Q') => text(string()),
            Some(b'P') => {
                let (name, sql) = (string().to_vec(), string());
                self.prepared.insert(name, text(sql));
                String::new()
            }
            Some(b'B') => {
                let (_portal, name) = (string(), string());
                self.prepared.get(name).cloned().unwrap_or_default()
            }
            Some(_) | None => String::new(),
        }
    }
}

fn text(sql: &[u8]) -> String {
    String::from_utf8_lossy(sql).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        [&[kind], length.as_slice(), body].concat()
    }

    #[test]
    fn messages_are_found_wherever_the_stream_is_cut() {
        let encryption = [8_u32.to_be_bytes(), ENCRYPTION_REQUESTS[0].to_be_bytes()].concat();
        let startup = [8_u32.to_be_bytes(), 196_608_u32.to_be_bytes()].concat();
        let expected =
            [encryption, startup, typed(b'Q', b"COMMIT\0"), typed(b'S', b""), typed(b'Q', b"BEGIN\0")];
        for size in [1, 3, 7, 1_000] {
            let mut messages = Messages::default();
            let mut found = Vec::new();
            for chunk in expected.concat().chunks(size) {
                messages.push(chunk);
                found.extend(std::iter::from_fn(|| messages.next()));
            }
            assert_eq!(found, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn the_sql_is_read_from_queries_and_from_what_was_prepared_once_it_is_executed() {
        let mut statements = Statements::default();
        for (message, expected) in [
            (typed(b'Q', b"COMMIT\0"), "COMMIT"),
            (typed(b'B', b"\0sqlx_s_1\0\0"), ""),
            (typed(b'P', b"sqlx_s_1\0 INSERT INTO a\0\0\0"), ""),
            (typed(b'P', b"sqlx_s_2\0SELECT 1\0\0\0"), ""),
            (typed(b'B', b"\0sqlx_s_1\0\0"), "INSERT INTO a"),
            (typed(b'B', b"portal\0sqlx_s_2\0COMMIT\0"), "SELECT 1"),
            (typed(b'E', b"COMMIT\0"), ""),
            (typed(b'Q', b""), ""),
            (Vec::new(), ""),
        ] {
            assert_eq!(statements.executed(&message), expected, "{message:?}");
        }
    }
}
