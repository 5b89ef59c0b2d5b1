//! Deliveries and their attempts: one event on its way to one endpoint.

mod attempts;
mod get;
mod list;
mod retry;
mod view;
mod wanted;

use utoipa_axum::{router::OpenApiRouter, routes};

pub(crate) use attempts::Attempt;
pub(crate) use view::Delivery;

use crate::state::State;

pub(crate) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(list::list_deliveries))
        .routes(routes!(get::get_delivery))
        .routes(routes!(attempts::list_attempts))
        .routes(routes!(retry::retry_delivery))
}
