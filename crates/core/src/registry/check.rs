//! What the file says, checked by the same rules as what the API is given.

use std::{
    collections::BTreeMap,
    num::{NonZeroU16, NonZeroU32},
    time::Duration,
};

use super::{
    Endpoint, Endpoints, MAX_APPLICATIONS, MAX_ENDPOINTS, MAX_TENANTS, Policies, Query, Refusal, Registry,
    file::{Entry, File, RateLimit, Retry},
};
use crate::{
    bucket::Rate,
    destination::{Destination, UrlPolicy},
    header::CustomHeaders,
    method::Method,
    pacing::{DEFAULT_MAX_IN_FLIGHT, DEFAULT_TIMEOUT, MAX_IN_FLIGHT_BOUND, TIMEOUT_BOUNDS},
    retry::{self, Policy},
    success_codes::SuccessCodes,
};

/// A key of an endpoint, and what is wrong with its value.
struct Fault {
    key: &'static str,
    reason: String,
}

impl Fault {
    fn at(key: &'static str) -> impl FnOnce(String) -> Self {
        move |reason| Self { key, reason }
    }
}

pub(super) fn registry(file: File, policies: Policies<'_>) -> Result<Registry, Refusal> {
    let count: usize = file.tenants.values().map(|tenant| tenant.endpoints.len()).sum();
    if count > MAX_ENDPOINTS {
        return Err(Refusal::whole(format!("a file declares at most {MAX_ENDPOINTS} endpoints")));
    }
    if file.tenants.len() > MAX_TENANTS {
        return Err(Refusal::whole(format!("a file names at most {MAX_TENANTS} tenants")));
    }
    let mut tenants = BTreeMap::new();
    for (tenant_name, tenant) in file.tenants {
        let mut endpoints = Endpoints::new();
        for (name, entry) in tenant.endpoints {
            let line = entry.referenced.line();
            let endpoint = endpoint(entry.value, policies).map_err(|fault| Refusal {
                line: Some(line).filter(|line| *line > 0),
                path: format!("tenants.{tenant_name}.endpoints.{name}.{}", fault.key),
                reason: fault.reason,
            })?;
            endpoints.insert(name, endpoint);
        }
        tenants.insert(tenant_name, endpoints);
    }
    Ok(Registry { tenants })
}

fn endpoint(entry: Entry, policies: Policies<'_>) -> Result<Endpoint, Fault> {
    let url_policy = UrlPolicy { allow_query: entry.allow_query, ..policies.url };
    let destination = Destination::parse(&entry.url, &url_policy, policies.addresses)
        .map_err(|refusal| refusal.to_string())
        .map_err(Fault::at("url"))?;
    let headers: BTreeMap<String, String> =
        entry.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
    // Two spellings of one name would be one by now.
    let given = if headers.len() == entry.headers.len() { &headers } else { &entry.headers };
    let headers = CustomHeaders::from_pairs(given)
        .map_err(|refusal| refusal.to_string())
        .map_err(Fault::at("headers"))?;
    if entry.applications.len() > MAX_APPLICATIONS {
        return Err(Fault::at("applications")(format!("at most {MAX_APPLICATIONS} applications")));
    }
    Ok(Endpoint {
        url: destination.to_string(),
        query: destination.path_and_query().query().map(Query::new),
        allow_query: entry.allow_query,
        method: entry.method.unwrap_or(Method::Post),
        success_codes: entry.success_codes.map_or(SuccessCodes::DEFAULT, |codes| codes.0),
        retry: policy(&entry.retry)?,
        rate: entry.rate_limit.as_ref().map(rate).transpose()?,
        max_in_flight: max_in_flight(entry.max_in_flight)?,
        timeout: timeout(entry.timeout_ms)?,
        headers,
        credential: entry.credential,
        applications: entry.applications,
    })
}

fn policy(given: &Retry) -> Result<Policy, Fault> {
    let default = Policy::DEFAULT;
    let milliseconds = |value: u32| Duration::from_millis(value.into());
    Policy::new(
        given.max_attempts.unwrap_or(default.max_attempts()),
        given.max_age_seconds.map_or(default.max_age(), |value| Duration::from_secs(value.into())),
        given.initial_delay_ms.map_or(default.initial_delay(), milliseconds),
        given.max_delay_ms.map_or(default.max_delay(), milliseconds),
    )
    .map_err(|error| {
        let key = match error {
            retry::Error::Attempts => "retry.maxAttempts",
            retry::Error::Age => "retry.maxAgeSeconds",
            retry::Error::InitialDelay => "retry.initialDelayMs",
            retry::Error::MaxDelay => "retry.maxDelayMs",
        };
        Fault { key, reason: error.to_string() }
    })
}

fn rate(given: &RateLimit) -> Result<Rate, Fault> {
    let bounds = Rate::PER_SECOND_BOUNDS;
    if !bounds.contains(&given.per_second) {
        let reason = format!("a number from {} to {}", bounds.start(), bounds.end());
        return Err(Fault { key: "rateLimit.perSecond", reason });
    }
    let burst = given.burst.map_or_else(|| Some(Rate::a_second_of(given.per_second)), NonZeroU32::new);
    let burst = burst.filter(|burst| *burst <= Rate::BURST_BOUND).ok_or_else(|| Fault {
        key: "rateLimit.burst",
        reason: format!("a number from 1 to {}", Rate::BURST_BOUND),
    })?;
    Ok(Rate { per_second: given.per_second, burst })
}

fn max_in_flight(given: Option<u16>) -> Result<NonZeroU16, Fault> {
    let Some(value) = given else { return Ok(DEFAULT_MAX_IN_FLIGHT) };
    NonZeroU16::new(value).filter(|value| *value <= MAX_IN_FLIGHT_BOUND).ok_or_else(|| Fault {
        key: "maxInFlight",
        reason: format!("a number from 1 to {MAX_IN_FLIGHT_BOUND}"),
    })
}

fn timeout(given: Option<u32>) -> Result<Duration, Fault> {
    let value = given.map_or(DEFAULT_TIMEOUT, |value| Duration::from_millis(value.into()));
    if TIMEOUT_BOUNDS.contains(&value) {
        return Ok(value);
    }
    let (least, most) = (TIMEOUT_BOUNDS.start().as_millis(), TIMEOUT_BOUNDS.end().as_millis());
    Err(Fault { key: "timeoutMs", reason: format!("a number from {least} to {most}") })
}
