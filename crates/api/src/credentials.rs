//! Credentials of approved vendors: what endpoints' requests carry so that the vendor takes them.
//!
//! Invariant: a value comes in, is sealed for its row, and never goes out again: reads show the kind, and who uses it.

mod create;
mod delete;
mod get;
mod list;
mod replace;
mod value;

use postrider_core::{credential::Kind, name::Name};
use postrider_store::credentials;
use serde::Serialize;
use time::OffsetDateTime;
use utoipa::{
    ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, Type},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::state::State;

pub(crate) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(list::list_credentials, create::create_credential)).routes(routes!(
        get::get_credential,
        replace::replace_credential,
        delete::delete_credential
    ))
}

/// What a vendor wants to see in requests. Its value is not shown.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Credential {
    #[schema(value_type = String, example = "crm")]
    id: Name,
    #[schema(schema_with = kinds)]
    kind: &'static str,
    /// Endpoints whose requests carry it, by name; the first 100 of them.
    #[schema(value_type = Vec<String>, example = json!(["crm"]))]
    endpoints: Vec<Name>,
    /// How many endpoints' requests carry it.
    endpoint_count: i64,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    /// When its value was replaced last.
    #[serde(with = "time::serde::rfc3339")]
    updated_at: OffsetDateTime,
}

impl From<credentials::Credential> for Credential {
    fn from(credential: credentials::Credential) -> Self {
        Self {
            id: credential.name,
            kind: credential.kind.as_str(),
            endpoints: credential.endpoints,
            endpoint_count: credential.endpoint_count,
            created_at: credential.created_at,
            updated_at: credential.updated_at,
        }
    }
}

/// The words for a kind of credential.
fn kinds() -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(Kind::ALL.map(Kind::as_str)))
        .description(Some("What kind of credential it is."))
        .into()
}
