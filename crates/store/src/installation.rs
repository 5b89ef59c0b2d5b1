//! What every process of an installation must agree on, whichever started first.
//!
//! Invariant: a process never serves whose pepper is not the one that the stored tokens were hashed with, or that cannot
//! open what is sealed: it would refuse every token, and could sign nothing.

use postrider_core::{
    pepper::{Peppers, Refusal, Start},
    seal::{self, KeyId, Keyring},
};
use sqlx::PgPool;

use crate::{
    rotation::{
        pepper::standing,
        sealed::{self, Column},
        tokens,
    },
    row::damaged,
};

/// Looks at the installation's row before a start is given up: each but the first was preceded by a change of it.
const MAX_LOOKS: u32 = 3;

/// Why a process may not start with its pepper.
#[derive(Debug, thiserror::Error)]
pub enum PepperError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("what the installation agreed on could not be read")]
    Database(#[from] sqlx::Error),
}

/// Why a process may not start with its encryption keys.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The key that this process would seal with is not the installation's.
    #[error(
        "this installation's secrets are sealed under encryption key {wanted}, but POSTRIDER_ENCRYPTION_KEY is key \
         {given}: set POSTRIDER_ENCRYPTION_KEY to {wanted}, or while it is replaced set \
         POSTRIDER_ENCRYPTION_KEY_PREVIOUS to it"
    )]
    Other { wanted: KeyId, given: KeyId },
    /// The installation's key was given, but some secrets need another one.
    #[error(
        "some secrets are sealed under encryption key {wanted}, which this process was not given: set \
         POSTRIDER_ENCRYPTION_KEY_PREVIOUS to it and run `postrider keys rotate-encryption`, or, where it is the key to \
         come, set POSTRIDER_ENCRYPTION_KEY_NEXT to it"
    )]
    Missing { wanted: KeyId },
    #[error(
        "a stored secret ({column}) does not open with the encryption key it names: POSTRIDER_ENCRYPTION_KEY or \
         POSTRIDER_ENCRYPTION_KEY_PREVIOUS is not this installation's, or the value is damaged"
    )]
    DoesNotOpen { column: &'static str, source: seal::Error },
    #[error("what the installation agreed on could not be read")]
    Database(#[from] sqlx::Error),
}

/// Asks whether the database takes no changes: a standby does not, nor one that was set to read only.
const IS_READ_ONLY: &str = "SELECT current_setting('transaction_read_only')::boolean";

/// Whether the database answers, but takes no changes.
pub async fn is_read_only(pool: &PgPool) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(IS_READ_ONLY).fetch_one(pool).await
}

/// Writes down the pepper of the first process; proves that every later one may start with what it was given.
pub async fn prove_pepper(pool: &PgPool, held: &Peppers) -> Result<(), PepperError> {
    let current = held.current();
    let mut transaction = pool.begin().await?;
    sqlx::query!(
        "INSERT INTO postrider.installation (pepper_generation, pepper_fingerprint) VALUES ($1, $2)
             ON CONFLICT DO NOTHING",
        current.number,
        current.fingerprint.as_slice(),
    )
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    for _ in 0..MAX_LOOKS {
        // A later statement, so that it sees the row of a process that was faster.
        let standing = standing(pool).await?.ok_or(sqlx::Error::RowNotFound)?;
        match standing.start(held)? {
            Start::Ready => return Ok(()),
            // Looked at again, since another process may have announced another one first.
            Start::Announce(next) => announce(pool, standing.current.fingerprint, next.fingerprint).await?,
            Start::UnlessTokensAreLeft { generation } => {
                let left = tokens::before(pool, standing.current.number).await?;
                return if left.tokens == 0 {
                    Ok(())
                } else {
                    Err(Refusal::PreviousMissing { generation }.into())
                };
            }
        }
    }
    Err(sqlx::Error::RowNotFound.into())
}

async fn announce(pool: &PgPool, current: [u8; 8], next: [u8; 8]) -> Result<(), sqlx::Error> {
    let mut transaction = pool.begin().await?;
    sqlx::query!(
        "UPDATE postrider.installation SET next_pepper_fingerprint = $2
          WHERE pepper_fingerprint = $1 AND previous_pepper_fingerprint IS NULL AND next_pepper_fingerprint IS NULL",
        current.as_slice(),
        next.as_slice(),
    )
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await
}

/// Proves that a process can open all that is stored, and what others seal. Writes down the key of the first process, so
/// that a second one with another key is told before anything is sealed.
pub async fn prove_encryption_key(pool: &PgPool, keyring: &Keyring) -> Result<(), KeyError> {
    let counts = sealed::count(pool).await?;
    let stored: Vec<KeyId> = counts.iter().filter_map(|count| count.key).collect();
    for count in &counts {
        let damaged = seal::Error::Damaged;
        let key =
            count.key.ok_or(KeyError::DoesNotOpen { column: count.column.as_str(), source: damaged })?;
        require(keyring, key, &stored)?;
        open_one(pool, keyring, count.column, key).await?;
    }
    let current = keyring.current_id();
    let mut transaction = pool.begin().await?;
    sqlx::query!(
        "UPDATE postrider.installation SET encryption_key_id = $1 WHERE encryption_key_id IS NULL",
        current.as_bytes(),
    )
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    // A later statement, so that it sees the row of a process that was faster.
    let recorded = sqlx::query_scalar!("SELECT encryption_key_id FROM postrider.installation")
        .fetch_optional(pool)
        .await?
        .flatten();
    let Some(recorded) = recorded else { return Ok(()) };
    let recorded =
        KeyId::try_from(recorded.as_slice()).map_err(|error| damaged("encryption_key_id", &error))?;
    require(keyring, recorded, &stored)
}

fn require(keyring: &Keyring, wanted: KeyId, stored: &[KeyId]) -> Result<(), KeyError> {
    let given = keyring.current_id();
    if keyring.holds(wanted) {
        Ok(())
    } else if stored.contains(&given) {
        Err(KeyError::Missing { wanted })
    } else {
        Err(KeyError::Other { wanted, given })
    }
}

/// Two keys may have one id, and then only opening tells them apart.
async fn open_one(pool: &PgPool, keyring: &Keyring, column: Column, key: KeyId) -> Result<(), KeyError> {
    let Some(sealed) = column.newest(pool, key).await? else { return Ok(()) };
    let opened = sealed.opens(column, keyring);
    opened.map_err(|source| KeyError::DoesNotOpen { column: column.as_str(), source })
}
