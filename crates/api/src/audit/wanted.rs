//! Which entries of the audit log a list is asked for.

use postrider_store::audit::{Action, Filter};
use serde::Deserialize;
use time::OffsetDateTime;
use utoipa::IntoParams;

use crate::{
    page::Page,
    problem::Problem,
    request::{moment, parsed},
};

/// Which entries are wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wanted {
    /// Only entries of this action, such as `endpoint.created`.
    #[serde(default, deserialize_with = "parsed")]
    #[param(value_type = Option<String>)]
    action: Option<Action>,
    /// Only what this key, user or application did, by its name or e-mail address.
    #[param(max_length = 254)]
    actor: Option<String>,
    /// Only entries of this time or later (RFC 3339, with `+` written as %2B).
    #[serde(default, deserialize_with = "moment")]
    since: Option<OffsetDateTime>,
    /// Only entries before this time (RFC 3339, with `+` written as %2B).
    #[serde(default, deserialize_with = "moment")]
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
        Filter { action: self.action, actor: self.actor, since: self.since, until: self.until }
    }
}
