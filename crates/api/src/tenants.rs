//! Tenants, which only the operator makes and bounds.

mod create;
mod get;
mod issue_owner_key;
mod limits;
mod update;

use postrider_core::{name::Name, quota::Settings};
use postrider_store::tenants::Tenant;
use serde::Serialize;
use time::OffsetDateTime;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use self::limits::{Effective, Quotas};
use crate::state::State;

pub(crate) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(create::create_tenant))
        .routes(routes!(get::get_tenant, update::update_tenant))
        .routes(routes!(issue_owner_key::issue_owner_key))
}

/// A tenant as its operator sees it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Tenant)]
pub(crate) struct Shown {
    #[schema(value_type = String, example = "acme")]
    id: Name,
    #[schema(example = "Acme")]
    name: String,
    #[serde(with = "time::serde::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    created_at: OffsetDateTime,
    /// Events per second, as set for this tenant; `null`: the installation's default holds.
    rate: Option<f64>,
    /// Events at once after a pause, as set for this tenant.
    burst: Option<u32>,
    quotas: Quotas,
    /// Its endpoints come from the operator's registry alone.
    approved_only: bool,
    /// What holds: the tenant's own limits over the defaults of this process. `null`: no limit.
    effective: Effective,
}

impl Shown {
    fn new(tenant: Tenant, defaults: &Settings) -> Self {
        let Tenant { id: _, name, display_name, limits, approved_only, created_at } = tenant;
        Self {
            id: name,
            name: display_name,
            created_at,
            rate: limits.rate,
            burst: limits.burst,
            quotas: Quotas::own(&limits),
            approved_only,
            effective: Effective::from(limits.over(defaults)),
        }
    }
}
