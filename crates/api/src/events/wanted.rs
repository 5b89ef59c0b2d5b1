//! Which events a list is asked for.

use postrider_core::name::{EventType, Name};
use postrider_store::events::Filter;
use serde::Deserialize;
use time::OffsetDateTime;
use utoipa::IntoParams;

use crate::{moment, page::Page, problem::Problem, request::parsed};

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
    /// Only events accepted at this time or later (RFC 3339, with `+` written as %2B).
    #[serde(default, deserialize_with = "moment::in_query")]
    since: Option<OffsetDateTime>,
    /// Only events accepted before this time (RFC 3339, with `+` written as %2B).
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
            application: self.application_id,
            event_type: self.r#type,
            since: self.since,
            until: self.until,
        }
    }
}
