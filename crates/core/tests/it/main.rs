//! Checks the pure rules against the shared cases, whose expected values were computed independently.

mod header_cases;
mod registry_cases;
mod ssrf_cases;
mod standard_webhooks;
