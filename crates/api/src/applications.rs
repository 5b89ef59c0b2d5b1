//! Applications: who publishes.

mod create;
mod get;
mod list;
mod rotate_token;
mod update;

use postrider_core::name::Name;
use postrider_store::applications::Application;
use serde::Serialize;
use time::OffsetDateTime;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{secret, state::State};

pub(crate) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(list::list_applications, create::create_application))
        .routes(routes!(get::get_application, update::update_application))
        .routes(routes!(rotate_token::rotate_application_token))
}

/// A publisher.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Application)]
pub(crate) struct Shown {
    #[schema(value_type = String, example = "orders")]
    id: Name,
    /// A disabled application cannot publish; what it published before is still delivered.
    enabled: bool,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    updated_at: OffsetDateTime,
}

/// A publisher and its new publish token.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ApplicationWithToken)]
pub(crate) struct WithToken {
    #[serde(flatten)]
    application: Shown,
    /// Publishes this application's events, and nothing else. Shown this once; only a keyed hash of it is stored.
    #[schema(value_type = String, example = "prp_…")]
    publish_token: secret::Shown,
}

impl From<Application> for Shown {
    fn from(application: Application) -> Self {
        Self {
            id: application.name,
            enabled: application.enabled,
            created_at: application.created_at,
            updated_at: application.updated_at,
        }
    }
}
