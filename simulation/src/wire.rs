//! As much of PostgreSQL's protocol (version 3) as it takes to stand between a client and a server: messages are cut
//! apart, grouped into what the server answers at once, and names of prepared statements are exchanged.

/// One message: its kind, and its content without the length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub kind: u8,
    pub content: Vec<u8>,
}

impl Message {
    pub fn new(kind: u8, content: impl Into<Vec<u8>>) -> Self {
        Self { kind, content: content.into() }
    }

    /// A simple query.
    pub fn query(sql: &str) -> Self {
        Self::new(b'Q', [sql.as_bytes(), &[0]].concat())
    }

    pub fn write_to(&self, bytes: &mut Vec<u8>) {
        bytes.push(self.kind);
        let length = u32::try_from(self.content.len() + 4).expect("messages are small");
        bytes.extend(length.to_be_bytes());
        bytes.extend(&self.content);
    }

    /// The string, ended by a zero, that begins at `from`, and what follows it.
    pub fn text(&self, from: usize) -> (&str, &[u8]) {
        let rest = self.content.get(from..).unwrap_or_default();
        let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
        let text = std::str::from_utf8(&rest[..end]).unwrap_or_default();
        (text, rest.get(end + 1..).unwrap_or_default())
    }

    /// Ends a group: the server answers with "ready for query".
    pub const fn ends_group(&self) -> bool {
        matches!(self.kind, b'Q' | b'S')
    }
}

/// Takes the whole messages off the front of what has arrived.
pub fn split(buffer: &mut Vec<u8>) -> Vec<Message> {
    let mut messages = Vec::new();
    let mut at = 0;
    while let Some(header) = buffer.get(at..at + 5) {
        let Some(length) = length(&header[1..]).filter(|length| buffer.len() > at + length) else { break };
        messages.push(Message::new(header[0], &buffer[at + 5..=at + length]));
        at += length + 1;
    }
    buffer.drain(..at);
    messages
}

/// Takes the first packet of a connection off, which has no kind: the parameters of the session.
pub fn split_startup(buffer: &mut Vec<u8>) -> Option<Vec<(String, String)>> {
    let length = length(buffer.get(..4)?).filter(|length| buffer.len() >= *length)?;
    let parameters = buffer.get(8..length)?.split(|byte| *byte == 0);
    let texts: Vec<String> = parameters.map(|part| String::from_utf8_lossy(part).into_owned()).collect();
    buffer.drain(..length);
    let pairs = texts.chunks_exact(2).filter(|pair| !pair[0].is_empty());
    Some(pairs.map(|pair| (pair[0].clone(), pair[1].clone())).collect())
}

/// The first packet of a connection.
pub fn startup(parameters: &[(&str, &str)]) -> Vec<u8> {
    let mut content = 196_608_u32.to_be_bytes().to_vec();
    for (name, value) in parameters {
        content.extend([name.as_bytes(), &[0], value.as_bytes(), &[0]].concat());
    }
    content.push(0);
    let length = u32::try_from(content.len() + 4).expect("parameters are small");
    [&length.to_be_bytes()[..], &content].concat()
}

/// What a server says to a client it lets in.
pub fn welcome() -> Vec<u8> {
    let mut bytes = Vec::new();
    Message::new(b'R', 0_u32.to_be_bytes()).write_to(&mut bytes);
    Message::new(b'K', [1_u32.to_be_bytes(), 1_u32.to_be_bytes()].concat()).write_to(&mut bytes);
    Message::new(b'Z', *b"I").write_to(&mut bytes);
    bytes
}

/// The answer to a statement that changes nothing.
pub fn done(tag: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    Message::new(b'C', [tag.as_bytes(), &[0]].concat()).write_to(&mut bytes);
    Message::new(b'Z', *b"I").write_to(&mut bytes);
    bytes
}

/// A wake-up on a channel.
pub fn notification(channel: &str, call: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let content = [&1_u32.to_be_bytes()[..], channel.as_bytes(), &[0], call.as_bytes(), &[0]].concat();
    Message::new(b'A', content).write_to(&mut bytes);
    bytes
}

fn length(bytes: &[u8]) -> Option<usize> {
    usize::try_from(u32::from_be_bytes(bytes.try_into().ok()?)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_apart_where_they_end() {
        let mut bytes = Vec::new();
        Message::query("BEGIN").write_to(&mut bytes);
        Message::new(b'S', []).write_to(&mut bytes);
        let whole = bytes.len();
        bytes.extend([b'P', 0, 0, 0, 9, b'x']);
        let messages = split(&mut bytes);
        assert_eq!(messages, [Message::query("BEGIN"), Message::new(b'S', [])]);
        assert_eq!(messages[0].text(0).0, "BEGIN");
        assert_eq!(bytes.len(), 6, "{whole} bytes were whole messages");
    }

    #[test]
    fn the_first_packet_names_the_session() {
        let mut bytes = startup(&[("user", "me"), ("options", "-c a=b")]);
        bytes.push(b'Q');
        let parameters = split_startup(&mut bytes).expect("it is whole");
        assert_eq!(
            parameters,
            [("user".to_owned(), "me".to_owned()), ("options".to_owned(), "-c a=b".to_owned())]
        );
        assert_eq!(bytes, [b'Q']);
    }
}
