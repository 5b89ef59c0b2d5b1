//! Where an endpoint's URL leads, checked before it is stored. Each send checks again: an answer of the DNS may change.

use std::time::Duration;

use postrider_core::{
    destination::{Destination, Refusal, UrlPolicy},
    retry::{Failure, FailureKind},
};

use crate::{problem::Problem, state::State};

/// Longest time that a lookup may hold up the request. What takes longer is left to the check at each send.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Parses a URL by the operator's policy and asks the guard that every request passes whether one would be sent there.
///
/// A name that does not resolve (yet) is accepted: nothing can be sent to it either. What is refused is said without
/// the address that a name led to: what it means inside this network is not for everyone to read.
///
/// # Errors
/// `422` naming the field `url`.
pub(super) async fn check(url: &str, state: &State) -> Result<Destination, Problem> {
    check_field("url", url, state).await
}

/// The same for a URL in another field: whatever requests go to passes here.
///
/// # Errors
/// `422` naming the field.
pub(crate) async fn check_field(
    field: &'static str,
    url: &str,
    state: &State,
) -> Result<Destination, Problem> {
    // A query may hold a vendor's secret: only the registry takes one, and seals it.
    let policy = UrlPolicy { allow_query: false, ..state.url_policy };
    let destination = Destination::parse(url, &policy, &state.address_policy)
        .map_err(|refusal| Problem::invalid_field(field, explain(url, &refusal)))?;
    judge(field, (state.check_origin)(destination.origin().clone())).await?;
    Ok(destination)
}

/// A URL that is all there but for TLS is told so, rather than how URLs begin.
fn explain(url: &str, refusal: &Refusal) -> String {
    let is_plain = url.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("http://"));
    if is_plain && *refusal == Refusal::Scheme {
        "plain `http://` is refused, because anyone on the way could read and change what is sent; use `https://`"
            .to_owned()
    } else {
        refusal.to_string()
    }
}

async fn judge(
    field: &'static str,
    asking: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Problem> {
    match tokio::time::timeout(LOOKUP_TIMEOUT, asking).await {
        Ok(Err(failure)) if failure.kind == FailureKind::AddressRefused => {
            Err(Problem::invalid_field(field, failure.detail))
        }
        Ok(Ok(()) | Err(_)) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[test]
    fn a_url_without_tls_is_told_so() {
        for (url, is_about_tls) in [
            ("http://example.com/", true),
            ("HTTP://example.com", true),
            ("ftp://example.com/", false),
            ("example", false),
            ("ö", false),
        ] {
            assert_eq!(explain(url, &Refusal::Scheme).contains("plain `http://`"), is_about_tls, "{url}");
        }
        assert_eq!(explain("http://example.com/#a", &Refusal::Fragment), Refusal::Fragment.to_string());
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_refused_address_refuses_and_an_unknown_one_is_left_to_the_send() {
        let failed = |kind| ready(Err(Failure { kind, detail: "because".to_owned() }));
        let refused = judge("url", failed(FailureKind::AddressRefused)).await;
        assert_eq!(refused, Err(Problem::invalid_field("url", "because")));
        assert_eq!(judge("url", failed(FailureKind::Dns)).await, Ok(()));
        assert_eq!(judge("url", ready(Ok(()))).await, Ok(()));
        assert_eq!(judge("url", pending()).await, Ok(()));
    }
}
