//! Whether the process lives, whether it can work, and which program it is. Open to everybody: nothing here names a
//! tenant.

mod live;
mod overview;
mod ready;
mod version;

use std::time::Duration;

use serde::Serialize;
use sqlx::Connection as _;
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
#[serde(rename_all = "lowercase")]
pub(crate) enum Condition {
    Up,
    Down,
}

/// The state of everything this process depends on.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Dependencies {
    postgresql: Condition,
}

impl Dependencies {
    async fn probe(state: &State) -> Self {
        let postgresql = match tokio::time::timeout(PROBE_TIMEOUT, ping(state)).await {
            Ok(Ok(())) => Condition::Up,
            Ok(Err(_)) | Err(_) => Condition::Down,
        };
        Self { postgresql }
    }
}

async fn ping(state: &State) -> Result<(), sqlx::Error> {
    state.pool.acquire().await?.ping().await
}
