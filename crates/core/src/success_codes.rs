//! Which statuses of a receiver count as success.
//!
//! Invariant: only 2xx, and of 4xx those that no retry rule claims, can be among them. A redirect is never a success,
//! nor is anything that means "later" or "gone".

use std::{fmt, ops::RangeInclusive, str::FromStr};

const SUCCESSFUL: RangeInclusive<u16> = 200..=299;
const CLIENT_ERROR: RangeInclusive<u16> = 400..=499;
/// Of these the retry policy has its own opinion: try again, or the endpoint is gone.
const CLAIMED: [u16; 4] = [408, 410, 425, 429];

/// Longest text in bytes: every other code of both classes, one by one, fits.
const MAX_TEXT_LENGTH: usize = 512;

/// A set of statuses. Its text is the sorted list of codes and ranges: `200-299,409`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SuccessCodes {
    /// Bit n stands for 200 + n.
    successful: u128,
    /// Bit n stands for 400 + n.
    client_error: u128,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("write success codes as codes and ranges with commas between them, such as `200-299,409`")]
    Syntax,
    #[error("at least one status counts as success")]
    Empty,
    #[error("a range of success codes begins with its lower end")]
    Reversed,
    #[error(
        "{0} cannot count as success: only 200 to 299, and 400 to 499 without 408, 410, 425 and 429, can"
    )]
    Refused(u16),
}

impl SuccessCodes {
    /// Every 2xx.
    pub const DEFAULT: Self = Self { successful: (1 << 100) - 1, client_error: 0 };

    /// Whether an answer with this status is a success.
    pub const fn contains(self, status: u16) -> bool {
        match status {
            200..=299 => self.successful & (1 << (status - 200)) != 0,
            400..=499 => self.client_error & (1 << (status - 400)) != 0,
            _ => false,
        }
    }

    /// Collects ranges; they may overlap.
    pub fn from_ranges(ranges: impl IntoIterator<Item = RangeInclusive<u16>>) -> Result<Self, Error> {
        let mut codes = Self { successful: 0, client_error: 0 };
        for range in ranges {
            if range.is_empty() {
                return Err(Error::Reversed);
            }
            for status in range {
                codes.add(status)?;
            }
        }
        if codes.successful == 0 && codes.client_error == 0 { Err(Error::Empty) } else { Ok(codes) }
    }

    fn add(&mut self, status: u16) -> Result<(), Error> {
        if SUCCESSFUL.contains(&status) {
            self.successful |= 1 << (status - SUCCESSFUL.start());
        } else if CLIENT_ERROR.contains(&status) && !CLAIMED.contains(&status) {
            self.client_error |= 1 << (status - CLIENT_ERROR.start());
        } else {
            return Err(Error::Refused(status));
        }
        Ok(())
    }

    /// The codes as few ranges, in order.
    pub fn ranges(self) -> Vec<RangeInclusive<u16>> {
        let mut ranges: Vec<RangeInclusive<u16>> = Vec::new();
        for status in SUCCESSFUL.chain(CLIENT_ERROR).filter(|status| self.contains(*status)) {
            match ranges.last_mut() {
                Some(last) if last.end() + 1 == status => *last = *last.start()..=status,
                Some(_) | None => ranges.push(status..=status),
            }
        }
        ranges
    }
}

impl Default for SuccessCodes {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl FromStr for SuccessCodes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.len() > MAX_TEXT_LENGTH {
            return Err(Error::Syntax);
        }
        let ranges: Result<Vec<_>, Error> = text.split(',').map(parse_range).collect();
        Self::from_ranges(ranges?)
    }
}

/// One code, or two with a hyphen between them; spaces around it do no harm.
fn parse_range(text: &str) -> Result<RangeInclusive<u16>, Error> {
    let text = text.trim_matches(' ');
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Ok(parse_code(first)?..=parse_code(last)?)
}

fn parse_code(text: &str) -> Result<u16, Error> {
    if text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().map_err(|_| Error::Syntax)
    } else {
        Err(Error::Syntax)
    }
}

impl fmt::Display for SuccessCodes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, range) in self.ranges().into_iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            let (first, last) = range.into_inner();
            if first == last {
                write!(formatter, "{comma}{first}")?;
            } else {
                write!(formatter, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for SuccessCodes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SuccessCodes({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_are_read_and_written_in_one_spelling() {
        let check = |text: &str, expected: Result<&str, Error>| {
            let codes = text.parse::<SuccessCodes>().map(|codes| codes.to_string());
            assert_eq!(codes.as_deref().map_err(|error| *error), expected, "{text:?}");
        };
        check("200-299", Ok("200-299"));
        check("202", Ok("202"));
        check("409, 200-204,203-210", Ok("200-210,409"));
        check("200,201,202", Ok("200-202"));
        check("299,400", Ok("299,400"));
        check("", Err(Error::Syntax));
        check("200,", Err(Error::Syntax));
        check("20-29", Err(Error::Syntax));
        check("+200", Err(Error::Syntax));
        check("0200", Err(Error::Syntax));
        check("200-", Err(Error::Syntax));
        check("200-204-209", Err(Error::Syntax));
        check("2xx", Err(Error::Syntax));
        check("299-200", Err(Error::Reversed));
        check(&"200,".repeat(200), Err(Error::Syntax));
    }

    #[test]
    fn what_means_something_else_is_never_a_success() {
        for status in [0, 100, 101, 199, 300, 301, 302, 303, 307, 308, 399, 408, 410, 425, 429, 500, 503, 599]
        {
            let refused = SuccessCodes::from_ranges([200..=200, status..=status]);
            assert_eq!(refused, Err(Error::Refused(status)), "{status}");
            assert!(!SuccessCodes::DEFAULT.contains(status), "{status}");
        }
        assert_eq!("200-400".parse::<SuccessCodes>(), Err(Error::Refused(300)));
        assert_eq!("400-499".parse::<SuccessCodes>(), Err(Error::Refused(408)));
        assert_eq!(SuccessCodes::from_ranges([]), Err(Error::Empty));
    }

    #[test]
    fn the_default_is_every_2xx() {
        assert_eq!(SuccessCodes::DEFAULT.to_string(), "200-299");
        assert_eq!("200-299".parse(), Ok(SuccessCodes::DEFAULT));
        assert!((200..=299).all(|status| SuccessCodes::DEFAULT.contains(status)));
    }

    proptest! {
        #[test]
        fn a_written_set_reads_back(statuses in proptest::collection::vec(200..=499_u16, 1..40)) {
            let allowed = statuses.iter().copied().filter(|status| SuccessCodes::from_ranges([*status..=*status]).is_ok());
            if let Ok(codes) = SuccessCodes::from_ranges(allowed.clone().map(|status| status..=status)) {
                prop_assert_eq!(codes.to_string().parse(), Ok(codes));
                prop_assert!(allowed.clone().all(|status| codes.contains(status)));
            }
        }

        #[test]
        fn any_text_is_answered(text: String) {
            let _ = text.parse::<SuccessCodes>();
        }
    }
}
