//! Where an endpoint's URL leads, checked before it is stored. Each send checks again: an answer of the DNS may change.

use std::time::Duration;

use postrider_core::{
    destination::Destination,
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
    let destination = Destination::parse(url, &state.url_policy, &state.address_policy)
        .map_err(|refusal| Problem::invalid_field("url", refusal.to_string()))?;
    judge((state.check_origin)(destination.origin().clone())).await?;
    Ok(destination)
}

async fn judge(asking: impl Future<Output = Result<(), Failure>>) -> Result<(), Problem> {
    match tokio::time::timeout(LOOKUP_TIMEOUT, asking).await {
        Ok(Err(failure)) if failure.kind == FailureKind::AddressRefused => {
            Err(Problem::invalid_field("url", failure.detail))
        }
        Ok(Ok(()) | Err(_)) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_refused_address_refuses_and_an_unknown_one_is_left_to_the_send() {
        let failed = |kind| ready(Err(Failure { kind, detail: "because".to_owned() }));
        let refused = judge(failed(FailureKind::AddressRefused)).await;
        assert_eq!(refused, Err(Problem::invalid_field("url", "because")));
        assert_eq!(judge(failed(FailureKind::Dns)).await, Ok(()));
        assert_eq!(judge(ready(Ok(()))).await, Ok(()));
        assert_eq!(judge(pending()).await, Ok(()));
    }
}
