//! What `dev` prints when everything runs: where things are, and lines to paste next.

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use postrider_simulator::trust::Signature;

use super::example::{APPLICATION, ENDPOINT, Example, Key, Shown, reachable};

/// Everything the summary tells.
#[derive(Debug)]
pub(crate) struct Summary<'a> {
    pub(crate) server: SocketAddr,
    pub(crate) simulator: SocketAddr,
    /// The directory that PostgreSQL really uses.
    pub(crate) data: &'a Path,
    pub(crate) postgres_version: u32,
    pub(crate) secrets: &'a Path,
    pub(crate) example: &'a Example,
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = format!("http://{}", reachable(self.server));
        let simulator = format!("http://{}", reachable(self.simulator));
        let tenant = &self.example.tenant;
        let told = self.told();
        let apart = if self.is_data_apart() {
            "\n             (PostgreSQL's account cannot enter the data directory; to start afresh, remove this one too)"
        } else {
            ""
        };
        let (data, postgres) = (self.data.display(), self.postgres_version);
        let secrets = self.secrets.display();
        let source = Quoted(self.secrets.to_owned());
        write!(
            formatter,
            r#"
Postrider is running. Ctrl-C stops it; the next start goes on where this one ends.

  API        {server}    described at {server}/openapi.json
  Simulator  {simulator}    its scripts at {simulator}/
  Data       {data}    PostgreSQL {postgres}{apart}
  Secrets    {secrets}    readable by you only

{told}

Publish one yourself, and see what the receiver got:

  . {source}
  curl -sS {server}/api/tenants/{tenant}/applications/{APPLICATION}/events/order.created -H "Authorization: Bearer $PUBLISH_TOKEN" -H "Content-Type: application/json" -d '{{"order":42}}'
  curl -sS "{simulator}/_/requests?limit=1"

Make the receiver fail twice before it accepts, publish again, and follow the attempts:

  curl -sS -X PATCH {server}/api/tenants/{tenant}/endpoints/{ENDPOINT} -H "Authorization: Bearer $OWNER_TOKEN" -H "Content-Type: application/merge-patch+json" -d '{{"url":"{simulator}/flap/2/1","retry":{{"initialDelayMs":500}}}}'
  EVENT=$(curl -sS {server}/api/tenants/{tenant}/applications/{APPLICATION}/events/order.created -H "Authorization: Bearer $PUBLISH_TOKEN" -H "Content-Type: application/json" -d '{{"order":43}}' | grep -o 'evt_[0-9a-f]*')
  sleep 3; curl -sS "{server}/api/tenants/{tenant}/events/$EVENT/timeline" -H "Authorization: Bearer $OWNER_TOKEN"
"#
        )
    }
}

impl Summary<'_> {
    /// Whether removing the data directory, where the secrets lie, would leave the database behind.
    fn is_data_apart(&self) -> bool {
        let directory = self.secrets.parent().and_then(|directory| directory.canonicalize().ok());
        directory.is_some_and(|directory| !self.data.starts_with(directory))
    }

    fn told(&self) -> String {
        let (event_id, received, key) = match &self.example.shown {
            Shown::Nothing { reason } => {
                return format!(
                    "No event was shown going the whole way. The example is left as you changed it: {reason}"
                );
            }
            Shown::Arrived { event_id, received, key } => (event_id, received, *key),
        };
        let delivery = received.webhook_id.as_deref().unwrap_or("a delivery without an id");
        let secrets = self.secrets.display();
        let signature = match (&received.signature, key) {
            (Signature::Held, _) => "its signature held".to_owned(),
            (Signature::Broken { .. } | Signature::Unchecked { .. }, Key::Rotated) => format!(
                "its signature is not checked: you rotated the secret; {secrets} holds the old one. Put the new one \
                 there as SIGNING_SECRET"
            ),
            (Signature::Broken { reason }, Key::Kept) => {
                format!("but its signature did not hold: {reason}")
            }
            (Signature::Unsigned, _) => "but it was not signed".to_owned(),
            (Signature::Unchecked { reason }, Key::Kept) => {
                format!("but its signature could not be checked: {reason}")
            }
        };
        let article = if self.example.is_fresh { "A first" } else { "An" };
        if received.answer.starts_with('2') {
            format!(
                "{article} event went the whole way: {event_id}\nwas delivered as {delivery}, {signature}."
            )
        } else {
            let (answer, target) = (&received.answer, &received.target);
            format!(
                "{article} event reached the simulator: {event_id}\ncame as {delivery}, {signature}.\nThe answer was \
                 {answer}, as the path {target} of the endpoint's URL asks for."
            )
        }
    }
}

/// A path as one word of a shell's command line; one without a slash gets one, or `.` would search for it.
struct Quoted(PathBuf);

impl fmt::Display for Quoted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string_lossy();
        let prefix = if text.contains('/') { "" } else { "./" };
        let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
        if is_plain {
            write!(formatter, "{prefix}{text}")
        } else {
            write!(formatter, "'{prefix}{}'", text.replace('\'', r"'\''"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_where_a_shell_needs_it() {
        for (path, expected) in [
            (".postrider/secrets.env", ".postrider/secrets.env"),
            ("secrets.env", "./secrets.env"),
            ("/a b/secrets.env", "'/a b/secrets.env'"),
            ("/it's/secrets.env", r"'/it'\''s/secrets.env'"),
        ] {
            assert_eq!(Quoted(PathBuf::from(path)).to_string(), expected);
        }
    }
}
