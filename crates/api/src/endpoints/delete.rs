use http::StatusCode;
use postrider_core::name::Name;
use postrider_store::{
    audit::{Action, Change, Target},
    endpoints,
};

use super::policy;
use crate::{authenticate::Developer, problem::Problem, request::InPath, state::State};

/// Deletes an endpoint.
///
/// Its subscriptions go with it, and its open deliveries become dead letters (`endpoint_deleted`), which cannot be sent
/// again; a request that is under way ends as it ends. Its history stays, and its id can be used again.
#[utoipa::path(
    delete,
    path = "/api/tenants/{tenant}/endpoints/{endpoint}",
    tag = "Endpoints",
    security(("managementToken" = ["developer"])),
    responses(
        (status = 204, description = "Deleted."),
        (status = 409, description = "`endpoint_approved`: the operator's registry declares the endpoint."),
    ),
)]
pub(crate) async fn delete_endpoint(
    Developer(caller): Developer,
    state: State,
    InPath(name): InPath<Name>,
) -> Result<StatusCode, Problem> {
    let mut edit = caller.edit(&state).await?;
    let endpoint = endpoints::lock_by_name(&mut edit, caller.tenant_id, &name).await?;
    policy::may_change(&endpoint)?;
    endpoints::delete(&mut edit, caller.tenant_id, endpoint.id).await?;
    let target = Target::new("endpoint", endpoint.id, &endpoint.name);
    edit.commit(Change::whole(Action::EndpointDeleted, target)).await?;
    Ok(StatusCode::NO_CONTENT)
}
