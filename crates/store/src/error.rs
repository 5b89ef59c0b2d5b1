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
    /// No connection, or it was lost. Before an explicit commit nothing was done; of a statement that is a transaction
    /// of its own it is not known.
    #[error("PostgreSQL cannot be reached or was interrupted")]
    Unavailable(#[source] sqlx::Error),
    /// The connection was lost during a commit, or a statement that commits itself: whether that took place is not known.
    #[error("PostgreSQL was lost during a commit")]
    Unknown(#[source] sqlx::Error),
}

impl Error {
    /// Whether the database is away, which the line it was asked on has told the log.
    pub const fn is_lost(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Unknown(_))
    }

    /// An error of a commit, or of a statement that commits itself.
    pub(crate) fn at_commit(error: sqlx::Error) -> Self {
        match Self::from(error) {
            Self::Unavailable(error) => Self::Unknown(error),
            known @ (Self::Data(_) | Self::Contended(_) | Self::Unknown(_)) => known,
        }
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
