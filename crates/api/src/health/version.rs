use postrider_store::migrate;
use serde::Serialize;
use tokio::time::timeout;
use utoipa::ToSchema;

use super::PROBE_TIMEOUT;
use crate::{body::Json, state::State};

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Versions {
    /// The program's version.
    version: &'static str,
    /// The commit it was built from, or `unknown`.
    commit: &'static str,
    /// The version of the database's schema; null where it has none or does not answer.
    #[schema(required)]
    schema: Option<i64>,
}

/// Which program this is, and which schema its database has.
#[utoipa::path(
    get,
    path = "/health/version",
    tag = "Health",
    responses((status = 200, description = "The versions.", body = Versions)),
)]
pub(crate) async fn health_version(state: State) -> Json<Versions> {
    let schema = match timeout(PROBE_TIMEOUT, migrate::inspect(&state.pool)).await {
        Ok(Ok(versions)) => versions.applied,
        // Which program this is can be told all the same; whether it is ready is for `/health/ready` to say.
        Ok(Err(_)) | Err(_) => None,
    };
    Json(Versions { version: state.build.version, commit: state.build.commit, schema })
}
