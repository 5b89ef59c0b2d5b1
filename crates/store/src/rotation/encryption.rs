//! Seals every stored value anew under the current key, a batch at a time.
//!
//! A batch is read, opened and sealed outside of any transaction and written in one of its own, where each value is
//! replaced only if it is still the bytes that were read. So a concurrent change wins, nothing is held up, and whoever
//! kills this leaves values under either key, which every process opens that holds both. What is left to do is read
//! from the values themselves: a second run goes on from there.

use postrider_core::seal::{self, KeyId, Keyring, NONCE_LENGTH};
use sqlx::PgPool;
use uuid::Uuid;

use super::sealed::{self, Column, Resealed, Sealed};
use crate::{
    audit::{Action, By, Change, Target},
    edit::{self, Edit},
    failpoint::{Point, reach},
};

/// Rows that are read, and values that are written, at a time: what they hold is in memory at once.
pub const BATCH_ROWS: u32 = 200;
/// Looks at all columns. A later one finds what was locked or sealed in the meantime; that ends once every process seals
/// under the current key.
const MAX_PASSES: u32 = 4;
/// Damaged values that an error names.
const MAX_NAMED: usize = 10;

/// Why not everything is sealed under the current key. Another run goes on with what is left.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{values} stored secrets are sealed under encryption key {key}, which was not given: set \
         POSTRIDER_ENCRYPTION_KEY_PREVIOUS to that key"
    )]
    NotHeld { key: KeyId, values: u64 },
    #[error(
        "{values} stored secrets do not open, so they were left as they are: {}",
        .named.join(", ")
    )]
    Damaged { values: usize, named: Vec<String> },
    #[error(
        "{values} stored secrets are still sealed under another key: a process seals with it, or somebody holds their \
         rows. Start every process with the new POSTRIDER_ENCRYPTION_KEY, then run this again"
    )]
    StillUnderAnother { values: u64 },
    #[error("the system gives no random bytes: {0}")]
    Random(String),
    #[error("the database refused or did not answer; what was done stays done, so run this again")]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Edit(#[from] edit::Error),
}

/// What a rotation works with.
#[derive(Clone, Copy)]
pub struct Rotation<'a> {
    pub pool: &'a PgPool,
    pub keyring: &'a Keyring,
    /// Gives fresh random bytes.
    pub nonce: fn() -> Result<[u8; NONCE_LENGTH], String>,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Values that this run has sealed anew.
    pub resealed: u64,
    /// Values that were sealed under another key when it began.
    pub to_do: u64,
}

/// Values under another key than the current one, by column and key.
pub fn under_others(counts: &[sealed::Count], current: KeyId) -> impl Iterator<Item = &sealed::Count> {
    counts.iter().filter(move |count| count.key != Some(current))
}

impl Rotation<'_> {
    /// Seals everything under the current key, and proves at the end that nothing is left under another.
    pub async fn run(&self, by: By, mut tell: impl FnMut(Progress)) -> Result<Progress, Error> {
        let to_do = self.require_keys().await?;
        let mut progress = Progress { resealed: 0, to_do };
        if !self.begin(by.clone(), to_do).await? && to_do == 0 {
            return Ok(progress);
        }
        let mut left = to_do;
        for _ in 0..MAX_PASSES {
            let mut damaged = Vec::new();
            for column in Column::ALL {
                self.pass(column, &mut progress, &mut damaged, &mut tell).await?;
            }
            if !damaged.is_empty() {
                let values = damaged.len();
                damaged.truncate(MAX_NAMED);
                return Err(Error::Damaged { values, named: damaged });
            }
            left = self.left().await?;
            if left == 0 {
                break;
            }
        }
        if left > 0 {
            return Err(Error::StillUnderAnother { values: left });
        }
        let edit = Edit::of_operator(self.pool, None, by).await?;
        edit.commit(Change::whole(Action::EncryptionKeyRotated, self.target())).await?;
        Ok(progress)
    }

    /// Refuses what cannot be opened before anything is changed; returns how many values are to be sealed anew.
    async fn require_keys(&self) -> Result<u64, Error> {
        let counts = sealed::count(self.pool).await?;
        for count in under_others(&counts, self.keyring.current_id()) {
            if let Some(key) = count.key.filter(|key| !self.keyring.holds(*key)) {
                return Err(Error::NotHeld { key, values: count.values });
            }
        }
        Ok(under_others(&counts, self.keyring.current_id()).map(|count| count.values).sum())
    }

    async fn left(&self) -> Result<u64, Error> {
        let counts = sealed::count(self.pool).await?;
        Ok(under_others(&counts, self.keyring.current_id()).map(|count| count.values).sum())
    }

    /// From here on no process starts that could not open what is sealed anew. Returns whether the installation had
    /// another key until now.
    async fn begin(&self, by: By, to_do: u64) -> Result<bool, Error> {
        let mut edit = Edit::of_operator(self.pool, None, by).await?;
        let current = self.keyring.current_id();
        let changed = sqlx::query!(
            "UPDATE postrider.installation SET encryption_key_id = $1 WHERE encryption_key_id IS DISTINCT FROM $1",
            current.as_bytes(),
        )
        .execute(&mut **edit)
        .await?;
        let is_other = changed.rows_affected() > 0;
        if is_other || to_do > 0 {
            edit.commit(Change::whole(Action::EncryptionKeyRotationBegun, self.target())).await?;
        }
        Ok(is_other)
    }

    fn target(&self) -> Target {
        Target::of_id("encryption_key", self.keyring.current_id())
    }

    /// Goes through a column once, in the order of its rows.
    async fn pass(
        &self,
        column: Column,
        progress: &mut Progress,
        damaged: &mut Vec<String>,
        tell: &mut impl FnMut(Progress),
    ) -> Result<(), Error> {
        let mut after = Uuid::nil();
        loop {
            let batch = column.batch(self.pool, after, self.keyring.current_id(), BATCH_ROWS).await?;
            let mut resealed = Resealed::default();
            for value in batch.others {
                match self.reseal(column, &value)? {
                    Ok(envelope) => resealed.push(value, envelope),
                    Err(error) => damaged.push(format!("{} of {}: {error}", column.as_str(), value.row)),
                }
            }
            if !resealed.rows.is_empty() {
                reach(Point::SecretsResealed).await;
                progress.resealed += column.replace(self.pool, &resealed).await?;
                reach(Point::SecretsReplaced).await;
                tell(*progress);
            }
            match batch.last.filter(|_| batch.rows >= BATCH_ROWS as usize) {
                Some(last) => after = last,
                None => return Ok(()),
            }
        }
    }

    fn reseal(&self, column: Column, value: &Sealed) -> Result<Result<Vec<u8>, seal::Error>, Error> {
        let context = column.context(value);
        let opened = match self.keyring.open(&context, &value.envelope) {
            Ok(opened) => opened,
            Err(error) => return Ok(Err(error)),
        };
        let nonce = (self.nonce)().map_err(Error::Random)?;
        Ok(Ok(self.keyring.seal(nonce, &context, &opened)))
    }
}

impl Resealed {
    fn push(&mut self, value: Sealed, envelope: Vec<u8>) {
        self.rows.push(value.row);
        self.before.push(value.envelope);
        self.after.push(envelope);
    }
}

impl std::fmt::Debug for Rotation<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Rotation").field("keyring", self.keyring).finish_non_exhaustive()
    }
}
