//! Whether the process lives, whether it can work, and which program it is. Open to everybody: nothing here names a
//! tenant.

mod live;
mod optional;
mod overview;
mod ready;
mod version;

use std::{collections::BTreeMap, time::Duration};

use postrider_store::installation;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub use optional::OptionalDependency;

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
    /// What it is configured to use and can do without: `rabbitmq`, `redis`.
    #[serde(flatten)]
    optional: BTreeMap<&'static str, Condition>,
}

/// What is different without each dependency that is away and can be done without.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Notes(BTreeMap<&'static str, &'static str>);

impl Notes {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Dependencies {
    async fn probe(state: &State) -> Self {
        let postgresql =
            match tokio::time::timeout(PROBE_TIMEOUT, installation::is_read_only(&state.pool)).await {
                Ok(Ok(false)) => Condition::Up,
                Ok(Ok(true)) => Condition::ReadOnly,
                Ok(Err(_)) | Err(_) => Condition::Down,
            };
        let optional = state.optional.iter();
        let optional = optional.map(|dependency| {
            (dependency.name, if (dependency.is_up)() { Condition::Up } else { Condition::Down })
        });
        Self { postgresql, optional: optional.collect() }
    }

    fn notes(&self, state: &State) -> Notes {
        let is_away = |name: &str| self.optional.get(name) == Some(&Condition::Down);
        let away = state.optional.iter().filter(|dependency| is_away(dependency.name));
        Notes(away.map(|dependency| (dependency.name, dependency.note)).collect())
    }
}
