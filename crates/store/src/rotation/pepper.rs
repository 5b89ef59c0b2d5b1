//! Moves the installation from one pepper to the next.
//!
//! A hash cannot be made anew without its token, so after the move there are tokens of two generations. A process that
//! holds both peppers knows a token by either hash, and stores the newer one once it has seen the token. What has not
//! been seen by the end of the rotation is named, and revoked only on demand.
//!
//! Invariant: the installation's row alone says which pepper counts. It moves in one transaction, and whoever stores a
//! token looks at it under a lock that the move takes exclusively.

use postrider_core::pepper::{Generation, Peppers, Refusal, Standing, Step};
use sqlx::{PgExecutor, PgPool, PgTransaction};

use super::tokens::{self, Remaining};
use crate::{
    audit::{Action, By, Change, Target},
    edit::{self, Edit},
    failpoint::{Point, reach},
    row::damaged,
};

/// Why a step was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the installation has recorded no pepper yet: start a server first")]
    NothingRecorded,
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("{0} stored under the pepper before and not used since the move: {names}", names = .0.names.join(", "))]
    TokensLeft(Remaining),
    #[error("the database refused or did not answer")]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Edit(#[from] edit::Error),
}

/// What becomes of tokens that nobody has used since the move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unused {
    /// They keep the rotation from ending.
    Keep,
    Revoke,
}

/// How a rotation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    Finished {
        revoked: u64,
    },
    /// It was over before.
    Over,
}

/// What the installation's row says; `None` before the first process has started.
pub async fn standing(executor: impl PgExecutor<'_>) -> Result<Option<Standing>, sqlx::Error> {
    let found = sqlx::query!(
        "SELECT pepper_generation, pepper_fingerprint, previous_pepper_fingerprint, next_pepper_fingerprint
           FROM postrider.installation",
    )
    .fetch_optional(executor)
    .await?;
    found
        .map(|row| {
            Ok(Standing {
                current: Generation {
                    number: row.pepper_generation,
                    fingerprint: fingerprint(row.pepper_fingerprint)?,
                },
                previous_fingerprint: row.previous_pepper_fingerprint.map(fingerprint).transpose()?,
                next_fingerprint: row.next_pepper_fingerprint.map(fingerprint).transpose()?,
            })
        })
        .transpose()
}

fn fingerprint(bytes: Vec<u8>) -> Result<[u8; 8], sqlx::Error> {
    bytes.try_into().map_err(|_| damaged("pepper_fingerprint", &"its length is wrong"))
}

/// Moves the installation to the pepper that was given. New tokens are stored under it from then on.
pub async fn advance(pool: &PgPool, held: &Peppers, by: By) -> Result<Step, Error> {
    let mut edit = Edit::of_operator(pool, None, by).await?;
    let standing = lock(&mut edit).await?;
    let step = standing.step(held)?;
    match step {
        Step::Moved | Step::Over => return Ok(step),
        Step::Move => {}
    }
    let next = held.current();
    sqlx::query!(
        "UPDATE postrider.installation
            SET pepper_generation = $1, pepper_fingerprint = $2, previous_pepper_fingerprint = pepper_fingerprint,
                next_pepper_fingerprint = NULL",
        next.number,
        next.fingerprint.as_slice(),
    )
    .execute(&mut **edit)
    .await?;
    reach(Point::PepperWritten).await;
    edit.commit(Change::whole(Action::PepperRotated, target(next.number))).await?;
    reach(Point::PepperCommitted).await;
    Ok(step)
}

/// Ends the rotation: tokens of the generation before count no longer, and its pepper is needed by nobody.
///
/// # Errors
/// [`Error::TokensLeft`] where some are left that are not to be revoked.
pub async fn finish(pool: &PgPool, held: &Peppers, unused: Unused, by: By) -> Result<Finish, Error> {
    let mut revoked = 0;
    if unused == Unused::Revoke {
        let standing = standing(pool).await?.ok_or(Error::NothingRecorded)?;
        if standing.can_finish(held)? {
            revoked = tokens::revoke_before(pool, standing.current.number, &by).await?;
        }
    }
    let mut edit = Edit::of_operator(pool, None, by).await?;
    let standing = lock(&mut edit).await?;
    if !standing.can_finish(held)? {
        return Ok(Finish::Over);
    }
    let left = tokens::before(&mut **edit, standing.current.number).await?;
    if left.tokens > 0 {
        return Err(Error::TokensLeft(left));
    }
    sqlx::query!("UPDATE postrider.installation SET previous_pepper_fingerprint = NULL")
        .execute(&mut **edit)
        .await?;
    edit.commit(Change::whole(Action::PepperRotationFinished, target(standing.current.number))).await?;
    Ok(Finish::Finished { revoked })
}

/// Forgets the pepper that a process has announced, before the move to it; returns whether there was one.
pub async fn cancel(pool: &PgPool, by: By) -> Result<bool, Error> {
    let mut edit = Edit::of_operator(pool, None, by).await?;
    let standing = lock(&mut edit).await?;
    if standing.next_fingerprint.is_none() {
        return Ok(false);
    }
    sqlx::query!("UPDATE postrider.installation SET next_pepper_fingerprint = NULL")
        .execute(&mut **edit)
        .await?;
    let next = standing.current.number.saturating_add(1);
    edit.commit(Change::whole(Action::PepperRotationCancelled, target(next))).await?;
    Ok(true)
}

fn target(generation: i32) -> Target {
    Target::of_id("pepper_generation", generation)
}

/// Waits for those who are storing tokens and keeps others out until the end of the transaction, then looks.
async fn lock(transaction: &mut PgTransaction<'_>) -> Result<Standing, Error> {
    sqlx::query!("SELECT pg_advisory_xact_lock(postrider.pepper_lock_key())")
        .execute(&mut **transaction)
        .await?;
    // A later statement, so that it sees what was committed while this one waited.
    standing(&mut **transaction).await?.ok_or(Error::NothingRecorded)
}
