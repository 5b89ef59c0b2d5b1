//! What a version of the registry said, for the books: in one spelling, without header values and queries.

use serde_json::{Map, Value, json};

use super::{Endpoint, Endpoints};

/// A tenant's part of the registry as JSON text. The same declarations always give the same text.
pub fn document(endpoints: &Endpoints) -> String {
    let members: Map<String, Value> =
        endpoints.iter().map(|(name, endpoint)| (name.to_string(), entry(endpoint))).collect();
    Value::Object(members).to_string()
}

fn entry(endpoint: &Endpoint) -> Value {
    let mut headers: Vec<&str> = endpoint.headers.names().collect();
    headers.sort_unstable();
    json!({
        "url": endpoint.url,
        "allowQuery": endpoint.allow_query,
        "hasQuery": endpoint.query.is_some(),
        "method": endpoint.method.as_str(),
        "successCodes": endpoint.success_codes.to_string(),
        "retry": {
            "maxAttempts": endpoint.retry.max_attempts(),
            "maxAgeSeconds": endpoint.retry.max_age().as_secs(),
            "initialDelayMs": endpoint.retry.initial_delay().as_millis(),
            "maxDelayMs": endpoint.retry.max_delay().as_millis(),
        },
        "rateLimit": endpoint.rate.map(|rate| json!({"perSecond": rate.per_second, "burst": rate.burst})),
        "maxInFlight": endpoint.max_in_flight,
        "timeoutMs": endpoint.timeout.as_millis(),
        "headers": headers,
        "credential": endpoint.credential,
        "applications": endpoint.applications,
    })
}
