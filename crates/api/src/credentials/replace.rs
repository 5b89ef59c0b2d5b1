use postrider_core::{id::TenantId, name::Name};
use postrider_store::{
    audit::{Action, Change, Target},
    credentials::{self, Naming, NewValue},
};

use super::{
    Credential,
    value::{self, Value},
};
use crate::{
    authenticate::Owner, body::Json, endpoints::headers, problem::Problem, request::InPath, state::State,
};

/// Replaces a credential's value, whatever its kind was.
///
/// Every process sends the new one from the next attempt on; access tokens that were fetched with the old one are given
/// up.
#[utoipa::path(
    put,
    path = "/api/tenants/{tenant}/credentials/{credential}",
    tag = "Credentials",
    security(("managementToken" = ["owner"])),
    request_body = Value,
    responses((status = 200, description = "Replaced.", body = Credential)),
)]
pub(crate) async fn replace_credential(
    Owner(caller): Owner,
    state: State,
    InPath(name): InPath<Name>,
    Json(body): Json<Value>,
) -> Result<Json<Credential>, Problem> {
    let credential = body.check(&state).await?;
    let mut edit = caller.edit(&state).await?;
    let id = credentials::lock_by_name(&mut edit, caller.tenant_id, &name).await?;
    let endpoints = credentials::lock_endpoints(&mut edit, caller.tenant_id, id).await?;
    require_room(&endpoints, &credential, caller.tenant_id, &state)?;
    let sealed_value = value::seal(caller.tenant_id, id, &credential, &state)?;
    let member = value::member(credential.kind());
    let value = NewValue { kind: credential.kind(), sealed_value: &sealed_value };
    credentials::replace(&mut edit, caller.tenant_id, id, &endpoints, value).await?;
    let replaced = credentials::get_by_name(&mut **edit, caller.tenant_id, &name).await?;
    let replaced = replaced.ok_or_else(Problem::not_found)?;
    let target = Target::new("credential", id, &name);
    edit.commit(Change { action: Action::CredentialReplaced, target, fields: &[member] }).await?;
    Ok(Json(replaced.into()))
}

/// Refuses a value whose header one of the endpoints sets itself.
fn require_room(
    endpoints: &[Naming],
    credential: &postrider_core::credential::Credential,
    tenant_id: TenantId,
    state: &State,
) -> Result<(), Problem> {
    let header = credential.header_name();
    for endpoint in endpoints {
        let owner = headers::Owner { tenant_id, endpoint_id: endpoint.id };
        if headers::open(owner, endpoint.sealed_headers.as_deref(), state)?.contains(header) {
            return Err(Problem::invalid_field(
                value::member(credential.kind()),
                format!(
                    "the endpoint `{}` sets the header `{header}` itself; remove it there first",
                    endpoint.name
                ),
            ));
        }
    }
    Ok(())
}
