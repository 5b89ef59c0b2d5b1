//! Tokens while the pepper is replaced: which are left under an earlier one, and how they come under the newer.
//!
//! Invariant: a token is stored anew only under the installation's own pepper, and only in place of the hash that it was
//! found by.

use std::fmt;

use postrider_core::{
    id::{ApplicationId, ManagementKeyId},
    pepper::{Generation, Hashes},
};
use sqlx::{PgExecutor, PgPool};
use uuid::Uuid;

use crate::{
    audit::{Action, By, Change, Target},
    edit::{self, Edit},
    routing::Cache,
};

/// Tokens that are named as being left.
const MAX_NAMED: i64 = 20;
/// Tokens of one kind that one transaction revokes or stores anew.
pub const AT_ONCE: u16 = 100;

/// Usable tokens of earlier generations.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Remaining {
    pub tokens: u64,
    /// The first of them: what each is for, its tenant and its name.
    pub names: Vec<String>,
}

/// A token that was found by its hash under the pepper before, and its hash under the current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    pub before: [u8; 32],
    pub after: [u8; 32],
}

/// What `postrider.token_hash_to_store` chooses from.
pub(crate) struct Choice {
    pub(crate) generations: Vec<i32>,
    pub(crate) fingerprints: Vec<Vec<u8>>,
    pub(crate) hashes: Vec<Vec<u8>>,
}

impl From<&Hashes> for Choice {
    fn from(hashes: &Hashes) -> Self {
        let made = || std::iter::once(hashes.current).chain(hashes.previous);
        Self {
            generations: made().map(|hashed| hashed.generation.number).collect(),
            fingerprints: made().map(|hashed| hashed.generation.fingerprint.to_vec()).collect(),
            hashes: made().map(|hashed| hashed.hash.to_vec()).collect(),
        }
    }
}

/// Usable tokens that are stored under an earlier generation than this one.
pub async fn before(executor: impl PgExecutor<'_>, generation: i32) -> Result<Remaining, sqlx::Error> {
    let rows = sqlx::query!(
        r#"SELECT usable.kind AS "kind!", t.name AS tenant, usable.name AS "name!", count(*) OVER () AS "tokens!"
             FROM (SELECT tenant_id, 'application' AS kind, name FROM postrider.applications
                    WHERE pepper_generation < $1 AND kind = 'publisher'
                   UNION ALL
                   SELECT tenant_id, 'management key', name FROM postrider.management_keys
                    WHERE pepper_generation < $1 AND revoked_at IS NULL) AS usable
             JOIN postrider.tenants AS t USING (tenant_id)
            ORDER BY 1, 2, 3 LIMIT $2"#,
        generation,
        MAX_NAMED,
    )
    .fetch_all(executor)
    .await?;
    let tokens = rows.first().and_then(|row| u64::try_from(row.tokens).ok()).unwrap_or_default();
    let names = rows.iter().map(|row| format!("{} {}/{}", row.kind, row.tenant, row.name));
    Ok(Remaining { tokens, names: names.collect() })
}

/// Revokes the usable tokens that are stored under an earlier generation than this one, and returns how many.
pub(super) async fn revoke_before(pool: &PgPool, generation: i32, by: &By) -> Result<u64, edit::Error> {
    let mut revoked = 0;
    loop {
        let keys = revoke_keys(pool, generation, by).await?;
        let applications = revoke_publish_tokens(pool, generation, by).await?;
        if keys + applications == 0 {
            return Ok(revoked);
        }
        revoked += keys + applications;
    }
}

async fn revoke_keys(pool: &PgPool, generation: i32, by: &By) -> Result<u64, edit::Error> {
    let mut edit = Edit::of_operator(pool, None, by.clone()).await?;
    let revoked = sqlx::query!(
        "WITH old AS MATERIALIZED (
             SELECT ctid AS location FROM postrider.management_keys
              WHERE pepper_generation < $1 AND revoked_at IS NULL
              ORDER BY management_key_id LIMIT $2 FOR UPDATE)
         UPDATE postrider.management_keys k SET revoked_at = now() FROM old WHERE k.ctid = old.location
         RETURNING k.tenant_id, k.management_key_id, k.name",
        generation,
        i64::from(AT_ONCE),
    )
    .fetch_all(&mut **edit)
    .await?;
    for key in &revoked {
        let id = ManagementKeyId::from_uuid(key.management_key_id);
        let target = Target::new("key", id, &key.name);
        let change = Change::whole(Action::KeyRevoked, target);
        edit.record_for(Some(key.tenant_id.into()), &change).await?;
    }
    edit.commit_recorded().await?;
    Ok(revoked.len() as u64)
}

/// An application always has a token's hash; one that is revoked gets the hash of no token.
async fn revoke_publish_tokens(pool: &PgPool, generation: i32, by: &By) -> Result<u64, edit::Error> {
    let mut edit = Edit::of_operator(pool, None, by.clone()).await?;
    let ids = sqlx::query_scalar!(
        "SELECT application_id FROM postrider.applications
          WHERE pepper_generation < $1 AND kind = 'publisher' ORDER BY application_id LIMIT $2",
        generation,
        i64::from(AT_ONCE),
    )
    .fetch_all(&mut **edit)
    .await?;
    let applications: Vec<ApplicationId> = ids.iter().copied().map(ApplicationId::from_uuid).collect();
    edit::lock_exclusive(&mut edit, &applications).await?;
    // Of generation $1, so that it is not found again. Nobody can make a token whose hash is 32 random bytes.
    let revoked = sqlx::query!(
        "UPDATE postrider.applications
            SET token_hash = uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()), pepper_generation = $1,
                routing_version = routing_version + 1, updated_at = now()
          WHERE application_id = ANY($2) AND pepper_generation < $1
         RETURNING tenant_id, application_id, name",
        generation,
        &ids,
    )
    .fetch_all(&mut **edit)
    .await?;
    for application in &revoked {
        let id = ApplicationId::from_uuid(application.application_id);
        let target = Target::new("application", id, &application.name);
        let change = Change::whole(Action::ApplicationTokenRevoked, target);
        edit.record_for(Some(application.tenant_id.into()), &change).await?;
    }
    edit.commit_recorded().await?;
    Ok(revoked.len() as u64)
}

/// Stores the publish tokens anew that this process has seen in use under the pepper before, some at a time, and returns
/// how many. Does nothing until the installation has moved to this generation.
pub async fn store_used(cache: &Cache, generation: Generation) -> Result<usize, sqlx::Error> {
    let outdated = cache.outdated_tokens();
    if outdated.is_empty() || !has_moved(cache.pool(), generation).await? {
        return Ok(0);
    }
    let (applications, moves): (Vec<ApplicationId>, Vec<Move>) = outdated.into_iter().unzip();
    let stored = store_publish_tokens(cache.pool(), generation, &moves).await?;
    // Also of those that were not stored: somebody else may have replaced their tokens.
    for application in applications {
        cache.reload(application).await?;
    }
    Ok(stored)
}

async fn has_moved(pool: &PgPool, generation: Generation) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM postrider.installation
                           WHERE pepper_generation = $1 AND pepper_fingerprint = $2) AS "has_moved!""#,
        generation.number,
        generation.fingerprint.as_slice(),
    )
    .fetch_one(pool)
    .await
}

/// Stores publish tokens anew that were found by their hash under the pepper before, if the installation has moved to
/// this generation, and returns how many. What others hold on to is left for another time.
async fn store_publish_tokens(
    pool: &PgPool,
    generation: Generation,
    moves: &[Move],
) -> Result<usize, sqlx::Error> {
    let (before, after): (Vec<Vec<u8>>, Vec<Vec<u8>>) =
        moves.iter().map(|step| (step.before.to_vec(), step.after.to_vec())).unzip();
    let mut transaction = pool.begin().await?;
    let stored = sqlx::query!(
        "WITH moved AS MATERIALIZED (
             SELECT stored.application_id, used.new_hash
               FROM unnest($1::bytea[], $2::bytea[]) AS used (old_hash, new_hash)
               JOIN postrider.applications AS stored ON stored.token_hash = used.old_hash
              WHERE EXISTS (SELECT FROM postrider.installation
                             WHERE pepper_generation = $3 AND pepper_fingerprint = $4)
              ORDER BY stored.application_id FOR UPDATE OF stored SKIP LOCKED)
         UPDATE postrider.applications AS stored SET token_hash = moved.new_hash, pepper_generation = $3
           FROM moved WHERE stored.application_id = moved.application_id",
        &before,
        &after,
        generation.number,
        generation.fingerprint.as_slice(),
    )
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(usize::try_from(stored.rows_affected()).unwrap_or(usize::MAX))
}

/// Stores a management token anew, as [`store_publish_tokens`] does; returns whether its row changed.
pub async fn store_management_token(
    pool: &PgPool,
    generation: Generation,
    step: Move,
) -> Result<bool, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    let stored: Vec<Uuid> = sqlx::query_scalar!(
        "WITH moved AS MATERIALIZED (
             SELECT tenant_id, management_key_id FROM postrider.management_keys
              WHERE token_hash = $1 AND revoked_at IS NULL
                AND EXISTS (SELECT FROM postrider.installation
                             WHERE pepper_generation = $3 AND pepper_fingerprint = $4)
                FOR UPDATE SKIP LOCKED)
         UPDATE postrider.management_keys AS stored SET token_hash = $2, pepper_generation = $3
           FROM moved
          WHERE stored.tenant_id = moved.tenant_id AND stored.management_key_id = moved.management_key_id
         RETURNING stored.management_key_id",
        step.before.as_slice(),
        step.after.as_slice(),
        generation.number,
        generation.fingerprint.as_slice(),
    )
    .fetch_all(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(!stored.is_empty())
}

impl fmt::Display for Remaining {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tokens {
            1 => formatter.write_str("1 usable token is"),
            tokens => write!(formatter, "{tokens} usable tokens are"),
        }
    }
}
