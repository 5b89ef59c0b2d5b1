//! Endpoints: destinations with a URL, and how requests to them are made.

mod address;
mod asking;
mod create;
mod credential;
mod delete;
mod get;
pub(crate) mod headers;
mod limits;
mod list;
mod policy;
mod rotate_secret;
mod update;
mod view;

use utoipa_axum::{router::OpenApiRouter, routes};

pub(crate) use address::check_field as check_url;
pub(crate) use view::{Endpoint, WithSecret};

use crate::state::State;

pub(crate) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(list::list_endpoints, create::create_endpoint))
        .routes(routes!(get::get_endpoint, update::update_endpoint, delete::delete_endpoint))
        .routes(routes!(rotate_secret::rotate_endpoint_secret))
}
