//! Reading endpoints: one statement, by id, by name or newest first.

use postrider_core::{
    id::{EndpointId, TenantId},
    name::Name,
};
use sqlx::PgExecutor;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Approval, Columns, DisabledReason, Endpoint, Plain, PolicyColumns, PreviousKey};
use crate::{page::Slice, row};

struct Row {
    endpoint_id: Uuid,
    name: String,
    url: String,
    sealed_query: Option<Vec<u8>>,
    method: String,
    success_codes: String,
    credential_id: Option<Uuid>,
    registry_version: Option<i64>,
    allows_query: bool,
    credential: Option<String>,
    disabled_reason: Option<String>,
    version: i64,
    signing_key_id: Uuid,
    algorithm: String,
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
    created_at: OffsetDateTime,
    updated_at: OffsetDateTime,
}

#[derive(Default)]
struct Which<'a> {
    id: Option<EndpointId>,
    name: Option<&'a Name>,
    is_approved: Option<bool>,
}

const ONE: Slice = Slice { before: None, rows: 1 };

pub async fn get_by_name(
    executor: impl PgExecutor<'_>,
    tenant_id: TenantId,
    name: &Name,
) -> Result<Option<Endpoint>, sqlx::Error> {
    let which = Which { name: Some(name), ..Which::default() };
    Ok(select(executor, tenant_id, which, ONE).await?.into_iter().next())
}

pub(super) async fn get(
    executor: impl PgExecutor<'_>,
    tenant_id: TenantId,
    id: EndpointId,
) -> Result<Option<Endpoint>, sqlx::Error> {
    let which = Which { id: Some(id), ..Which::default() };
    Ok(select(executor, tenant_id, which, ONE).await?.into_iter().next())
}

/// A tenant's endpoints, newest first, by id.
pub async fn list(
    executor: impl PgExecutor<'_>,
    tenant_id: TenantId,
    slice: Slice,
) -> Result<Vec<Endpoint>, sqlx::Error> {
    select(executor, tenant_id, Which::default(), slice).await
}

/// A tenant's approved endpoints, all of them.
pub(crate) async fn list_approved(
    executor: impl PgExecutor<'_>,
    tenant_id: TenantId,
) -> Result<Vec<Endpoint>, sqlx::Error> {
    let which = Which { is_approved: Some(true), ..Which::default() };
    select(executor, tenant_id, which, Slice { before: None, rows: i64::MAX }).await
}

async fn select(
    executor: impl PgExecutor<'_>,
    tenant_id: TenantId,
    which: Which<'_>,
    slice: Slice,
) -> Result<Vec<Endpoint>, sqlx::Error> {
    sqlx::query_as!(
        Row,
        r#"SELECT e.endpoint_id, e.name, e.url, e.disabled_reason, e.version, e.signing_key_id, k.algorithm,
                e.previous_signing_key_id, e.overlap_until, e.sealed_headers, e.timeout_ms, e.max_in_flight,
                e.rate_per_second, e.rate_burst, e.max_attempts, e.max_age_seconds, e.initial_delay_ms,
                e.max_delay_ms, e.created_at, e.updated_at, e.sealed_query, e.method, e.success_codes,
                e.credential_id, e.registry_version, e.allows_query, c.name AS "credential?"
           FROM postrider.endpoints AS e
           JOIN postrider.signing_keys AS k USING (tenant_id, signing_key_id)
           LEFT JOIN postrider.credentials AS c USING (tenant_id, credential_id)
          WHERE e.tenant_id = $1 AND e.deleted_at IS NULL
            AND ($2::uuid IS NULL OR e.endpoint_id = $2)
            AND ($3::text IS NULL OR e.name = $3)
            AND ($4::uuid IS NULL OR e.endpoint_id < $4)
            AND ($6::boolean IS NULL OR e.approved = $6)
          ORDER BY e.endpoint_id DESC LIMIT $5"#,
        tenant_id.as_uuid(),
        which.id.map(EndpointId::as_uuid),
        which.name.map(Name::as_str),
        slice.before,
        slice.rows,
        which.is_approved,
    )
    .fetch_all(executor)
    .await?
    .into_iter()
    .map(Endpoint::try_from)
    .collect()
}

impl TryFrom<Row> for Endpoint {
    type Error = sqlx::Error;

    fn try_from(row: Row) -> Result<Self, sqlx::Error> {
        let previous_key = row.previous_signing_key_id.zip(row.overlap_until);
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
        Ok(Self {
            id: row.endpoint_id.into(),
            name: row::text("endpoints.name", &row.name)?,
            disabled: row.disabled_reason.as_deref().map(disabled_reason).transpose()?,
            signing_key_id: row.signing_key_id.into(),
            algorithm: row::text("algorithm", &row.algorithm)?,
            previous_key: previous_key
                .map(|(id, overlap_until)| PreviousKey { id: id.into(), overlap_until }),
            version: row.version,
            created_at: row.created_at,
            updated_at: row.updated_at,
            credential: row
                .credential
                .as_deref()
                .map(|name| row::text("credentials.name", name))
                .transpose()?,
            approval: row
                .registry_version
                .map(|registry_version| Approval { registry_version, allows_query: row.allows_query }),
            settings: columns.settings(Plain {
                url: row.url,
                sealed_query: row.sealed_query,
                sealed_headers: row.sealed_headers,
            })?,
        })
    }
}

fn disabled_reason(text: &str) -> Result<DisabledReason, sqlx::Error> {
    match text {
        "requested" => Ok(DisabledReason::Requested),
        "gone" => Ok(DisabledReason::Gone),
        _ => Err(row::damaged("disabled_reason", &"unknown reason")),
    }
}
