use http::StatusCode;
use postrider_core::{
    header::CustomHeaders, id::EndpointId, method::Method, name::Name, retry::Policy, signature::Algorithm,
    success_codes::SuccessCodes,
};
use postrider_store::{
    audit::{self, Action, Target},
    endpoints::{self, NewEndpoint, Settings},
    signing_keys::NewSigningKey,
};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{
    Endpoint, WithSecret, address,
    asking::{self, CodeTexts, MethodWord},
    credential,
    headers::{self, HeaderChanges, Owner},
    limits::{self, RateChanges, RetryChanges},
    policy,
    view::{algorithms, methods},
};
use crate::{
    authenticate::Developer,
    body::Json,
    change::{Change, names_of_given, not_null},
    object,
    problem::Problem,
    request::parsed,
    secret,
    state::State,
};

/// An endpoint to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = NewEndpoint)]
pub(crate) struct Body {
    /// The endpoint's name: lower-case letters, digits, `-` and `_`.
    #[schema(value_type = String, example = "warehouse", min_length = 1, max_length = 64)]
    id: Name,
    /// `https://`, a public host, no user name, no fragment and no query.
    #[schema(example = "https://example.com/hooks", max_length = 2048)]
    url: String,
    #[serde(default, deserialize_with = "parsed")]
    #[schema(schema_with = algorithms, required = false)]
    signing: Option<Algorithm>,
    /// `POST` unless given.
    #[serde(default)]
    #[schema(schema_with = methods, required = false)]
    method: Change<MethodWord>,
    /// Which statuses count as success, as codes and ranges within 200 to 299 and 400 to 499; `200-299` unless given. 408,
    /// 410, 425 and 429 always mean something else, and a redirect is never followed.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>, example = json!(["200-299", "409"]))]
    success_codes: Change<CodeTexts>,
    #[serde(default, deserialize_with = "object::given")]
    #[schema(nullable = false)]
    retry: Option<RetryChanges>,
    /// No limit unless given.
    #[serde(default, deserialize_with = "object::changed")]
    #[schema(value_type = Option<RateChanges>)]
    rate_limit: Change<RateChanges>,
    /// Most requests at a time, 32 unless given.
    #[serde(default)]
    #[schema(value_type = Option<u16>, minimum = 1, maximum = 1000)]
    max_in_flight: Change<u16>,
    /// Longest time for one request, in milliseconds; 15 seconds unless given.
    #[serde(default)]
    #[schema(value_type = Option<u32>, minimum = 100, maximum = 60_000)]
    timeout_ms: Change<u32>,
    /// Custom request headers. The values are stored sealed and never shown again.
    #[serde(default, deserialize_with = "not_null")]
    #[schema(value_type = std::collections::BTreeMap<String, String>, required = false)]
    headers: Option<HeaderChanges>,
    /// The name of the tenant's credential that requests carry. Only an owner can give one.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "sms-api")]
    credential: Change<Name>,
}

/// Creates an endpoint.
///
/// The answer holds its signing secret. The URL's host is looked up; an address that deliveries may not reach refuses
/// the URL, and a host without an address is accepted.
#[utoipa::path(
    post,
    path = "/api/tenants/{tenant}/endpoints",
    tag = "Endpoints",
    security(("managementToken" = ["developer"])),
    request_body = Body,
    responses(
        (status = 201, description = "Created. The signing secret is shown this once.", body = WithSecret),
        (status = 409, description = "`name_taken`: the tenant has an endpoint of this id. \
            `limit_reached`: it has 10,000 endpoints."),
        (status = 403, description = "`forbidden`: too small a role. `approved_only`: the tenant's endpoints come from the \
            operator's registry alone."),
    ),
)]
pub(crate) async fn create_endpoint(
    Developer(caller): Developer,
    state: State,
    Json(body): Json<Body>,
) -> Result<(StatusCode, Json<WithSecret>), Problem> {
    let id = EndpointId::from_uuid(state.fresh_uuid());
    let owner = Owner { tenant_id: caller.tenant_id, endpoint_id: id };
    let mut settings = settings(&body, owner, &state).await?;
    let algorithm = body.signing.unwrap_or(Algorithm::HmacSha256);
    let key = secret::generate_signing_key(algorithm, caller.tenant_id, &state)?;
    let mut edit = caller.edit(&state).await?;
    policy::may_choose_url(&mut edit, &caller).await?;
    settings.credential_id = credential::find(body.credential.clone(), true, &mut edit, &caller)
        .await?
        .map(Some)
        .apply(None, None);
    credential::require_room(&settings, owner, &mut edit, &state).await?;
    let endpoint = NewEndpoint {
        id,
        name: &body.id,
        settings: &settings,
        approval: None,
        key: NewSigningKey { id: key.id, algorithm, sealed_secret: &key.sealed_secret },
    };
    endpoints::lock_plans_of_new(&mut edit, caller.tenant_id, id).await?;
    // Again, now that whoever changes the policy waits: it may have changed before the lock came.
    policy::may_choose_url(&mut edit, &caller).await?;
    let created = endpoints::create(&mut edit, caller.tenant_id, endpoint).await?;
    let target = Target::new("endpoint", created.id, &created.name);
    edit.commit(audit::Change { action: Action::EndpointCreated, target, fields: &body.fields() }).await?;
    let endpoint = Endpoint::new(created, &caller, &state)?;
    Ok((StatusCode::CREATED, Json(WithSecret { endpoint, signing_secret: key.shown })))
}

impl Body {
    /// What was given, for the audit log.
    fn fields(&self) -> Vec<&'static str> {
        names_of_given([
            ("id", true),
            ("url", true),
            ("signing", self.signing.is_some()),
            ("method", self.method.is_given()),
            ("successCodes", self.success_codes.is_given()),
            ("retry", self.retry.is_some()),
            ("rateLimit", self.rate_limit.is_given()),
            ("maxInFlight", self.max_in_flight.is_given()),
            ("timeoutMs", self.timeout_ms.is_given()),
            ("headers", self.headers.is_some()),
            ("credential", self.credential.is_given()),
        ])
    }
}

async fn settings(body: &Body, owner: Owner, state: &State) -> Result<Settings, Problem> {
    let retry = body.retry.as_ref().map_or(Ok(Policy::DEFAULT), |changes| changes.apply(Policy::DEFAULT))?;
    let rate = match &body.rate_limit {
        Change::Keep | Change::Remove => None,
        Change::Set(changes) => Some(changes.apply(None)?),
    };
    let custom = body.headers.as_ref().map(|changes| changes.apply(&CustomHeaders::default())).transpose()?;
    let timeout = limits::timeout(body.timeout_ms, Settings::DEFAULT_TIMEOUT)?;
    let max_in_flight = limits::max_in_flight(body.max_in_flight, Settings::DEFAULT_MAX_IN_FLIGHT)?;
    let method = asking::method(&body.method, Method::default())?;
    let success_codes = asking::success_codes(&body.success_codes, SuccessCodes::DEFAULT)?;
    // Last: the rest costs nothing to check.
    let destination = address::check(&body.url, state).await?;
    let sealed_headers = headers::seal(owner, &custom.unwrap_or_default(), state)?;
    Ok(Settings {
        method,
        success_codes,
        sealed_headers,
        timeout,
        max_in_flight,
        rate,
        retry,
        ..Settings::new(destination.to_stored())
    })
}
