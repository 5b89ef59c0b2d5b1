use http::StatusCode;
use postrider_core::id::ReplayId;
use postrider_store::{
    audit::{self, Action, Target},
    deliveries,
    replay::{self, Error, MAX_LETTERS, NewReplay},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Replay, filter::Filter};
use crate::{
    authenticate::Developer, body::Json, database::list_failed, deliveries::Delivery, object::Object,
    problem::Problem, state::State,
};

/// Letters that a preview shows.
const SAMPLE: u16 = 10;

/// A replay to preview.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = NewReplay)]
pub(crate) struct Body {
    #[schema(value_type = Filter)]
    filter: Object<Filter>,
}

/// What a replay would send again.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ReplayPreview)]
pub(crate) struct Preview {
    #[serde(flatten)]
    replay: Replay,
    /// The oldest of the letters.
    #[schema(max_items = 10)]
    sample: Vec<Delivery>,
}

/// Previews a replay.
///
/// Finds the dead letters that match and can be sent again, a million at most, the oldest first, and remembers them as they
/// are now. Nothing is sent before the replay is executed, which is possible for an hour and then brings back exactly the
/// letters that were found here: not what dies later, and not what somebody else has sent again meanwhile.
#[utoipa::path(
    post,
    path = "/api/tenants/{tenant}/replays",
    tag = "Replays",
    security(("managementToken" = ["developer"])),
    request_body = Body,
    responses(
        (status = 201, description = "What was found.", body = Preview),
        (status = 409, description = "`limit_reached`: 10 replays are previewed or running, or what 30 that are \
            over had found is still being removed."),
        (status = 503, description = "`unavailable`: it takes too long to find the letters; narrow the filter, for example \
            by time."),
    ),
)]
pub(crate) async fn create_replay(
    Developer(caller): Developer,
    state: State,
    Json(body): Json<Body>,
) -> Result<(StatusCode, Json<Preview>), Problem> {
    let Object(filter) = body.filter;
    let wanted = filter.check()?;
    let filter_text = serde_json::to_string(&filter).map_err(|error| Problem::internal(&error))?;
    let id = ReplayId::from_uuid(state.fresh_uuid());
    let new = NewReplay { id, filter: &wanted, filter_text: &filter_text, most: MAX_LETTERS };
    let mut edit = caller.edit(&state).await?;
    let (replay, oldest) =
        replay::preview(&mut edit, caller.tenant_id, new, SAMPLE).await.map_err(|error| match error {
            Error::Database(error) => list_failed(error),
            error => error.into(),
        })?;
    let mut sample = Vec::with_capacity(oldest.len());
    for id in oldest {
        sample.extend(deliveries::get(&mut edit, caller.tenant_id, id).await?.map(Delivery::from));
    }
    let target = Target::of_id("replay", id);
    edit.commit(audit::Change { action: Action::ReplayPreviewed, target, fields: &filter.fields() }).await?;
    Ok((StatusCode::CREATED, Json(Preview { replay: replay.try_into()?, sample })))
}
