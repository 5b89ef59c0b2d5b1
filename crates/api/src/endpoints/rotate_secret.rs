use postrider_core::{name::Name, problem::Code, signature::Algorithm};
use postrider_store::{
    audit::{Action, Change, Target},
    endpoints,
    signing_keys::NewSigningKey,
};
use serde::Deserialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use utoipa::ToSchema;

use super::{Endpoint, WithSecret, view::algorithms};
use crate::{
    authenticate::Developer,
    body::Json,
    change::not_null,
    problem::Problem,
    request::{InPath, parsed},
    secret,
    state::State,
};

/// Longest overlap of two keys, in seconds (30 days).
const MAX_OVERLAP_SECONDS: u32 = 30 * 24 * 60 * 60;

/// How to rotate.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = SecretRotation)]
pub(crate) struct Body {
    /// How long requests are also signed under the old key, in seconds. Unless given, as long as a delivery to this
    /// endpoint may stay open. With 0 the old key signs only what was accepted under it.
    #[serde(default, deserialize_with = "not_null")]
    #[schema(nullable = false, minimum = 0, maximum = 2_592_000)]
    overlap_seconds: Option<u32>,
    #[serde(default, deserialize_with = "parsed")]
    #[schema(schema_with = algorithms, required = false)]
    signing: Option<Algorithm>,
    /// Rotate although the overlap of the last rotation still runs. The key it promised is given up at once, so
    /// receivers that still hold it refuse what is accepted from now on.
    #[serde(default)]
    force: bool,
}

/// Replaces an endpoint's signing secret.
///
/// Deliveries that are already queued stay signed under the key they were accepted under; `Postrider-Key-Id` tells the
/// receiver which. The body may be left out.
///
/// While the overlap of the last rotation runs, another one is refused unless `force` is set: it would cut off
/// receivers that still hold the key before, and a repeated request is no reason to.
#[utoipa::path(
    post,
    path = "/api/tenants/{tenant}/endpoints/{endpoint}/rotate-secret",
    tag = "Endpoints",
    security(("managementToken" = ["developer"])),
    request_body = Option<Body>,
    responses(
        (status = 200, description = "Replaced. The new secret is shown this once.", body = WithSecret),
        (status = 409, description = "`overlap_running`: the overlap of the last rotation still runs; `detail` says until when."),
    ),
)]
pub(crate) async fn rotate_endpoint_secret(
    Developer(caller): Developer,
    state: State,
    InPath(name): InPath<Name>,
    body: Option<Json<Body>>,
) -> Result<Json<WithSecret>, Problem> {
    let body = body.map(|Json(body)| body).unwrap_or_default();
    if body.overlap_seconds.is_some_and(|seconds| seconds > MAX_OVERLAP_SECONDS) {
        return Err(Problem::invalid_field(
            "overlapSeconds",
            format!("a number from 0 to {MAX_OVERLAP_SECONDS}"),
        ));
    }
    let mut edit = caller.edit(&state).await?;
    let current = endpoints::lock_by_name(&mut edit, caller.tenant_id, &name).await?;
    if !body.force
        && let Some(until) = endpoints::overlap_running(&mut edit, caller.tenant_id, current.id).await?
    {
        return Err(overlap_running(until));
    }
    let algorithm = body.signing.unwrap_or(current.algorithm);
    let key = secret::generate_signing_key(algorithm, caller.tenant_id, &state)?;
    let new = NewSigningKey { id: key.id, algorithm, sealed_secret: &key.sealed_secret };
    let longest_open =
        u32::try_from(current.settings.retry.max_age().as_secs()).unwrap_or(MAX_OVERLAP_SECONDS);
    let overlap_seconds = body.overlap_seconds.unwrap_or(longest_open);
    let rotated =
        endpoints::rotate_secret(&mut edit, caller.tenant_id, current.id, new, overlap_seconds).await?;
    let target = Target::new("endpoint", rotated.id, &rotated.name);
    edit.commit(Change::whole(Action::EndpointSecretRotated, target)).await?;
    let endpoint = Endpoint::new(rotated, &caller, &state)?;
    Ok(Json(WithSecret { endpoint, signing_secret: key.shown }))
}

fn overlap_running(until: OffsetDateTime) -> Problem {
    // Every time that the database can hold here has a year of four digits.
    let until = until.format(&Rfc3339).unwrap_or_default();
    Problem::new(
        Code::OverlapRunning,
        format!(
            "The secret was rotated not long ago, and receivers may use the key before it until {until}. Wait until \
             then, or send `\"force\": true` to give that key up now."
        ),
    )
}
