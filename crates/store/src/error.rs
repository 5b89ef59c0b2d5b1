//! What can go wrong with a statement of the hot path, sorted by what the caller does about it.

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
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
        match code.as_deref() {
            Some(code) if code.starts_with("22") || code.starts_with("23") => Self::Data(error),
            Some("55P03" | "57014" | "40P01" | "40001") => Self::Contended(error),
            _ => Self::Unavailable(error),
        }
    }
}
