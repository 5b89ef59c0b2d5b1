use postrider_core::name::Name;
use postrider_store::{
    audit::{self, Action, Target},
    edit::Edit,
    tenants,
};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{
    Shown,
    limits::{QuotaChanges, apply_rate},
};
use crate::{
    authenticate::Bootstrap,
    body::{Json, MergePatch},
    change::{Change, names_of_given, not_null},
    object,
    problem::Problem,
    request::InPath,
    state::State,
};

/// What to change about a tenant. What is left out stays as it is; `null` brings a limit back to the installation's
/// default, and 0 is no limit.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = TenantPatch)]
pub(crate) struct Body {
    /// Events per second that its applications may publish together.
    #[serde(default)]
    #[schema(value_type = Option<f64>, minimum = 0, maximum = 1_000_000)]
    rate: Change<f64>,
    /// Events at once after a pause; with 0 what the rate gives in a second.
    #[serde(default)]
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 1_000_000)]
    burst: Change<u32>,
    #[serde(default, deserialize_with = "object::changed")]
    #[schema(value_type = Option<QuotaChanges>)]
    quotas: Change<QuotaChanges>,
    /// Whether its endpoints come from the operator's registry alone.
    #[serde(default, deserialize_with = "not_null")]
    #[schema(nullable = false)]
    approved_only: Option<bool>,
}

/// Changes a tenant's limits.
///
/// Quotas hold for every event that is stored from the answer on, in all processes; `rate` and `burst` within a second.
/// Under quotas counting begins when the first one is set: what was published before is not counted, but open deliveries
/// are.
#[utoipa::path(
    patch,
    path = "/api/admin/tenants/{tenant}",
    tag = "Tenants",
    security(("bootstrapToken" = [])),
    request_body(
        content((Body = "application/merge-patch+json"), (Body = "application/json")),
        description = "A JSON merge patch (RFC 7396).",
    ),
    responses((status = 200, description = "The tenant as it is now.", body = Shown)),
)]
pub(crate) async fn update_tenant(
    caller: Bootstrap,
    state: State,
    InPath(name): InPath<Name>,
    MergePatch(body): MergePatch<Body>,
) -> Result<Json<Shown>, Problem> {
    let id = tenants::get_by_name(&state.pool, &name).await?.ok_or_else(Problem::not_found)?.id;
    let mut edit = Edit::of_operator(&state.pool, Some(id), caller.by).await?;
    tenants::lock_limits(&mut edit, id).await?;
    let mut tenant = tenants::get_by_name(&mut **edit, &name).await?.ok_or_else(Problem::not_found)?;
    let fields = body.fields();
    if !fields.is_empty() {
        let Body { rate, burst, quotas, approved_only } = body;
        apply_rate(rate, burst, &mut tenant.limits)?;
        match quotas {
            Change::Keep => {}
            Change::Remove => QuotaChanges::ALL_REMOVED.apply(&mut tenant.limits)?,
            Change::Set(changes) => changes.apply(&mut tenant.limits)?,
        }
        tenant.approved_only = approved_only.unwrap_or(tenant.approved_only);
        tenants::set_limits(&mut edit, id, &tenant.limits, tenant.approved_only).await?;
        let target = Target::new("tenant", id, &name);
        edit.commit(audit::Change { action: Action::TenantChanged, target, fields: &fields }).await?;
    }
    Ok(Json(Shown::new(tenant, state.routing.defaults())))
}

impl Body {
    /// What was given, for the audit log.
    fn fields(&self) -> Vec<&'static str> {
        names_of_given([
            ("rate", self.rate.is_given()),
            ("burst", self.burst.is_given()),
            ("quotas", self.quotas.is_given()),
            ("approvedOnly", self.approved_only.is_some()),
        ])
    }
}
