//! What a caller is told when the database refuses or does not answer. The caller learns whether trying again helps;
//! the cause is logged, once, here.

use postrider_core::problem::Code;
use postrider_store::{edit, page};

use crate::problem::Problem;

impl From<sqlx::Error> for Problem {
    fn from(error: sqlx::Error) -> Self {
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
                format!(
                    "There are {limit} {what} already, as many as there may be. Delete, revoke or change one that is no longer \
                     needed."
                ),
            ),
            edit::Error::EmailTaken => {
                Self::new(Code::EmailTaken, "This e-mail address cannot be used here. Take another.")
                    .with_field("email", "cannot be used here")
            }
            edit::Error::LastOwner => Self::new(
                Code::LastOwner,
                "This is the last credential of an owner. Issue a key with the role `owner`, or make another user one, \
                 first.",
            ),
            edit::Error::NotFound => Self::not_found(),
            edit::Error::CredentialInUse => Self::new(
                Code::CredentialInUse,
                "An endpoint's requests carry the credential. Give those endpoints another one, or none, then delete it.",
            ),
            edit::Error::Database(error) => error.into(),
        }
    }
}

/// SQLSTATE of a change on a database that takes none: a standby, until it or another is the primary.
const READ_ONLY: &str = "25006";

/// What the caller of a list with a filter is told.
pub(crate) fn list_failed(error: sqlx::Error) -> Problem {
    if page::took_too_long(&error) {
        Problem::new(
            Code::Unavailable,
            "The database took too long over this. Narrow the filter, or try again shortly.",
        )
    } else {
        error.into()
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
            ["08", "40", "53", "55", "57", "58", READ_ONLY].iter().any(|class| code.starts_with(class))
        }),
        // Everything else is a statement or a row that does not fit this program. sqlx's list is open.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::{borrow::Cow, error::Error, fmt};

    use sqlx::error::{DatabaseError, ErrorKind};

    use super::*;

    /// An error of the database with this SQLSTATE.
    #[derive(Debug)]
    struct Coded(&'static str);

    impl fmt::Display for Coded {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str(self.0)
        }
    }

    impl Error for Coded {}

    impl DatabaseError for Coded {
        fn message(&self) -> &str {
            self.0
        }

        fn code(&self) -> Option<Cow<'_, str>> {
            Some(self.0.into())
        }

        fn as_error(&self) -> &(dyn Error + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn Error + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn Error + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> ErrorKind {
            ErrorKind::Other
        }
    }

    #[test]
    fn only_a_list_that_took_too_long_is_about_its_filter() {
        let coded = |code| sqlx::Error::Database(Box::new(Coded(code)));
        for (problem, code, is_about_the_filter) in [
            (list_failed(coded("57014")), Code::Unavailable, true),
            (list_failed(coded("57P01")), Code::Unavailable, false),
            (list_failed(coded("42P01")), Code::Internal, false),
            (coded("57014").into(), Code::Unavailable, false),
            (coded("25006").into(), Code::Unavailable, false),
            (coded("25001").into(), Code::Internal, false),
            (edit::Error::Database(coded("57014")).into(), Code::Unavailable, false),
            (edit::Error::Database(coded("55P03")).into(), Code::Unavailable, false),
        ] {
            let text = format!("{problem:?}");
            assert_eq!((problem.code(), text.contains("filter")), (code, is_about_the_filter), "{text}");
            assert!(!text.contains("Idempotency-Key"), "{text}");
        }
    }

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
