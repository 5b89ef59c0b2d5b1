//! What is approved now, in the words of the registry.

use anyhow::Context as _;
use postrider_core::{
    header::CustomHeaders,
    id::{EndpointId, TenantId},
    registry::{Endpoint, Query},
    seal::{Context, Keyring, Purpose},
};
use postrider_store::{endpoints::Settings, registry::Approved};

/// Opens an approved endpoint.
pub(super) fn endpoint(keyring: &Keyring, tenant: TenantId, approved: &Approved) -> anyhow::Result<Endpoint> {
    let stored = &approved.endpoint;
    let unreadable = || format!("the endpoint `{}` cannot be read", stored.name);
    Ok(Endpoint {
        url: stored.settings.url.clone(),
        query: query(keyring, tenant, stored.id, &stored.settings).with_context(unreadable)?,
        allow_query: stored.approval.is_some_and(|approval| approval.allows_query),
        method: stored.settings.method,
        success_codes: stored.settings.success_codes,
        retry: stored.settings.retry,
        rate: stored.settings.rate,
        max_in_flight: stored.settings.max_in_flight,
        timeout: stored.settings.timeout,
        headers: headers(keyring, tenant, stored.id, &stored.settings).with_context(unreadable)?,
        credential: stored.credential.clone(),
        applications: approved.applications.iter().cloned().collect(),
    })
}

/// Where a sealed value of an endpoint belongs.
pub(super) const fn context(purpose: Purpose, tenant: TenantId, id: EndpointId) -> Context {
    Context { purpose, tenant, row: id.as_uuid() }
}

fn query(
    keyring: &Keyring,
    tenant: TenantId,
    id: EndpointId,
    settings: &Settings,
) -> anyhow::Result<Option<Query>> {
    let Some(sealed) = &settings.sealed_query else { return Ok(None) };
    let opened = keyring.open(&context(Purpose::EndpointQuery, tenant, id), sealed)?;
    Ok(Some(Query::new(std::str::from_utf8(&opened).context("its query is damaged")?)))
}

fn headers(
    keyring: &Keyring,
    tenant: TenantId,
    id: EndpointId,
    settings: &Settings,
) -> anyhow::Result<CustomHeaders> {
    let Some(sealed) = &settings.sealed_headers else { return Ok(CustomHeaders::default()) };
    Ok(CustomHeaders::from_stored(&keyring.open(&context(Purpose::EndpointHeaders, tenant, id), sealed)?)?)
}
