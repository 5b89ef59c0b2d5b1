//! Reading lists: newest first, a slice at a time, on one snapshot and with a bound on time.
//!
//! A slice continues below the key of the last row shown. Keys never change, so rows that arrive or end meanwhile
//! neither repeat nor hide others.

use postrider_core::id::TenantId;
use sqlx::{PgPool, PgTransaction};
use uuid::Uuid;

use crate::wall;

/// A filter that matches next to nothing in a long history is given up after five seconds rather than left to read
/// it all.
const BEGIN_READ: &str =
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = '5s'";

/// SQLSTATE `query_canceled`, which is how `statement_timeout` ends a statement.
const QUERY_CANCELED: &str = "57014";

/// Which rows of a list are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Only rows whose key is smaller, that is older, than this.
    pub before: Option<Uuid>,
    /// Most rows to return.
    pub rows: i64,
}

/// Begins a read-only transaction of a tenant's request: one snapshot for all its statements, five seconds for each, and
/// that tenant's rows only.
pub async fn begin_read(pool: &PgPool, tenant_id: TenantId) -> Result<PgTransaction<'static>, sqlx::Error> {
    pool.begin_with(wall::within(BEGIN_READ, tenant_id)).await
}

/// Whether a list was given up because it took too long: the caller should narrow its filter.
pub fn took_too_long(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code)
        .is_some_and(|code| code == QUERY_CANCELED)
}
