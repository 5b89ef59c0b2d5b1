use postrider_core::name::{EventType, Name};
use postrider_store::{
    deliveries::{self, Filter, Status},
    page::begin_read,
};
use serde::Deserialize;
use time::OffsetDateTime;
use utoipa::IntoParams;

use super::{Delivery, view::states};
use crate::{
    authenticate::Viewer,
    body::Json,
    page::{List, Page},
    problem::Problem,
    request::{Query, parsed},
    state::State,
};

/// Which deliveries are wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wanted {
    /// Only deliveries in this state.
    #[serde(default, deserialize_with = "parsed")]
    #[param(schema_with = states, required = false)]
    state: Option<Status>,
    /// Only deliveries to this endpoint.
    #[serde(default, deserialize_with = "parsed")]
    #[param(value_type = Option<String>)]
    endpoint_id: Option<Name>,
    /// Only deliveries of this application's events.
    #[serde(default, deserialize_with = "parsed")]
    #[param(value_type = Option<String>)]
    application_id: Option<Name>,
    /// Only deliveries of events of exactly this type.
    #[serde(default, deserialize_with = "parsed")]
    #[param(value_type = Option<String>)]
    r#type: Option<EventType>,
    /// Only deliveries of events accepted at this time (RFC 3339) or later.
    #[serde(default, with = "time::serde::rfc3339::option")]
    since: Option<OffsetDateTime>,
    /// Only deliveries of events accepted before this time (RFC 3339).
    #[serde(default, with = "time::serde::rfc3339::option")]
    until: Option<OffsetDateTime>,
    /// Entries on a page, 50 unless given.
    #[param(minimum = 1, maximum = 250)]
    limit: Option<u16>,
    /// `nextCursor` of the page before.
    cursor: Option<String>,
}

/// Lists deliveries, open and ended ones alike, newest event first.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/deliveries",
    tag = "Deliveries",
    security(("managementToken" = ["viewer"])),
    responses((status = 200, description = "A page of deliveries.", body = List<Delivery>)),
)]
pub(crate) async fn list_deliveries(
    Viewer(caller): Viewer,
    state: State,
    Query(wanted): Query<Wanted>,
) -> Result<Json<List<Delivery>>, Problem> {
    let page = Page::parse(wanted.limit, wanted.cursor.as_deref())?;
    let filter = Filter {
        status: wanted.state,
        application: wanted.application_id,
        endpoint: wanted.endpoint_id,
        event_type: wanted.r#type,
        since: wanted.since,
        until: wanted.until,
    };
    let mut transaction = begin_read(&state.pool).await?;
    let rows = deliveries::list(&mut transaction, caller.tenant_id, &filter, page.slice()).await?;
    Ok(Json(page.list(rows, |delivery| delivery.id.as_uuid(), Delivery::from)))
}
