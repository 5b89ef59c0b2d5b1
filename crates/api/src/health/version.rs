use postrider_store::migrate;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{body::Json, problem::Problem, state::State};

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Versions {
    /// The program's version.
    version: &'static str,
    /// The commit it was built from, or `unknown`.
    commit: &'static str,
    /// The version of the database's schema; null in an empty database.
    #[schema(required)]
    schema: Option<i64>,
}

/// Which program this is, and which schema its database has.
#[utoipa::path(
    get,
    path = "/health/version",
    tag = "Health",
    responses(
        (status = 200, description = "The versions.", body = Versions),
        (status = 503, description = "The database does not answer, so its schema is unknown."),
    ),
)]
pub(crate) async fn health_version(state: State) -> Result<Json<Versions>, Problem> {
    let schema = match migrate::inspect(&state.pool).await {
        Ok(versions) => versions.applied,
        Err(migrate::Error::Database(error)) => return Err(error.into()),
        Err(error) => return Err(Problem::internal(&error)),
    };
    Ok(Json(Versions { version: state.build.version, commit: state.build.commit, schema }))
}
