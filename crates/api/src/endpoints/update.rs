use postrider_core::{destination::Destination, header::CustomHeaders, name::Name, retry::Policy};
use postrider_store::{
    edit,
    endpoints::{self, DisabledReason, Settings},
};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{
    Endpoint, address,
    headers::{self, HeaderChanges, Owner},
    limits::{self, RateChanges, RetryChanges},
};
use crate::{
    authenticate::Developer,
    body::{Json, MergePatch},
    change::{Change, not_null},
    object,
    problem::Problem,
    request::InPath,
    state::State,
};

/// What to change about an endpoint. What is left out stays as it is; `null` brings a setting back to its default.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = EndpointPatch)]
pub(crate) struct Body {
    /// A disabled endpoint gets no new deliveries; its open ones wait until it is enabled or their deadline.
    #[serde(default, deserialize_with = "not_null")]
    #[schema(nullable = false)]
    enabled: Option<bool>,
    #[serde(default, deserialize_with = "not_null")]
    #[schema(nullable = false, example = "https://example.com/hooks", max_length = 2048)]
    url: Option<String>,
    #[serde(default, deserialize_with = "object::changed")]
    #[schema(value_type = Option<RetryChanges>)]
    retry: Change<RetryChanges>,
    #[serde(default, deserialize_with = "object::changed")]
    #[schema(value_type = Option<RateChanges>)]
    rate_limit: Change<RateChanges>,
    /// Most requests at a time.
    #[serde(default)]
    #[schema(value_type = Option<u16>, minimum = 1, maximum = 1000)]
    max_in_flight: Change<u16>,
    /// Longest time for one request, in milliseconds.
    #[serde(default)]
    #[schema(value_type = Option<u32>, minimum = 100, maximum = 60_000)]
    timeout_ms: Change<u32>,
    /// Headers to set, or with `null` to remove; the others stay. When the URL changes to another host, every header
    /// must be named here.
    #[serde(default)]
    #[schema(value_type = Option<std::collections::BTreeMap<String, Option<String>>>)]
    headers: Change<HeaderChanges>,
}

/// Changes an endpoint.
///
/// Deliveries that are already queued are sent by the new settings.
#[utoipa::path(
    patch,
    path = "/api/tenants/{tenant}/endpoints/{endpoint}",
    tag = "Endpoints",
    security(("managementToken" = ["developer"])),
    request_body(
        content((Body = "application/merge-patch+json"), (Body = "application/json")),
        description = "A JSON merge patch (RFC 7396).",
    ),
    responses((status = 200, description = "The endpoint as it is now.", body = Endpoint)),
)]
pub(crate) async fn update_endpoint(
    Developer(caller): Developer,
    state: State,
    InPath(name): InPath<Name>,
    MergePatch(body): MergePatch<Body>,
) -> Result<Json<Endpoint>, Problem> {
    // Before the transaction: a lookup may take seconds.
    let destination = match &body.url {
        Some(url) => Some(address::check(url, &state).await?),
        None => None,
    };
    let mut transaction = edit::begin(&state.pool).await?;
    let mut endpoint = endpoints::lock_by_name(&mut transaction, caller.tenant_id, &name).await?;
    let owner = Owner { tenant_id: caller.tenant_id, endpoint_id: endpoint.id };
    let settings = body.apply(&endpoint.settings, destination.as_ref(), owner, &state)?;
    if settings != endpoint.settings {
        endpoint = endpoints::update(&mut transaction, caller.tenant_id, endpoint.id, &settings).await?;
    }
    if let Some(enabled) = body.enabled.filter(|enabled| *enabled != endpoint.disabled.is_none()) {
        let reason = if enabled { None } else { Some(DisabledReason::Requested) };
        endpoint = endpoints::set_disabled(&mut transaction, caller.tenant_id, endpoint.id, reason).await?;
    }
    transaction.commit().await?;
    Endpoint::new(endpoint, &caller, &state).map(Json)
}

impl Body {
    fn apply(
        &self,
        current: &Settings,
        destination: Option<&Destination>,
        owner: Owner,
        state: &State,
    ) -> Result<Settings, Problem> {
        let retry = match &self.retry {
            Change::Keep => current.retry,
            Change::Remove => Policy::DEFAULT,
            Change::Set(changes) => changes.apply(current.retry)?,
        };
        let rate = match &self.rate_limit {
            Change::Keep => current.rate,
            Change::Remove => None,
            Change::Set(changes) => Some(changes.apply(current.rate)?),
        };
        let url = destination.map_or_else(|| current.url.clone(), Destination::to_stored);
        Ok(Settings {
            sealed_headers: self.headers(current, destination, owner, state)?,
            url,
            timeout: limits::timeout(self.timeout_ms, current.timeout)?,
            max_in_flight: limits::max_in_flight(self.max_in_flight, current.max_in_flight)?,
            rate,
            retry,
        })
    }

    fn headers(
        &self,
        current: &Settings,
        destination: Option<&Destination>,
        owner: Owner,
        state: &State,
    ) -> Result<Option<Vec<u8>>, Problem> {
        let kept = headers::open(owner, current, state)?;
        let is_elsewhere = destination.is_some_and(|destination| !leads_there(&current.url, destination));
        match &self.headers {
            Change::Keep if is_elsewhere => {
                HeaderChanges::default().require_all_of(&kept)?;
                Ok(current.sealed_headers.clone())
            }
            Change::Keep => Ok(current.sealed_headers.clone()),
            Change::Remove => headers::seal(owner, &CustomHeaders::default(), state),
            Change::Set(changes) => {
                if is_elsewhere {
                    changes.require_all_of(&kept)?;
                }
                headers::seal(owner, &changes.apply(&kept)?, state)
            }
        }
    }
}

/// Whether a stored URL has the origin of a new one. Stored URLs are written by `Destination::to_stored`, so the
/// origin's text is what they begin with.
fn leads_there(stored: &str, destination: &Destination) -> bool {
    stored.strip_prefix(&destination.origin().to_string()).is_some_and(|rest| rest.starts_with('/'))
}
