//! A replay as callers see it.

use postrider_core::id::ReplayId;
use postrider_store::replay::{self, Status};
use serde::Serialize;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use utoipa::{
    ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, Type},
};

use super::filter::Filter;
use crate::problem::Problem;

/// Many dead letters that are sent again together.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Replay {
    #[schema(value_type = String, example = "rpl_0192f3a0000070008000000000030000")]
    pub(super) id: ReplayId,
    #[schema(schema_with = states)]
    pub(super) state: &'static str,
    /// What was asked for.
    #[schema(value_type = Filter)]
    filter: Box<RawValue>,
    /// Letters that the preview saw.
    matches: u32,
    /// The preview saw as many letters as one replay holds. Others may match: preview again once this one is finished.
    more: bool,
    /// Letters that are back in the queue or were, whatever has become of them since.
    replayed: u32,
    skipped: Skipped,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    /// Until when it can be executed.
    #[serde(with = "time::serde::rfc3339")]
    expires_at: OffsetDateTime,
    #[schema(required)]
    #[serde(with = "time::serde::rfc3339::option")]
    started_at: Option<OffsetDateTime>,
    /// When it came to its end, was cancelled, or expired.
    #[schema(required)]
    #[serde(with = "time::serde::rfc3339::option")]
    finished_at: Option<OffsetDateTime>,
}

/// Letters that were left as they are since they were no longer as the preview saw them.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ReplaySkipped)]
pub(crate) struct Skipped {
    /// Open again, or delivered since: somebody else had sent them again.
    not_dead_lettered: u32,
    /// Sent again since by somebody else, and dead once more.
    died_again: u32,
    /// Their endpoint was deleted.
    endpoint_deleted: u32,
    /// Their event was erased.
    body_gone: u32,
    /// The registry no longer lists their application for their endpoint.
    not_listed: u32,
}

/// The words for a replay's state.
fn states() -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(Status::ALL.iter().map(|status| status.as_str())))
        .description(Some("Where the replay stands; `expired` means that nobody executed it in time."))
        .into()
}

impl TryFrom<replay::Replay> for Replay {
    type Error = Problem;

    fn try_from(replay: replay::Replay) -> Result<Self, Problem> {
        let skipped = replay.skipped;
        Ok(Self {
            id: replay.id,
            state: replay.status.as_str(),
            filter: RawValue::from_string(replay.filter).map_err(|error| Problem::internal(&error))?,
            matches: replay.matches,
            more: replay.is_full,
            replayed: replay.replayed,
            skipped: Skipped {
                not_dead_lettered: skipped.not_dead_lettered,
                died_again: skipped.died_again,
                endpoint_deleted: skipped.endpoint_deleted,
                body_gone: skipped.body_gone,
                not_listed: skipped.not_listed,
            },
            created_at: replay.created_at,
            expires_at: replay.expires_at,
            started_at: replay.started_at,
            finished_at: replay.ended_at,
        })
    }
}
