//! Whether the process lives, whether it can work, and which program it is. Open to everybody: nothing here names a
//! tenant.

mod live;
mod overview;
mod ready;
mod version;

use std::time::Duration;

use postrider_store::installation;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::state::State;

/// Longest time that one dependency may take to answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(overview::health))
        .routes(routes!(live::health_live))
        .routes(routes!(ready::health_ready))
        .routes(routes!(version::health_version))
}

/// How a dependency does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Condition {
    Up,
    /// It answers, but takes no changes: a standby, for one.
    ReadOnly,
    Down,
}

/// The state of everything this process depends on.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Dependencies {
    postgresql: Condition,
}

impl Dependencies {
    async fn probe(state: &State) -> Self {
        let postgresql =
            match tokio::time::timeout(PROBE_TIMEOUT, installation::is_read_only(&state.pool)).await {
                Ok(Ok(false)) => Condition::Up,
                Ok(Ok(true)) => Condition::ReadOnly,
                Ok(Err(_)) | Err(_) => Condition::Down,
            };
        Self { postgresql }
    }
}
