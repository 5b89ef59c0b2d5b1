//! What `dev` prints when everything runs: where things are, and lines to paste next.

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use postrider_simulator::trust::Signature;

use super::example::{APPLICATION, ENDPOINT, Example, reachable};

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
        let (tenant, event_id) = (&self.example.tenant, &self.example.event_id);
        let received = &self.example.received;
        let delivery = received.webhook_id.as_deref().unwrap_or("a delivery without an id");
        let signature = match &received.signature {
            Signature::Held => "its signature held".to_owned(),
            Signature::Broken { reason } => format!("but its signature did not hold: {reason}"),
            Signature::Unsigned => "but it was not signed".to_owned(),
            Signature::Unchecked => "but its signature could not be checked".to_owned(),
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
  Data       {data}    PostgreSQL {postgres}
  Secrets    {secrets}    readable by you only

A first event went the whole way: {event_id}
was delivered as {delivery}, {signature}.

Publish one yourself, and see what the receiver got:

  . {source}
  curl -sS {server}/api/tenants/{tenant}/applications/{APPLICATION}/events/order.created -H "Authorization: Bearer $PUBLISH_TOKEN" -H "Content-Type: application/json" -d '{{"order":42}}'
  curl -sS "{simulator}/_/requests?limit=1"

Make the receiver fail twice before it accepts, publish again, and follow the attempts:

  curl -sS -X PATCH {server}/api/tenants/{tenant}/endpoints/{ENDPOINT} -H "Authorization: Bearer $OWNER_TOKEN" -H "Content-Type: application/merge-patch+json" -d '{{"url":"{simulator}/flap/2/1"}}'
  curl -sS "{server}/api/tenants/{tenant}/deliveries?limit=5" -H "Authorization: Bearer $OWNER_TOKEN"
"#
        )
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
