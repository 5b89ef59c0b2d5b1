//! An endpoint as callers see it: never a secret, a header's value or a URL's query.

use postrider_core::{header::CustomHeaders, id::SigningKeyId, method::Method, name::Name, retry::Policy};
use postrider_store::endpoints;
use serde::Serialize;
use time::OffsetDateTime;
use utoipa::{
    ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, Type},
};

use super::{
    asking,
    headers::{self, Owner},
};
use crate::{authenticate::Management, problem::Problem, secret, state::State};

/// A destination of requests.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Endpoint {
    #[schema(value_type = String, example = "warehouse")]
    id: Name,
    /// Without its query, where it has one.
    #[schema(example = "https://example.com/hooks")]
    url: String,
    enabled: bool,
    /// Why it is disabled: `requested` by a person, or `gone` because the receiver answered 410.
    #[schema(required, value_type = Option<String>)]
    disabled_reason: Option<&'static str>,
    /// Declared by the operator's registry, which alone changes it.
    approved: bool,
    #[schema(schema_with = methods)]
    method: &'static str,
    /// Which statuses count as success.
    #[schema(example = json!(["200-299"]))]
    success_codes: Vec<String>,
    #[schema(schema_with = algorithms)]
    signing: &'static str,
    /// The key that new deliveries are signed under, as receivers see it in `Postrider-Key-Id`.
    #[schema(value_type = String, example = "sig_0192f3a0000070008000000000020000")]
    key_id: SigningKeyId,
    /// The key before the last rotation, while requests are signed under it too.
    #[schema(required, value_type = Option<String>)]
    previous_key_id: Option<SigningKeyId>,
    /// Until when requests are signed under the previous key too.
    #[schema(required)]
    #[serde(with = "time::serde::rfc3339::option")]
    overlap_until: Option<OffsetDateTime>,
    retry: Retry,
    /// Null: no limit.
    #[schema(required)]
    rate_limit: Option<RateLimit>,
    /// Most requests at a time.
    max_in_flight: u16,
    /// Longest time for one request, in milliseconds.
    timeout_ms: u64,
    /// The name of the credential that requests carry.
    #[schema(required, value_type = Option<String>)]
    credential: Option<Name>,
    /// Names of the custom request headers; their values are not shown.
    headers: Vec<String>,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    updated_at: OffsetDateTime,
}

/// When to try again, and when to give up.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = RetryPolicy)]
pub(crate) struct Retry {
    max_attempts: u16,
    /// Longest time from acceptance to the last attempt, in seconds.
    max_age_seconds: u64,
    /// Delay before the second attempt, in milliseconds; doubles with each one.
    initial_delay_ms: u64,
    /// Longest delay between attempts, in milliseconds.
    max_delay_ms: u64,
}

/// How many requests may be made in a time.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RateLimit {
    /// Requests per second.
    per_second: f64,
    /// Requests that may be made at once after a pause.
    burst: u32,
}

/// An endpoint and its new signing secret.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = EndpointWithSecret)]
pub(crate) struct WithSecret {
    #[serde(flatten)]
    pub(super) endpoint: Endpoint,
    /// What receivers verify requests with: the shared secret (`whsec_…`), or with `ed25519` the public key (`whpk_…`).
    /// Shown this once.
    #[schema(value_type = String, example = "whsec_…")]
    pub(super) signing_secret: secret::Shown,
}

/// The words for a signing algorithm.
pub(super) fn algorithms() -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(["hmac-sha256", "ed25519"]))
        .description(Some("How requests are signed (Standard Webhooks `v1` and `v1a`)."))
        .into()
}

/// The words for a method.
pub(super) fn methods() -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(Method::ALL.map(Method::as_str)))
        .description(Some("With which HTTP method requests are made."))
        .into()
}

impl Endpoint {
    pub(super) fn new(
        endpoint: endpoints::Endpoint,
        caller: &Management,
        state: &State,
    ) -> Result<Self, Problem> {
        let owner = Owner { tenant_id: caller.tenant_id, endpoint_id: endpoint.id };
        let headers = headers::open(owner, endpoint.settings.sealed_headers.as_deref(), state)?;
        let now = (state.now)();
        let previous = endpoint.previous_key.filter(|previous| previous.overlap_until > now);
        let settings = endpoint.settings;
        Ok(Self {
            id: endpoint.name,
            url: settings.url,
            enabled: endpoint.disabled.is_none(),
            disabled_reason: endpoint.disabled.map(endpoints::DisabledReason::as_str),
            approved: endpoint.approval.is_some(),
            method: settings.method.as_str(),
            success_codes: asking::shown(settings.success_codes),
            signing: endpoint.algorithm.as_str(),
            key_id: endpoint.signing_key_id,
            previous_key_id: previous.map(|previous| previous.id),
            overlap_until: previous.map(|previous| previous.overlap_until),
            retry: settings.retry.into(),
            rate_limit: settings
                .rate
                .map(|rate| RateLimit { per_second: rate.per_second, burst: rate.burst.get() }),
            max_in_flight: settings.max_in_flight.get(),
            timeout_ms: milliseconds(settings.timeout),
            credential: endpoint.credential,
            headers: names(&headers),
            created_at: endpoint.created_at,
            updated_at: endpoint.updated_at,
        })
    }
}

impl From<Policy> for Retry {
    fn from(policy: Policy) -> Self {
        Self {
            max_attempts: policy.max_attempts(),
            max_age_seconds: policy.max_age().as_secs(),
            initial_delay_ms: milliseconds(policy.initial_delay()),
            max_delay_ms: milliseconds(policy.max_delay()),
        }
    }
}

fn names(headers: &CustomHeaders) -> Vec<String> {
    let mut names: Vec<String> = headers.names().map(str::to_owned).collect();
    names.sort_unstable();
    names
}

fn milliseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
