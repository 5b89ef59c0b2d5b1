//! Which dead letters a replay is asked for.

use postrider_core::{
    id::DeliveryId,
    name::{EventTypePattern, Name},
    retry::DeadReason,
};
use postrider_store::{deliveries::Status, replay};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    change::{names_of_given, not_null},
    moment,
    problem::Problem,
};

/// Most letters that one replay can name one by one.
const MAX_IDS: usize = 1_000;

/// Which dead letters are wanted. What is left out asks nothing; an empty filter means all of the tenant's dead letters that
/// can be sent again. `null` is refused: what a script failed to fill in must not ask for everything.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = ReplayFilter)]
pub(crate) struct Filter {
    /// Only letters to this endpoint.
    #[serde(default, deserialize_with = "not_null", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false, example = "warehouse")]
    endpoint_id: Option<Name>,
    /// Only letters of this application's events.
    #[serde(default, deserialize_with = "not_null", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    application_id: Option<Name>,
    /// Only letters of events of this type: exact, a prefix such as `order.*`, or `*`.
    #[serde(default, deserialize_with = "not_null", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false, example = "order.*")]
    r#type: Option<EventTypePattern>,
    /// `dead_lettered`: nothing else can be replayed.
    #[serde(default, deserialize_with = "not_null", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    state: Option<String>,
    /// Only letters that died of this: `rejected`, `attempts_exhausted`, `deadline_passed` or `endpoint_gone`.
    #[serde(default, deserialize_with = "not_null", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    dead_reason: Option<String>,
    /// Only letters of events accepted at this time or later.
    #[serde(
        default,
        deserialize_with = "moment::in_body",
        serialize_with = "time::serde::rfc3339::option::serialize",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(nullable = false)]
    since: Option<OffsetDateTime>,
    /// Only letters of events accepted before this time.
    #[serde(
        default,
        deserialize_with = "moment::in_body",
        serialize_with = "time::serde::rfc3339::option::serialize",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(nullable = false)]
    until: Option<OffsetDateTime>,
    /// Only these letters.
    #[serde(default, deserialize_with = "not_null", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<String>, required = false, min_items = 1, max_items = 1_000)]
    ids: Option<Vec<DeliveryId>>,
}

impl Filter {
    /// # Errors
    /// `422` for what no replay can do.
    pub(super) fn check(&self) -> Result<replay::Filter, Problem> {
        if self.state.as_deref().is_some_and(|state| state != Status::DeadLettered.as_str()) {
            return Err(Problem::invalid_field(
                "filter.state",
                "only dead letters can be replayed: leave it out, or say `dead_lettered`",
            ));
        }
        if self.ids.as_ref().is_some_and(|ids| !(1..=MAX_IDS).contains(&ids.len())) {
            return Err(Problem::invalid_field(
                "filter.ids",
                format!("a replay names 1 to {MAX_IDS} deliveries"),
            ));
        }
        Ok(replay::Filter {
            application: self.application_id.clone(),
            endpoint: self.endpoint_id.clone(),
            event_types: self.r#type.clone(),
            dead_reason: self.dead_reason.as_deref().map(replayable).transpose()?,
            since: self.since,
            until: self.until,
            ids: self.ids.clone(),
        })
    }

    /// The fields that were given, for the audit log.
    pub(super) fn fields(&self) -> Vec<&'static str> {
        names_of_given([
            ("endpointId", self.endpoint_id.is_some()),
            ("applicationId", self.application_id.is_some()),
            ("type", self.r#type.is_some()),
            ("state", self.state.is_some()),
            ("deadReason", self.dead_reason.is_some()),
            ("since", self.since.is_some()),
            ("until", self.until.is_some()),
            ("ids", self.ids.is_some()),
        ])
    }
}

fn replayable(text: &str) -> Result<DeadReason, Problem> {
    text.parse().ok().filter(|reason: &DeadReason| reason.is_replayable()).ok_or_else(|| {
        Problem::invalid_field(
            "filter.deadReason",
            "what can be replayed is `rejected`, `attempts_exhausted`, `deadline_passed` or `endpoint_gone`",
        )
    })
}
