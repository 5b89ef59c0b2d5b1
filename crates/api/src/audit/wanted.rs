//! Which entries of the audit log a list is asked for.

use std::str::FromStr;

use postrider_store::audit::{Action, Filter, People};
use serde::Deserialize;
use time::OffsetDateTime;
use utoipa::IntoParams;

use crate::{moment, page::Page, problem::Problem, request::parsed};

/// The longest that an actor can have, an e-mail address.
const MAX_ACTOR_LENGTH: usize = 254;

/// What an actor may be called: anything else would be asked of the database for nothing, or refused by it.
#[derive(Debug)]
struct ActorName(String);

impl FromStr for ActorName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_name = text.len() <= MAX_ACTOR_LENGTH && text.bytes().all(|byte| byte.is_ascii_graphic());
        // Names and e-mail addresses are kept in lower case.
        if is_name {
            Ok(Self(text.to_ascii_lowercase()))
        } else {
            Err("an actor is a name or an e-mail address")
        }
    }
}

/// Which entries are wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wanted {
    /// Only entries of this action, such as `endpoint.created`.
    #[serde(default, deserialize_with = "parsed")]
    #[param(value_type = Option<String>)]
    action: Option<Action>,
    /// Only what this key, user or application did, by its name or, for owners, its e-mail address.
    #[serde(default, deserialize_with = "parsed")]
    #[param(value_type = Option<String>, max_length = 254)]
    actor: Option<ActorName>,
    /// Only entries of this time or later (RFC 3339, with `+` written as %2B).
    #[serde(default, deserialize_with = "moment::in_query")]
    since: Option<OffsetDateTime>,
    /// Only entries before this time (RFC 3339, with `+` written as %2B).
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

    pub(super) fn filter(self, people: People) -> Filter {
        Filter {
            action: self.action,
            actor: self.actor.map(|ActorName(name)| name),
            since: self.since,
            until: self.until,
            people,
        }
    }
}
