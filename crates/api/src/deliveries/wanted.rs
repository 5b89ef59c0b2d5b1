//! Which deliveries a list is asked for.

use postrider_core::name::{EventType, Name};
use postrider_store::deliveries::{Filter, Status};
use serde::Deserialize;
use time::OffsetDateTime;
use utoipa::IntoParams;

use super::view::states;
use crate::{moment, page::Page, problem::Problem, request::parsed};

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
    /// Only deliveries of events accepted at this time or later (RFC 3339, with `+` written as %2B).
    #[serde(default, deserialize_with = "moment::in_query")]
    since: Option<OffsetDateTime>,
    /// Only deliveries of events accepted before this time (RFC 3339, with `+` written as %2B).
    #[serde(default, deserialize_with = "moment::in_query")]
    until: Option<OffsetDateTime>,
    /// Entries on a page, 50 unless given.
    #[param(minimum = 1, maximum = 250)]
    limit: Option<u16>,
    /// `nextCursor` of the page before.
    cursor: Option<String>,
}

impl Wanted {
    pub(super) fn page(&self) -> Result<Page, Problem> {
        Page::parse(self.limit, self.cursor.as_deref())
    }

    pub(super) fn filter(self) -> Filter {
        Filter {
            status: self.state,
            application: self.application_id,
            endpoint: self.endpoint_id,
            event_type: self.r#type,
            since: self.since,
            until: self.until,
        }
    }
}
