use postrider_core::name::{EventType, Name};
use postrider_store::{
    events::{self, Filter},
    page::begin_read,
};
use serde::Deserialize;
use time::OffsetDateTime;
use utoipa::IntoParams;

use super::Event;
use crate::{
    authenticate::Viewer,
    body::Json,
    page::{List, Page},
    problem::Problem,
    request::{Query, parsed},
    state::State,
};

/// Which events are wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wanted {
    /// Only events of this application.
    #[serde(default, deserialize_with = "parsed")]
    #[param(value_type = Option<String>)]
    application_id: Option<Name>,
    /// Only events of exactly this type.
    #[serde(default, deserialize_with = "parsed")]
    #[param(value_type = Option<String>)]
    r#type: Option<EventType>,
    /// Only events accepted at this time (RFC 3339) or later.
    #[serde(default, with = "time::serde::rfc3339::option")]
    since: Option<OffsetDateTime>,
    /// Only events accepted before this time (RFC 3339).
    #[serde(default, with = "time::serde::rfc3339::option")]
    until: Option<OffsetDateTime>,
    /// Entries on a page, 50 unless given.
    #[param(minimum = 1, maximum = 250)]
    limit: Option<u16>,
    /// `nextCursor` of the page before.
    cursor: Option<String>,
}

/// Lists events, newest first.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/events",
    tag = "Events",
    security(("managementToken" = ["viewer"])),
    responses((status = 200, description = "A page of events.", body = List<Event>)),
)]
pub(crate) async fn list_events(
    Viewer(caller): Viewer,
    state: State,
    Query(wanted): Query<Wanted>,
) -> Result<Json<List<Event>>, Problem> {
    let page = Page::parse(wanted.limit, wanted.cursor.as_deref())?;
    let filter = Filter {
        application: wanted.application_id,
        event_type: wanted.r#type,
        since: wanted.since,
        until: wanted.until,
    };
    let mut transaction = begin_read(&state.pool).await?;
    let rows = events::list(&mut transaction, caller.tenant_id, &filter, page.slice()).await?;
    Ok(Json(page.list(rows, |event| event.id.as_uuid(), Event::from)))
}
