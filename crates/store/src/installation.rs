//! What every process of an installation must agree on, whichever started first.
//!
//! Invariant: a process whose pepper is not the one that the stored tokens were hashed with never serves: it would refuse
//! every token, and new ones would be lost with it.

use postrider_core::id::{SigningKeyId, TenantId};
use sqlx::PgPool;

/// Which pepper a process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pepper {
    /// The operator's count, from 1.
    pub generation: i32,
    /// Tells two peppers apart and says nothing about either.
    pub fingerprint: [u8; 8],
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "the tokens in this database were hashed with pepper generation {stored}, but this process was given \
         generation {given}: set POSTRIDER_TOKEN_PEPPER_GENERATION to {stored}, with that generation's pepper"
    )]
    OtherGeneration { stored: i32, given: i32 },
    #[error(
        "the tokens in this database were hashed with another pepper than this process was given: set \
         POSTRIDER_TOKEN_PEPPER to the one that this installation was started with"
    )]
    OtherPepper,
    #[error("what the installation agreed on could not be read")]
    Database(#[from] sqlx::Error),
}

/// A signing secret as it is stored.
#[derive(Clone)]
pub struct Sealed {
    pub tenant_id: TenantId,
    pub signing_key_id: SigningKeyId,
    pub secret: Vec<u8>,
}

impl std::fmt::Debug for Sealed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Sealed").field("signing_key_id", &self.signing_key_id).finish_non_exhaustive()
    }
}

/// Asks whether the database takes no changes: a standby does not, nor one that was set to read only.
const IS_READ_ONLY: &str = "SELECT current_setting('transaction_read_only')::boolean";

/// Whether the database answers, but takes no changes.
pub async fn is_read_only(pool: &PgPool) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(IS_READ_ONLY).fetch_one(pool).await
}

/// The newest signing secret of all: whoever cannot open it has not the key that the others seal with.
pub async fn newest_secret(pool: &PgPool) -> Result<Option<Sealed>, sqlx::Error> {
    let found = sqlx::query!(
        "SELECT tenant_id, signing_key_id, sealed_secret FROM postrider.signing_keys
          ORDER BY signing_key_id DESC LIMIT 1",
    )
    .fetch_optional(pool)
    .await?;
    Ok(found.map(|row| Sealed {
        tenant_id: row.tenant_id.into(),
        signing_key_id: row.signing_key_id.into(),
        secret: row.sealed_secret,
    }))
}

/// Writes down the pepper of the first process; proves that every later one has the same.
pub async fn prove_pepper(pool: &PgPool, given: Pepper) -> Result<(), Error> {
    sqlx::query!(
        "INSERT INTO postrider.installation (pepper_generation, pepper_fingerprint) VALUES ($1, $2)
             ON CONFLICT DO NOTHING",
        given.generation,
        given.fingerprint.as_slice(),
    )
    .execute(pool)
    .await?;
    // A later statement, so that it sees the row of a process that was faster.
    let stored = sqlx::query!("SELECT pepper_generation, pepper_fingerprint FROM postrider.installation")
        .fetch_one(pool)
        .await?;
    if stored.pepper_generation != given.generation {
        return Err(Error::OtherGeneration { stored: stored.pepper_generation, given: given.generation });
    }
    if stored.pepper_fingerprint != given.fingerprint {
        return Err(Error::OtherPepper);
    }
    Ok(())
}
