use postrider_core::{destination::Destination, header::CustomHeaders, name::Name, retry::Policy};
use postrider_store::{
    audit::{self, Action, Target},
    endpoints::{self, DisabledReason, Settings},
};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{
    Endpoint, address,
    asking::{self, CodeTexts, MethodWord},
    credential,
    headers::{self, HeaderChanges, Owner},
    limits::{self, RateChanges, RetryChanges},
    policy,
    view::methods,
};
use crate::{
    authenticate::Developer,
    body::{Json, MergePatch},
    change::{Change, names_of_given, not_null},
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
    /// With which HTTP method requests are made.
    #[serde(default)]
    #[schema(schema_with = methods, required = false)]
    method: Change<MethodWord>,
    /// Which statuses count as success, as codes and ranges within 200 to 299 and 400 to 499. 408, 410,
    /// 425 and 429 always mean something else, and a redirect is never followed.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>, example = json!(["200-299", "409"]))]
    success_codes: Change<CodeTexts>,
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
    /// Headers to set, or with `null` to remove; the others stay. When the URL changes, every header must be named here.
    #[serde(default)]
    #[schema(value_type = Option<std::collections::BTreeMap<String, Option<String>>>)]
    headers: Change<HeaderChanges>,
    /// The name of the tenant's credential that requests carry. Only an owner can give one, together with the URL that it
    /// is for. When the URL changes, it must be named again.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "sms-api")]
    credential: Change<Name>,
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
    responses(
        (status = 200, description = "The endpoint as it is now.", body = Endpoint),
        (status = 403, description = "`forbidden`: too small a role. `approved_only`: the tenant's endpoints come from the \
            operator's registry alone, so their URLs do not change here."),
        (status = 409, description = "`endpoint_approved`: the operator's registry declares the endpoint, and more than \
            `enabled` was given."),
    ),
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
    let mut edit = caller.edit(&state).await?;
    let credential =
        credential::find(body.credential.clone(), body.url.is_some(), &mut edit, &caller).await?;
    let mut endpoint = endpoints::lock_by_name(&mut edit, caller.tenant_id, &name).await?;
    let owner = Owner { tenant_id: caller.tenant_id, endpoint_id: endpoint.id };
    if body.is_about_settings() {
        policy::may_change(&endpoint)?;
    }
    if body.url.is_some() {
        policy::may_choose_url(&mut edit, &caller).await?;
    }
    let mut settings = body.apply(&endpoint.settings, destination.as_ref(), owner, &state)?;
    settings.credential_id = credential.map(Some).apply(settings.credential_id, None);
    let mut is_changed = false;
    if settings != endpoint.settings {
        is_changed = true;
        credential::require_room(&settings, owner, &mut edit, &state).await?;
        endpoint = endpoints::update(&mut edit, caller.tenant_id, endpoint.id, &settings, None).await?;
        if body.url.is_some() {
            // Again, now that whoever changes the policy waits: it may have changed before the lock came.
            policy::may_choose_url(&mut edit, &caller).await?;
        }
    }
    if let Some(enabled) = body.enabled.filter(|enabled| *enabled != endpoint.disabled.is_none()) {
        is_changed = true;
        let reason = if enabled { None } else { Some(DisabledReason::Requested) };
        endpoint = endpoints::set_disabled(&mut edit, caller.tenant_id, endpoint.id, reason).await?;
    }
    if is_changed {
        let target = Target::new("endpoint", endpoint.id, &endpoint.name);
        edit.commit(audit::Change { action: Action::EndpointChanged, target, fields: &body.fields() })
            .await?;
    }
    Endpoint::new(endpoint, &caller, &state).map(Json)
}

impl Body {
    /// Whether anything but `enabled` was given.
    fn is_about_settings(&self) -> bool {
        self.fields().iter().any(|field| *field != "enabled")
    }

    /// What was given, for the audit log.
    fn fields(&self) -> Vec<&'static str> {
        names_of_given([
            ("enabled", self.enabled.is_some()),
            ("url", self.url.is_some()),
            ("retry", self.retry.is_given()),
            ("rateLimit", self.rate_limit.is_given()),
            ("maxInFlight", self.max_in_flight.is_given()),
            ("timeoutMs", self.timeout_ms.is_given()),
            ("headers", self.headers.is_given()),
            ("method", self.method.is_given()),
            ("successCodes", self.success_codes.is_given()),
            ("credential", self.credential.is_given()),
        ])
    }

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
        let is_elsewhere = url != current.url;
        credential::require_named(&self.credential, current.credential_id, is_elsewhere)?;
        Ok(Settings {
            sealed_headers: self.headers(current, is_elsewhere, owner, state)?,
            url,
            sealed_query: current.sealed_query.clone(),
            method: asking::method(&self.method, current.method)?,
            success_codes: asking::success_codes(&self.success_codes, current.success_codes)?,
            credential_id: current.credential_id,
            timeout: limits::timeout(self.timeout_ms, current.timeout)?,
            max_in_flight: limits::max_in_flight(self.max_in_flight, current.max_in_flight)?,
            rate,
            retry,
        })
    }

    fn headers(
        &self,
        current: &Settings,
        is_elsewhere: bool,
        owner: Owner,
        state: &State,
    ) -> Result<Option<Vec<u8>>, Problem> {
        let kept = headers::open(owner, current.sealed_headers.as_deref(), state)?;
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
