//! From columns to `core`'s types. What stands in the database was checked on its way in, so a value that cannot be
//! read means a damaged row or a newer program's: an error of this one query, never a panic.

use std::{fmt::Display, str::FromStr, time::Duration};

/// Reads a text column as a name, pattern or other checked text.
pub(crate) fn text<T>(column: &'static str, value: &str) -> Result<T, sqlx::Error>
where
    T: FromStr<Err: Display>,
{
    value.parse().map_err(|error| damaged(column, &error))
}

/// Reads an integer column as a narrower or unsigned number.
pub(crate) fn number<T, V>(column: &'static str, value: V) -> Result<T, sqlx::Error>
where
    T: TryFrom<V, Error: Display>,
{
    T::try_from(value).map_err(|error| damaged(column, &error))
}

pub(crate) fn seconds(column: &'static str, value: i32) -> Result<Duration, sqlx::Error> {
    Ok(Duration::from_secs(number(column, value)?))
}

pub(crate) fn milliseconds(column: &'static str, value: i32) -> Result<Duration, sqlx::Error> {
    Ok(Duration::from_millis(number(column, value)?))
}

/// A column that is only NULL in rows of another kind.
pub(crate) fn present<T>(column: &'static str, value: Option<T>) -> Result<T, sqlx::Error> {
    value.ok_or_else(|| damaged(column, &"it is NULL"))
}

/// A value that a column's own constraints should have kept out.
pub(crate) fn damaged(column: &'static str, reason: &dyn Display) -> sqlx::Error {
    sqlx::Error::Decode(format!("column {column} holds a value that cannot be read: {reason}").into())
}
