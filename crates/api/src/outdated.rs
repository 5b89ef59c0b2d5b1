//! Management tokens while the pepper is replaced: known by their hash under either pepper, and stored anew under the
//! newer one when they are used. Publish tokens are stored anew apart from their requests, which are many more.

use postrider_core::token::Token;
use postrider_store::{
    management_keys::{self, Credential},
    rotation::tokens::{self, Move},
};

use crate::state::State;

/// The credential that a management token belongs to.
pub(crate) async fn management_credential(
    token: &Token,
    state: &State,
) -> Result<Option<Credential>, sqlx::Error> {
    let (after, before) = (state.peppers.hash(token), state.peppers.previous_hash(token));
    let found = management_keys::get_by_token_hash(&state.pool, &after, before.as_ref()).await?;
    if let (Some(Credential { is_outdated: true, .. }), Some(before)) = (&found, before) {
        let step = Move { before, after };
        let stored = tokens::store_management_token(&state.pool, state.peppers.current(), step).await;
        if let Err(error) = stored {
            // The token still opens what it opens, and its next use tries again.
            tracing::warn!(%error, "a management token could not be stored under the new pepper");
        }
    }
    Ok(found)
}
