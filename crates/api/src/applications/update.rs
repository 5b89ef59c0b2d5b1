use postrider_core::name::Name;
use postrider_store::{
    applications,
    audit::{Action, Change, Target},
};
use serde::Deserialize;
use utoipa::ToSchema;

use super::Shown;
use crate::{
    authenticate::Developer,
    body::{Json, MergePatch},
    change::not_null,
    problem::Problem,
    request::InPath,
    state::State,
};

/// What to change about an application; what is left out stays as it is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ApplicationPatch)]
pub(crate) struct Body {
    /// Whether the application may publish.
    #[serde(default, deserialize_with = "not_null")]
    #[schema(nullable = false)]
    enabled: Option<bool>,
}

/// Disables or enables an application.
///
/// While it is disabled, publishing is answered with `403`. What it published before is still delivered.
#[utoipa::path(
    patch,
    path = "/api/tenants/{tenant}/applications/{application}",
    tag = "Applications",
    security(("managementToken" = ["developer"])),
    request_body(
        content((Body = "application/merge-patch+json"), (Body = "application/json")),
        description = "A JSON merge patch (RFC 7396).",
    ),
    responses((status = 200, description = "The application as it is now.", body = Shown)),
)]
pub(crate) async fn update_application(
    Developer(caller): Developer,
    state: State,
    InPath(name): InPath<Name>,
    MergePatch(body): MergePatch<Body>,
) -> Result<Json<Shown>, Problem> {
    let mut edit = caller.edit(&state).await?;
    let found = applications::get_by_name(&mut **edit, caller.tenant_id, &name).await?;
    let mut application = found.ok_or_else(Problem::not_found)?;
    if let Some(enabled) = body.enabled.filter(|enabled| *enabled != application.enabled) {
        application = applications::set_enabled(&mut edit, caller.tenant_id, application.id, enabled).await?;
        let target = Target::new("application", application.id, &application.name);
        edit.commit(Change { action: Action::ApplicationChanged, target, fields: &["enabled"] }).await?;
    }
    Ok(Json(application.into()))
}
