//! The audit log: who did what, when and from where.

mod list;
mod wanted;

use utoipa_axum::{router::OpenApiRouter, routes};

use crate::state::State;

pub(crate) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(list::list_audit))
}
