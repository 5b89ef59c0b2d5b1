//! The peppers that a process holds: the one that tokens are hashed under, and while it is replaced the one before.
//!
//! Invariant: a hash never goes without its [`Generation`], which says under which pepper it was made. Which of two
//! peppers counts is for the database to say, where all processes agree on it.

mod standing;

pub use standing::{Refusal, Standing, Start, Step};

use crate::token::{Pepper, Token};

/// The operator's count of peppers starts here.
pub const FIRST_GENERATION: i32 = 1;

/// Why peppers cannot be used together. The texts never repeat them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("generation {FIRST_GENERATION} has no pepper before it")]
    FirstHasNone,
    #[error("the pepper before is the current one")]
    Same,
}

/// Tells one pepper from all others, and says nothing about any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation {
    /// The operator's count, from [`FIRST_GENERATION`].
    pub number: i32,
    pub fingerprint: [u8; 8],
}

/// One or two peppers of successive generations.
#[derive(Debug, Clone)]
pub struct Peppers {
    current: Held,
    previous: Option<Held>,
}

#[derive(Debug, Clone)]
struct Held {
    pepper: Pepper,
    generation: Generation,
}

/// A token's hash, and under which pepper it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hashed {
    pub generation: Generation,
    pub hash: [u8; 32],
}

/// What a token may be stored as: its hash under each pepper that the process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hashes {
    pub current: Hashed,
    pub previous: Option<Hashed>,
}

impl Peppers {
    /// `previous` is the pepper of the generation before.
    pub fn new(generation: i32, current: Pepper, previous: Option<Pepper>) -> Result<Self, Error> {
        let current = Held::new(generation, current);
        let previous = match previous {
            Some(_) if generation <= FIRST_GENERATION => return Err(Error::FirstHasNone),
            Some(previous) => Some(Held::new(generation - 1, previous)),
            None => None,
        };
        match &previous {
            Some(previous) if previous.generation.fingerprint == current.generation.fingerprint => {
                Err(Error::Same)
            }
            Some(_) | None => Ok(Self { current, previous }),
        }
    }

    pub const fn current(&self) -> Generation {
        self.current.generation
    }

    pub fn previous(&self) -> Option<Generation> {
        self.previous.as_ref().map(|previous| previous.generation)
    }

    /// What a token is looked up by.
    pub fn hash(&self, token: &Token) -> [u8; 32] {
        self.current.pepper.hash(token)
    }

    /// What a token is looked up by that was stored under the pepper before.
    pub fn previous_hash(&self, token: &Token) -> Option<[u8; 32]> {
        self.previous.as_ref().map(|previous| previous.pepper.hash(token))
    }

    /// What a new token may be stored as.
    pub fn hashes(&self, token: &Token) -> Hashes {
        Hashes {
            current: self.current.hash(token),
            previous: self.previous.as_ref().map(|previous| previous.hash(token)),
        }
    }
}

impl Held {
    fn new(number: i32, pepper: Pepper) -> Self {
        let fingerprint = pepper.fingerprint();
        Self { pepper, generation: Generation { number, fingerprint } }
    }

    fn hash(&self, token: &Token) -> Hashed {
        Hashed { generation: self.generation, hash: self.pepper.hash(token) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Kind;

    fn pepper(byte: u8) -> Pepper {
        Pepper::new(&[byte; 32]).expect("pepper")
    }

    #[test]
    fn peppers_of_successive_generations() {
        for (generation, current, previous, expected) in [
            (1, 1, None, Ok([Some(1), None])),
            (7, 1, None, Ok([Some(7), None])),
            (2, 2, Some(1), Ok([Some(2), Some(1)])),
            (1, 2, Some(1), Err(Error::FirstHasNone)),
            (2, 1, Some(1), Err(Error::Same)),
        ] {
            let peppers = Peppers::new(generation, pepper(current), previous.map(pepper));
            let numbers = peppers.map(|peppers| {
                [Some(peppers.current()), peppers.previous()].map(|held| held.map(|held| held.number))
            });
            assert_eq!(numbers, expected, "{generation} {current} {previous:?}");
        }
    }

    #[test]
    fn a_token_is_hashed_under_each_pepper() {
        let token = Token::mint(Kind::Publish, [7; 32]);
        let rotating = Peppers::new(2, pepper(2), Some(pepper(1))).expect("peppers");
        let hashes = rotating.hashes(&token);
        assert_eq!((hashes.current.generation.number, hashes.current.hash), (2, pepper(2).hash(&token)));
        let previous = hashes.previous.expect("a pepper before");
        assert_eq!((previous.generation.number, previous.hash), (1, pepper(1).hash(&token)));
        assert_eq!(rotating.hash(&token), hashes.current.hash);
        assert_eq!(rotating.previous_hash(&token), Some(previous.hash));
        let settled = Peppers::new(2, pepper(2), None).expect("peppers");
        assert_eq!((settled.hashes(&token).current, settled.previous_hash(&token)), (hashes.current, None));
    }
}
