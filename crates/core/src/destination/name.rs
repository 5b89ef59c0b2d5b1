//! Which host names may stand in an endpoint URL (RFC 1123 section 2.1, RFC 1035 section 2.3.4).

use super::{Refusal, UrlPolicy};
use crate::address;

const MAX_NAME_LENGTH: usize = 253;
const MAX_LABEL_LENGTH: usize = 63;

/// Names that public DNS does not serve: RFC 6762 (`local`), RFC 8375 (`home.arpa`), and ICANN's `internal`, under which
/// clouds name their metadata services.
const INTERNAL_SUFFIXES: [&str; 3] = ["local", "home.arpa", "internal"];

/// Checks a name as the URL parser gives it: lower case, Punycode, percent-decoded. Gives it back without its trailing
/// dot, and whether it is `localhost`.
///
/// A name alone never suffices: what it resolves to is checked at each connection. Refusing these early spares their
/// owner a failed delivery and leaves no doubt about how a resolver takes them.
pub(super) fn check<'n>(
    name: &'n str,
    policy: UrlPolicy,
    addresses: &address::Policy,
) -> Result<(&'n str, bool), Refusal> {
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() || name.len() > MAX_NAME_LENGTH {
        return Err(Refusal::Name("a name has 1 to 253 characters"));
    }
    if !name.split('.').all(is_label) {
        return Err(Refusal::Name("between dots stand 1 to 63 letters, digits, `-` and `_`"));
    }
    let last_label = name.rsplit('.').next().unwrap_or_default();
    if !last_label.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return Err(Refusal::Name("its last part starts with a letter, or it could be taken for an address"));
    }
    if is_within(name, "localhost") {
        let refusal = Refusal::Name("`localhost` is this machine");
        return if policy.allow_loopback_http { Ok((name, true)) } else { Err(refusal) };
    }
    let is_internal = INTERNAL_SUFFIXES.iter().any(|suffix| is_within(name, suffix)) || !name.contains('.');
    if is_internal && addresses.allowed.is_empty() {
        return Err(Refusal::Name(
            "names without a dot, `.local`, `.internal` and `.home.arpa` belong to private networks",
        ));
    }
    Ok((name, false))
}

fn is_label(label: &str) -> bool {
    (1..=MAX_LABEL_LENGTH).contains(&label.len())
        && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

fn is_within(name: &str, suffix: &str) -> bool {
    name.strip_suffix(suffix).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}
