//! What a program says to PostgreSQL, cut into messages (PostgreSQL's documentation, "Message Formats").

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

/// The SQL in a message, be it a simple query or a statement that is prepared; empty where there is none.
pub(super) fn statement(message: &[u8]) -> &str {
    let text = |bytes: &[u8]| bytes.iter().position(|byte| *byte == 0);
    let body = message.get(5..).unwrap_or_default();
    let sql = match message.first() {
        Some(b'Q') => body,
        // The statement's name comes first.
        Some(b'P') => text(body).and_then(|end| body.get(end + 1..)).unwrap_or_default(),
        Some(_) | None => &[],
    };
    let sql = text(sql).and_then(|end| sql.get(..end)).unwrap_or_default();
    std::str::from_utf8(sql).unwrap_or_default().trim_start()
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
    fn the_sql_is_read_from_queries_and_from_what_is_prepared() {
        for (message, expected) in [
            (typed(b'Q', b"COMMIT\0"), "COMMIT"),
            (typed(b'P', b"sqlx_s_1\0 INSERT INTO a\0\0\0"), "INSERT INTO a"),
            (typed(b'B', b"COMMIT\0"), ""),
            (typed(b'Q', b""), ""),
            (Vec::new(), ""),
        ] {
            assert_eq!(statement(&message), expected);
        }
    }
}
