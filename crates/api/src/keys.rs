//! Management keys: credentials for the tenant's programs and for whoever scripts it. Only owners see and change them.

mod issue;
mod list;
mod revoke;

use postrider_core::{name::Name, role::Role};
use postrider_store::management_keys::ManagementKey;
use serde::Serialize;
use time::OffsetDateTime;
use utoipa::{
    ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, Type},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{secret, state::State};

pub(crate) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(list::list_keys, issue::issue_key))
        .routes(routes!(revoke::revoke_key))
}

/// A management key.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Key)]
pub(crate) struct Shown {
    #[schema(value_type = String, example = "ci")]
    id: Name,
    #[schema(schema_with = roles)]
    role: Role,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    /// Since when its token opens nothing; null while it does.
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(required)]
    revoked_at: Option<OffsetDateTime>,
}

/// A management key and its token.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = KeyWithToken)]
pub(crate) struct WithToken {
    #[serde(flatten)]
    key: Shown,
    /// Manages the tenant, within the key's role. Shown this once; only a keyed hash of it is stored.
    #[schema(value_type = String, example = "prm_…")]
    token: secret::Shown,
}

impl From<ManagementKey> for Shown {
    fn from(key: ManagementKey) -> Self {
        Self { id: key.name, role: key.role, created_at: key.created_at, revoked_at: key.revoked_at }
    }
}

/// The roles, from least to most.
pub(crate) fn roles() -> RefOr<Schema> {
    let names = Role::ALL.iter().map(|role| role.as_str());
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names)).into()
}
