//! What can go wrong with a statement of the hot path, sorted by what the caller does about it.

use sqlx::error::DatabaseError;

/// `lock_not_available`, which a lock timeout is reported as.
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// A failed statement or transaction.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// PostgreSQL refuses a value (SQLSTATE classes 22 and 23): trying again changes nothing; a batch is split to find
    /// the item.
    #[error("PostgreSQL refuses a value")]
    Data(#[source] sqlx::Error),
    /// A lock or statement timeout, a deadlock or a serialisation failure: worth another try, apart from the others.
    #[error("PostgreSQL could not get its locks or finish in time")]
    Contended(#[source] sqlx::Error),
    /// Everything else: no connection, a lost one, no answer, a full disk, a standby. Of a statement that commits itself
    /// it is then not known whether it did.
    #[error("PostgreSQL cannot be reached or was interrupted")]
    Unavailable(#[source] sqlx::Error),
}

impl Error {
    /// Whether the database is away, which the line it was asked on has told the log.
    pub const fn is_lost(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }

    /// Whether a lock did not come in time: somebody else was at it for longer than one waits here.
    pub fn is_lock_wait(&self) -> bool {
        let Self::Contended(error) = self else { return false };
        error.as_database_error().and_then(DatabaseError::code).as_deref() == Some(LOCK_NOT_AVAILABLE)
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let code = error.as_database_error().and_then(DatabaseError::code);
        match code.as_deref() {
            Some(code) if code.starts_with("22") || code.starts_with("23") => Self::Data(error),
            Some(LOCK_NOT_AVAILABLE | "57014" | "40P01" | "40001") => Self::Contended(error),
            _ => Self::Unavailable(error),
        }
    }
}
