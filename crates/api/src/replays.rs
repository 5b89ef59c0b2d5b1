//! Replays: many dead letters are sent again, after a look at what that would be.

mod cancel;
mod create;
mod execute;
mod filter;
mod get;
mod list;
mod view;

use postrider_core::problem::Code;
use postrider_store::replay::{Error, LIFETIME, MAX_OPEN, MAX_UNTIDY};
use utoipa_axum::{router::OpenApiRouter, routes};

use view::Replay;

use crate::{problem::Problem, state::State};

pub(crate) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(list::list_replays, create::create_replay))
        .routes(routes!(get::get_replay))
        .routes(routes!(execute::execute_replay))
        .routes(routes!(cancel::cancel_replay))
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::NotFound => Self::not_found(),
            Error::TooManyOpen => Self::new(
                Code::LimitReached,
                format!(
                    "There are {MAX_OPEN} replays that are previewed or running, as many as there may be. Cancel one, or wait \
                     until one is over."
                ),
            ),
            Error::TooManyUntidy => Self::new(
                Code::LimitReached,
                format!(
                    "What {MAX_UNTIDY} replays that are over had found is still being removed, and no more may wait for that. \
                     Preview again in a minute."
                ),
            ),
            Error::Executed => {
                Self::new(Code::ReplayExecuted, "The replay was executed before; it runs only once.")
            }
            Error::Expired => Self::new(
                Code::ReplayExpired,
                format!(
                    "A preview can be executed for {} minutes, and these are over. Preview again.",
                    LIFETIME.as_secs() / 60
                ),
            ),
            Error::Over => Self::new(Code::ReplayOver, "The replay is finished or was cancelled."),
            Error::Database(error) => error.into(),
        }
    }
}
