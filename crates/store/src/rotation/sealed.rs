//! The columns that hold sealed values. Invariant: all of them are listed here. A test compares the list with the schema,
//! where the name of such a column begins with `sealed_`.

use postrider_core::{
    id::TenantId,
    seal::{Context, KeyId, Keyring, Purpose},
};
use sqlx::PgPool;
use uuid::Uuid;

/// A column that holds sealed values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    SigningSecret,
    EndpointHeaders,
    EndpointQuery,
    Credential,
}

/// A stored value. Its debug output leaves it out.
#[derive(Clone)]
pub struct Sealed {
    pub tenant_id: TenantId,
    pub row: Uuid,
    pub envelope: Vec<u8>,
}

/// Rows of a column, in the order of their ids.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) rows: usize,
    /// Where to go on; `None` after the last row.
    pub(super) last: Option<Uuid>,
    /// Those whose value is sealed under another key than the one that was named.
    pub(super) others: Vec<Sealed>,
}

/// A value under its new key, and the bytes that it replaces.
#[derive(Debug, Default)]
pub(super) struct Resealed {
    pub(super) rows: Vec<Uuid>,
    pub(super) before: Vec<Vec<u8>>,
    pub(super) after: Vec<Vec<u8>>,
}

/// How many values of a column are sealed under a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    pub column: Column,
    /// `None`: the value is no envelope.
    pub key: Option<KeyId>,
    pub values: u64,
}

impl Column {
    pub const ALL: [Self; 4] =
        [Self::SigningSecret, Self::EndpointHeaders, Self::EndpointQuery, Self::Credential];

    /// Its table and its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SigningSecret => "signing_keys.sealed_secret",
            Self::EndpointHeaders => "endpoints.sealed_headers",
            Self::EndpointQuery => "endpoints.sealed_query",
            Self::Credential => "credentials.sealed_value",
        }
    }

    pub(super) fn context(self, sealed: &Sealed) -> Context {
        let purpose = match self {
            Self::SigningSecret => Purpose::SigningSecret,
            Self::EndpointHeaders => Purpose::EndpointHeaders,
            Self::EndpointQuery => Purpose::EndpointQuery,
            Self::Credential => Purpose::Credential,
        };
        Context { purpose, tenant: sealed.tenant_id, row: sealed.row }
    }

    /// The next rows after one, whatever they hold: how much is read does not depend on how much is left to do.
    pub(super) async fn batch(
        self,
        pool: &PgPool,
        after: Uuid,
        key: KeyId,
        rows: u32,
    ) -> Result<Batch, sqlx::Error> {
        match self {
            Self::SigningSecret => signing_secret::batch(pool, after, key, rows).await,
            Self::EndpointHeaders => endpoint_headers::batch(pool, after, key, rows).await,
            Self::EndpointQuery => endpoint_query::batch(pool, after, key, rows).await,
            Self::Credential => credential::batch(pool, after, key, rows).await,
        }
    }

    /// Replaces values that are still what they were, and returns how many. One that somebody else changed or is changing
    /// is left alone: it is waited for by nobody.
    pub(super) async fn replace(self, pool: &PgPool, resealed: &Resealed) -> Result<u64, sqlx::Error> {
        match self {
            Self::SigningSecret => signing_secret::replace(pool, resealed).await,
            Self::EndpointHeaders => endpoint_headers::replace(pool, resealed).await,
            Self::EndpointQuery => endpoint_query::replace(pool, resealed).await,
            Self::Credential => credential::replace(pool, resealed).await,
        }
    }

    /// The newest value that is sealed under a key.
    pub(crate) async fn newest(self, pool: &PgPool, key: KeyId) -> Result<Option<Sealed>, sqlx::Error> {
        match self {
            Self::SigningSecret => signing_secret::newest(pool, key).await,
            Self::EndpointHeaders => endpoint_headers::newest(pool, key).await,
            Self::EndpointQuery => endpoint_query::newest(pool, key).await,
            Self::Credential => credential::newest(pool, key).await,
        }
    }
}

impl Sealed {
    pub(crate) fn opens(&self, column: Column, keyring: &Keyring) -> Result<(), postrider_core::seal::Error> {
        keyring.open(&column.context(self), &self.envelope).map(drop)
    }
}

impl std::fmt::Debug for Sealed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Sealed").field("row", &self.row).finish_non_exhaustive()
    }
}

/// Counts the values of every column under every key. Reads the whole tables, which are those that people edit.
pub async fn count(pool: &PgPool) -> Result<Vec<Count>, sqlx::Error> {
    // An envelope has its key's id behind the byte of its version.
    let rows = sqlx::query!(
        r#"SELECT stored.place AS "place!", substring(stored.envelope FROM 2 FOR 4) AS "key!", count(*) AS "values!"
             FROM (SELECT 0 AS place, sealed_secret AS envelope FROM postrider.signing_keys
                   UNION ALL SELECT 1, sealed_headers FROM postrider.endpoints
                   UNION ALL SELECT 2, sealed_query FROM postrider.endpoints
                   UNION ALL SELECT 3, sealed_value FROM postrider.credentials) AS stored
            WHERE stored.envelope IS NOT NULL
            GROUP BY 1, 2 ORDER BY 1, 2"#,
    )
    .fetch_all(pool)
    .await?;
    let counts = rows.into_iter().filter_map(|row| {
        let column = *Column::ALL.get(usize::try_from(row.place).ok()?)?;
        let values = u64::try_from(row.values).unwrap_or_default();
        Some(Count { column, key: KeyId::try_from(row.key.as_slice()).ok(), values })
    });
    Ok(counts.collect())
}

/// The statements on one column of one table, whose rows have a unique id.
macro_rules! statements {
    ($module:ident, $table:tt, $id:tt, $column:tt) => {
        mod $module {
            use postrider_core::seal::KeyId;
            use sqlx::PgPool;
            use uuid::Uuid;

            use super::{Batch, Resealed, Sealed};

            pub(super) async fn batch(
                pool: &PgPool,
                after: Uuid,
                key: KeyId,
                limit: u32,
            ) -> Result<Batch, sqlx::Error> {
                let rows = sqlx::query!(
                    "SELECT tenant_id, "
                        + $id
                        + r#" AS "row!", CASE WHEN substring("#
                        + $column
                        + " FROM 2 FOR 4) <> $2 THEN "
                        + $column
                        + " END AS envelope FROM "
                        + $table
                        + " WHERE "
                        + $id
                        + " > $1 ORDER BY "
                        + $id
                        + " LIMIT $3",
                    after,
                    key.as_bytes(),
                    i64::from(limit),
                )
                .fetch_all(pool)
                .await?;
                let (count, last) = (rows.len(), rows.last().map(|row| row.row));
                let others = rows.into_iter().filter_map(|row| {
                    let envelope = row.envelope?;
                    Some(Sealed { tenant_id: row.tenant_id.into(), row: row.row, envelope })
                });
                Ok(Batch { rows: count, last, others: others.collect() })
            }

            pub(super) async fn replace(pool: &PgPool, resealed: &Resealed) -> Result<u64, sqlx::Error> {
                let mut transaction = pool.begin().await?;
                let replaced = sqlx::query!(
                    "WITH unchanged AS MATERIALIZED (
                         SELECT stored."
                        + $id
                        + " AS id, resealed.new_envelope
                           FROM unnest($1::uuid[], $2::bytea[], $3::bytea[])
                                AS resealed (id, old_envelope, new_envelope)
                           JOIN "
                        + $table
                        + " AS stored ON stored."
                        + $id
                        + " = resealed.id
                            AND stored."
                        + $column
                        + " = resealed.old_envelope
                          ORDER BY resealed.id FOR NO KEY UPDATE OF stored SKIP LOCKED)
                     UPDATE "
                        + $table
                        + " AS stored SET "
                        + $column
                        + " = unchanged.new_envelope
                       FROM unchanged WHERE stored."
                        + $id
                        + " = unchanged.id",
                    &resealed.rows,
                    &resealed.before,
                    &resealed.after,
                )
                .execute(&mut *transaction)
                .await?;
                transaction.commit().await?;
                Ok(replaced.rows_affected())
            }

            pub(super) async fn newest(pool: &PgPool, key: KeyId) -> Result<Option<Sealed>, sqlx::Error> {
                let found = sqlx::query!(
                    "SELECT tenant_id, "
                        + $id
                        + r#" AS "row!", "#
                        + $column
                        + r#" AS "envelope!" FROM "#
                        + $table
                        + " WHERE substring("
                        + $column
                        + " FROM 2 FOR 4) = $1 ORDER BY "
                        + $id
                        + " DESC LIMIT 1",
                    key.as_bytes(),
                )
                .fetch_optional(pool)
                .await?;
                Ok(found.map(|row| Sealed {
                    tenant_id: row.tenant_id.into(),
                    row: row.row,
                    envelope: row.envelope,
                }))
            }
        }
    };
}

statements!(signing_secret, "postrider.signing_keys", "signing_key_id", "sealed_secret");
statements!(endpoint_headers, "postrider.endpoints", "endpoint_id", "sealed_headers");
statements!(endpoint_query, "postrider.endpoints", "endpoint_id", "sealed_query");
statements!(credential, "postrider.credentials", "credential_id", "sealed_value");
