//! An endpoint as delivery sees it, and the one statement that reads it.

use std::{num::NonZeroU16, time::Duration};

use postrider_core::{
    id::{CredentialId, EndpointId, SigningKeyId, TenantId},
    method::Method,
    retry,
    success_codes::SuccessCodes,
};
use sqlx::PgExecutor;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::endpoints::{Columns, Plain, PolicyColumns, Rate};

/// What delivery needs to know of an endpoint.
#[derive(Debug, Clone)]
pub struct Endpoint {
    pub tenant_id: TenantId,
    pub endpoint_id: EndpointId,
    /// What people call the tenant and the endpoint, for what is told to people.
    pub tenant_name: String,
    pub name: String,
    /// Rises with every change; two copies with one version are the same.
    pub version: i64,
    /// The registry's version that it is approved by; `None` for an ordinary endpoint.
    pub registry_version: Option<i64>,
    pub is_deleted: bool,
    /// Without its query.
    pub url: String,
    pub sealed_query: Option<Vec<u8>>,
    pub method: Method,
    pub success_codes: SuccessCodes,
    pub credential_id: Option<CredentialId>,
    pub signing_key_id: SigningKeyId,
    /// The key before the last rotation, and until when requests carry its signature too.
    pub overlap: Option<(SigningKeyId, OffsetDateTime)>,
    pub sealed_headers: Option<Vec<u8>>,
    /// See [`crate::endpoints::Settings::timeout`].
    pub timeout: Duration,
    pub max_in_flight: NonZeroU16,
    pub rate: Option<Rate>,
    pub retry: retry::Policy,
}

struct Row {
    endpoint_id: Uuid,
    tenant_id: Uuid,
    tenant_name: String,
    name: String,
    version: i64,
    registry_version: Option<i64>,
    is_deleted: bool,
    url: String,
    sealed_query: Option<Vec<u8>>,
    method: String,
    success_codes: String,
    credential_id: Option<Uuid>,
    signing_key_id: Uuid,
    previous_signing_key_id: Option<Uuid>,
    overlap_until: Option<OffsetDateTime>,
    sealed_headers: Option<Vec<u8>>,
    timeout_ms: i32,
    max_in_flight: i32,
    rate_per_second: Option<f64>,
    rate_burst: Option<i32>,
    max_attempts: i32,
    max_age_seconds: i32,
    initial_delay_ms: i32,
    max_delay_ms: i32,
}

/// Reads endpoints by id. Unknown ids are left out.
pub(super) async fn select(
    executor: impl PgExecutor<'_>,
    ids: &[EndpointId],
) -> Result<Vec<Endpoint>, sqlx::Error> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.as_uuid()).collect();
    sqlx::query_as!(
        Row,
        r#"SELECT e.endpoint_id, e.tenant_id, t.name AS tenant_name, e.name, e.version, e.url, e.signing_key_id,
                e.previous_signing_key_id, e.overlap_until, e.sealed_headers, e.timeout_ms, e.max_in_flight,
                e.rate_per_second, e.rate_burst, e.max_attempts, e.max_age_seconds, e.initial_delay_ms,
                e.max_delay_ms, e.registry_version, e.deleted_at IS NOT NULL AS "is_deleted!", e.sealed_query,
                e.method, e.success_codes, e.credential_id
           FROM postrider.endpoints e JOIN postrider.tenants t USING (tenant_id)
          WHERE e.endpoint_id = ANY($1)"#,
        &ids
    )
    .fetch_all(executor)
    .await?
    .into_iter()
    .map(Endpoint::try_from)
    .collect()
}

impl Endpoint {
    /// What answers are judged by.
    pub const fn rules(&self) -> retry::Rules {
        retry::Rules { policy: self.retry, success_codes: self.success_codes }
    }
}

impl TryFrom<Row> for Endpoint {
    type Error = sqlx::Error;

    fn try_from(row: Row) -> Result<Self, sqlx::Error> {
        let columns = Columns {
            method: row.method,
            success_codes: row.success_codes,
            credential_id: row.credential_id,
            timeout_ms: row.timeout_ms,
            max_in_flight: row.max_in_flight,
            rate_per_second: row.rate_per_second,
            rate_burst: row.rate_burst,
            retry: PolicyColumns {
                max_attempts: row.max_attempts,
                max_age_seconds: row.max_age_seconds,
                initial_delay_ms: row.initial_delay_ms,
                max_delay_ms: row.max_delay_ms,
            },
        };
        let plain =
            Plain { url: row.url, sealed_query: row.sealed_query, sealed_headers: row.sealed_headers };
        let settings = columns.settings(plain)?;
        Ok(Self {
            tenant_id: row.tenant_id.into(),
            endpoint_id: row.endpoint_id.into(),
            tenant_name: row.tenant_name,
            name: row.name,
            version: row.version,
            registry_version: row.registry_version,
            is_deleted: row.is_deleted,
            url: settings.url,
            sealed_query: settings.sealed_query,
            method: settings.method,
            success_codes: settings.success_codes,
            credential_id: settings.credential_id,
            signing_key_id: row.signing_key_id.into(),
            overlap: row.previous_signing_key_id.map(Into::into).zip(row.overlap_until),
            sealed_headers: settings.sealed_headers,
            timeout: settings.timeout,
            max_in_flight: settings.max_in_flight,
            rate: settings.rate,
            retry: settings.retry,
        })
    }
}
