//! A time that a caller gives, in a query or in a body.
//!
//! Invariant: what is taken is in UTC and of the years that an answer can show. The clock that a caller writes it by does
//! not tell: an offset leads from the last day of 9999 to a day that nothing here can hold.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize as _, Deserializer,
    de::{Error as _, Visitor},
};
use time::{OffsetDateTime, UtcOffset, format_description::well_known::Rfc3339};

/// How a time is written.
const FORM: &str = "a time as in RFC 3339, such as 2026-11-29T20:15:00Z";

/// Why a text is no time that can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Error {
    Form,
    Range,
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Form => "a time is written as in RFC 3339, such as 2026-11-29T20:15:00Z",
            Self::Range => "a time lies in the years 0001 to 9999 of UTC",
        })
    }
}

/// Reads an optional time from the query: `#[serde(default, deserialize_with = "moment::in_query")]`.
pub(crate) fn in_query<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<OffsetDateTime>, D::Error> {
    let text = Option::<Cow<'de, str>>::deserialize(deserializer)?;
    let told = |error| match error {
        // There a bare `+` means a space, which is why an offset such as +02:00 is so often lost.
        Error::Form => D::Error::custom(format_args!("{error}; write `+` as %2B")),
        Error::Range => D::Error::custom(error),
    };
    text.map(|text| parse(&text).map_err(told)).transpose()
}

/// Reads a time from a body, where it may be left out and `null` is refused:
/// `#[serde(default, deserialize_with = "moment::in_body")]`.
pub(crate) fn in_body<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<OffsetDateTime>, D::Error> {
    struct Written;
    impl Visitor<'_> for Written {
        type Value = OffsetDateTime;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str(FORM)
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<OffsetDateTime, E> {
            parse(text).map_err(E::custom)
        }
    }
    deserializer.deserialize_str(Written).map(Some)
}

fn parse(text: &str) -> Result<OffsetDateTime, Error> {
    let time = OffsetDateTime::parse(text, &Rfc3339).map_err(|_refused| Error::Form)?;
    let time = time.checked_to_offset(UtcOffset::UTC).ok_or(Error::Range)?;
    if (1..=9_999).contains(&time.year()) { Ok(time) } else { Err(Error::Range) }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn a_time_is_in_utc_and_of_years_that_can_be_shown() {
        let check = |text: &str, expected: Result<OffsetDateTime, Error>| {
            let found = parse(text);
            assert_eq!(found, expected, "{text}");
            if let Ok(time) = found {
                assert!(time.offset().is_utc() && time.format(&Rfc3339).is_ok(), "{text}");
            }
        };
        check("2026-11-29T20:15:00+02:00", Ok(datetime!(2026-11-29 18:15 UTC)));
        check("9999-12-31T23:59:59Z", Ok(datetime!(9999-12-31 23:59:59 UTC)));
        check("9999-12-31T23:59:59+23:59", Ok(datetime!(9999-12-31 0:00:59 UTC)));
        check("9999-12-31T23:59:59.999999999Z", Ok(datetime!(9999-12-31 23:59:59.999999999 UTC)));
        check("9999-12-31T23:59:59-00:01", Err(Error::Range));
        check("9999-12-31T23:59:59-23:59", Err(Error::Range));
        check("0001-01-01T00:00:00Z", Ok(datetime!(0001-01-01 0:00 UTC)));
        check("0001-01-01T00:00:00-23:59", Ok(datetime!(0001-01-01 23:59 UTC)));
        check("0001-01-01T00:00:00+00:01", Err(Error::Range));
        check("0000-12-31T23:59:59-00:01", Ok(datetime!(0001-01-01 0:00:59 UTC)));
        check("0000-01-01T00:00:00Z", Err(Error::Range));
        check("0000-01-01T00:00:00+23:59", Err(Error::Range));
        // A leap second is the last moment of the second before.
        check("2016-12-31T23:59:60Z", Ok(datetime!(2016-12-31 23:59:59.999999999 UTC)));
        check("9999-12-31T23:59:60-23:59", Err(Error::Form));
        for text in
            ["", "yesterday", "10000-01-01T00:00:00Z", "-0001-01-01T00:00:00Z", "2026-11-29T24:00:00Z"]
        {
            check(text, Err(Error::Form));
        }
    }
}
