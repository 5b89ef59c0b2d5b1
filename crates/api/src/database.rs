//! What a caller is told when the database refuses or does not answer. The caller learns whether trying again helps;
//! the cause is logged, once, here.

use postrider_core::problem::Code;
use postrider_store::{edit, page};

use crate::problem::Problem;

impl From<sqlx::Error> for Problem {
    fn from(error: sqlx::Error) -> Self {
        if page::took_too_long(&error) {
            return Self::new(
                Code::Unavailable,
                "The database took too long over this. Narrow the filter, or try again shortly.",
            );
        }
        if passes_by_itself(&error) { Self::database_unavailable(&error) } else { Self::internal(&error) }
    }
}

impl From<edit::Error> for Problem {
    fn from(error: edit::Error) -> Self {
        match error {
            edit::Error::NameTaken => {
                Self::new(Code::NameTaken, "The id is taken. Choose another, or change what is there.")
                    .with_field("id", "is taken")
            }
            edit::Error::LimitReached { what, limit } => Self::new(
                Code::LimitReached,
                format!("There are {limit} {what} already, as many as there may be. Delete or reuse one."),
            ),
            edit::Error::NotFound => Self::not_found(),
            edit::Error::Database(error) => error.into(),
        }
    }
}

/// Whether the database is away, busy or restarting, rather than refusing this statement for good.
fn passes_by_itself(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => true,
        // SQLSTATE classes: connection lost, transaction rolled back, insufficient resources, locks not granted,
        // operator intervention such as a shutdown, system error.
        sqlx::Error::Database(error) => error.code().is_some_and(|code| {
            ["08", "40", "53", "55", "57", "58"].iter().any(|class| code.starts_with(class))
        }),
        // Everything else is a statement or a row that does not fit this program. sqlx's list is open.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_told_apart_from_what_does_not() {
        for (error, expected) in [
            (sqlx::Error::PoolTimedOut, Code::Unavailable),
            (sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()), Code::Unavailable),
            (sqlx::Error::RowNotFound, Code::Internal),
            (sqlx::Error::Decode("a damaged row".into()), Code::Internal),
        ] {
            let text = error.to_string();
            assert_eq!(Problem::from(error).code(), expected, "{text}");
        }
    }
}
