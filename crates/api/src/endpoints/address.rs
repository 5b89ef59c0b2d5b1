//! Where an endpoint's URL leads, checked before it is stored. Each send checks again: an answer of the DNS may change.

use std::time::Duration;

use postrider_core::{
    address,
    destination::{Destination, Host},
};

use crate::{problem::Problem, state::State};

/// Longest time that a lookup may hold up the request. What takes longer is left to the check at each send.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Parses a URL by the operator's policy and looks its host up. One refused address refuses the URL, however many
/// others are fine: which of them a send would meet is chance.
///
/// A name that does not resolve (yet) is accepted: nothing can be sent to it either.
///
/// # Errors
/// `422` naming the field `url`.
pub(super) async fn check(url: &str, state: &State) -> Result<Destination, Problem> {
    let destination = Destination::parse(url, &state.url_policy, &state.address_policy)
        .map_err(|refusal| Problem::invalid_field("url", refusal.to_string()))?;
    let Host::Name(name) = &destination.origin().host else {
        return Ok(destination);
    };
    if let Ok(Ok(found)) = tokio::time::timeout(LOOKUP_TIMEOUT, (state.resolve)(name.to_string())).await {
        for found in found {
            address::check(&state.address_policy, found)
                .map_err(|refusal| Problem::invalid_field("url", refusal.to_string()))?;
        }
    }
    Ok(destination)
}
