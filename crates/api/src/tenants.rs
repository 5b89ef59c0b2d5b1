//! Tenants, which only the operator makes.

mod create;

use utoipa_axum::{router::OpenApiRouter, routes};

use crate::state::State;

pub(crate) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(create::create_tenant))
}
