//! What the operator keeps to the registry: approved endpoints, and all endpoints of a tenant whose policy says so.

use postrider_core::problem::Code;
use postrider_store::{edit::Edit, endpoints::Endpoint, registry};

use crate::{authenticate::Management, problem::Problem};

/// # Errors
/// `403 approved_only` where the tenant's endpoints come from the registry alone.
pub(super) async fn may_choose_url(edit: &mut Edit, caller: &Management) -> Result<(), Problem> {
    if registry::is_required(edit, caller.tenant_id).await? {
        return Err(Problem::new(
            Code::ApprovedOnly,
            "This tenant's endpoints come from the operator's registry alone. Ask the operator to declare it there.",
        ));
    }
    Ok(())
}

/// # Errors
/// `409 endpoint_approved` for an endpoint that the registry declares.
pub(super) fn may_change(endpoint: &Endpoint) -> Result<(), Problem> {
    if endpoint.approval.is_none() {
        return Ok(());
    }
    Err(Problem::new(
        Code::EndpointApproved,
        "The operator's registry declares this endpoint. Here it can be disabled, enabled, tested and given another \
         signing secret; for anything else ask the operator to change the registry's file and apply it.",
    ))
}
