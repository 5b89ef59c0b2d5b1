//! Which peppers a process may start with, and when the installation moves from one to the next.
//!
//! The installation is at generation G; *announced* means that a process has started with G+1, and *moved* that
//! `keys rotate-pepper` has taken the installation to G+1 and tokens of G still count.
//!
//! | the installation | a process is given | it |
//! |---|---|---|
//! | has recorded nothing | any | starts, and its pepper is recorded |
//! | at G | G | starts |
//! | at G | G, and a previous one | starts; the previous one is of no use |
//! | at G | G+1, and G's as the previous one | starts, tokens stay under G; G+1 is announced |
//! | at G | G+1 alone, or with another previous one | is refused: the previous pepper |
//! | at G | G with another pepper | is refused: the pepper |
//! | at G, G+1 announced | G+1 with another pepper, and G's as the previous one | is refused: the pepper |
//! | at G | any other | is refused: the generation |
//! | moved from G to G+1 | G+1, and G's as the previous one | starts, tokens come under G+1 |
//! | moved from G to G+1 | G+1 alone | starts if no usable token of G is left, else is refused: the previous pepper |
//! | moved from G to G+1 | G+1, and another previous one | is refused: the previous pepper |
//! | moved from G to G+1 | G+1 with another pepper | is refused: the pepper |
//! | moved from G to G+1 | any other, G and G+2 too | is refused: the generation |

use super::{Generation, Peppers};

/// What the database knows of the installation's peppers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    pub current: Generation,
    /// Where the installation has moved here and tokens of the generation before still count.
    pub previous_fingerprint: Option<[u8; 8]>,
    /// The pepper to come, announced by a process that holds it.
    pub next_fingerprint: Option<[u8; 8]>,
}

/// What a process may do with the peppers it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Start {
    /// Go on.
    Ready,
    /// Go on once the pepper to come is announced, so that all later processes have the same.
    Announce(Generation),
    /// Go on unless a usable token of this generation is left.
    UnlessTokensAreLeft { generation: i32 },
}

/// What `keys rotate-pepper` has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Move the installation to the next generation.
    Move,
    /// Nothing: it has moved.
    Moved,
    /// Nothing: no rotation is under way, the last one is over.
    Over,
}

/// Why a process may not start, or a step not be taken, with these peppers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "the tokens in this database are hashed with pepper generation {recorded}, but this process was given \
         generation {given}: set POSTRIDER_TOKEN_PEPPER_GENERATION to {recorded}, with that generation's pepper"
    )]
    OtherGeneration { recorded: i32, given: i32 },
    #[error(
        "the tokens in this database are hashed with another pepper of generation {generation} than this process was \
         given: set POSTRIDER_TOKEN_PEPPER to the one that this installation was started with"
    )]
    OtherPepper { generation: i32 },
    #[error(
        "another process was started with another pepper of generation {generation}, which is to come: set \
         POSTRIDER_TOKEN_PEPPER to that one, or run `postrider keys rotate-pepper --cancel` to choose anew"
    )]
    OtherNext { generation: i32 },
    #[error(
        "tokens of pepper generation {generation} are in use, whose pepper this process was not given: set \
         POSTRIDER_TOKEN_PEPPER_PREVIOUS to the pepper of generation {generation}"
    )]
    PreviousMissing { generation: i32 },
    #[error(
        "POSTRIDER_TOKEN_PEPPER_PREVIOUS is not the pepper of generation {generation}, under which tokens in this \
         database are hashed: set it to that one"
    )]
    OtherPrevious { generation: i32 },
    #[error(
        "there is no pepper to move to: set POSTRIDER_TOKEN_PEPPER to a new one, POSTRIDER_TOKEN_PEPPER_GENERATION to \
         {next} and POSTRIDER_TOKEN_PEPPER_PREVIOUS to the pepper until now"
    )]
    NoNext { next: i32 },
    #[error(
        "the installation has not moved to pepper generation {next} yet: run `postrider keys rotate-pepper` first"
    )]
    NotMoved { next: i32 },
}

impl Standing {
    /// Whether a process with these peppers may start.
    pub fn start(&self, held: &Peppers) -> Result<Start, Refusal> {
        let given = held.current();
        match self.place(held)? {
            Place::Next => match self.next_fingerprint {
                None => Ok(Start::Announce(given)),
                Some(_) => Ok(Start::Ready),
            },
            Place::Current => match (self.previous_fingerprint, held.previous()) {
                (Some(_), None) => Ok(Start::UnlessTokensAreLeft { generation: given.number - 1 }),
                (Some(_), Some(_)) | (None, _) => Ok(Start::Ready),
            },
        }
    }

    /// What is to be done to move the installation to the pepper that was given.
    pub fn step(&self, held: &Peppers) -> Result<Step, Refusal> {
        match (self.place(held)?, self.previous_fingerprint, held.previous()) {
            (Place::Next, ..) => Ok(Step::Move),
            (Place::Current, Some(_), _) => Ok(Step::Moved),
            (Place::Current, None, Some(_)) => Ok(Step::Over),
            (Place::Current, None, None) => Err(Refusal::NoNext { next: self.current.number + 1 }),
        }
    }

    /// Whether the rotation to the pepper that was given can be ended; `false` where it is over already.
    pub fn can_finish(&self, held: &Peppers) -> Result<bool, Refusal> {
        match self.place(held)? {
            Place::Next => Err(Refusal::NotMoved { next: self.current.number + 1 }),
            Place::Current => Ok(self.previous_fingerprint.is_some()),
        }
    }

    /// Which generation these peppers are of, if all of them are right.
    fn place(&self, held: &Peppers) -> Result<Place, Refusal> {
        let (given, recorded) = (held.current(), self.current);
        let previous = held.previous().map(|previous| previous.fingerprint);
        if given.number == recorded.number {
            if given.fingerprint != recorded.fingerprint {
                return Err(Refusal::OtherPepper { generation: recorded.number });
            }
            return match (self.previous_fingerprint, previous) {
                (Some(recorded), Some(given_before)) if recorded != given_before => {
                    Err(Refusal::OtherPrevious { generation: given.number - 1 })
                }
                _ => Ok(Place::Current),
            };
        }
        let may_come_next = self.previous_fingerprint.is_none();
        if !may_come_next || recorded.number.checked_add(1) != Some(given.number) {
            return Err(Refusal::OtherGeneration { recorded: recorded.number, given: given.number });
        }
        match previous {
            None => Err(Refusal::PreviousMissing { generation: recorded.number }),
            Some(previous) if previous != recorded.fingerprint => {
                Err(Refusal::OtherPrevious { generation: recorded.number })
            }
            Some(_) if self.next_fingerprint.is_some_and(|next| next != given.fingerprint) => {
                Err(Refusal::OtherNext { generation: given.number })
            }
            Some(_) => Ok(Place::Next),
        }
    }
}

/// Where the current one of a process's peppers stands.
enum Place {
    Current,
    Next,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Pepper;

    fn pepper(byte: u8) -> Pepper {
        Pepper::new(&[byte; 32]).expect("pepper")
    }

    fn fingerprint(byte: u8) -> [u8; 8] {
        pepper(byte).fingerprint()
    }

    fn held(generation: i32, current: u8, previous: Option<u8>) -> Peppers {
        Peppers::new(generation, pepper(current), previous.map(pepper)).expect("peppers")
    }

    /// The installation's pepper until now, the next one, and one that nobody should have.
    const OLD: u8 = 1;
    const NEW: u8 = 2;
    const WRONG: u8 = 3;

    fn at_7() -> Standing {
        let current = Generation { number: 7, fingerprint: fingerprint(OLD) };
        Standing { current, previous_fingerprint: None, next_fingerprint: None }
    }

    fn announced() -> Standing {
        Standing { next_fingerprint: Some(fingerprint(NEW)), ..at_7() }
    }

    fn moved_to_8() -> Standing {
        let current = Generation { number: 8, fingerprint: fingerprint(NEW) };
        Standing { current, previous_fingerprint: Some(fingerprint(OLD)), next_fingerprint: None }
    }

    fn finished_at_8() -> Standing {
        Standing { previous_fingerprint: None, ..moved_to_8() }
    }

    fn next() -> Generation {
        held(8, NEW, None).current()
    }

    #[test]
    fn every_cell_of_the_table() {
        use Refusal::{OtherGeneration, OtherNext, OtherPepper, OtherPrevious, PreviousMissing};
        let other = |recorded, given| Err(OtherGeneration { recorded, given });
        for (standing, (generation, current, previous), expected) in [
            (at_7(), (7, OLD, None), Ok(Start::Ready)),
            (at_7(), (7, OLD, Some(WRONG)), Ok(Start::Ready)),
            (at_7(), (8, NEW, Some(OLD)), Ok(Start::Announce(next()))),
            (at_7(), (8, NEW, None), Err(PreviousMissing { generation: 7 })),
            (at_7(), (8, NEW, Some(WRONG)), Err(OtherPrevious { generation: 7 })),
            (at_7(), (7, WRONG, None), Err(OtherPepper { generation: 7 })),
            (at_7(), (7, NEW, Some(OLD)), Err(OtherPepper { generation: 7 })),
            (at_7(), (6, OLD, None), other(7, 6)),
            (at_7(), (9, NEW, Some(OLD)), other(7, 9)),
            (announced(), (7, OLD, None), Ok(Start::Ready)),
            (announced(), (8, NEW, Some(OLD)), Ok(Start::Ready)),
            (announced(), (8, WRONG, Some(OLD)), Err(OtherNext { generation: 8 })),
            (announced(), (8, NEW, None), Err(PreviousMissing { generation: 7 })),
            (announced(), (8, NEW, Some(WRONG)), Err(OtherPrevious { generation: 7 })),
            (announced(), (9, NEW, Some(OLD)), other(7, 9)),
            (moved_to_8(), (8, NEW, Some(OLD)), Ok(Start::Ready)),
            (moved_to_8(), (8, NEW, None), Ok(Start::UnlessTokensAreLeft { generation: 7 })),
            (moved_to_8(), (8, NEW, Some(WRONG)), Err(OtherPrevious { generation: 7 })),
            (moved_to_8(), (8, WRONG, None), Err(OtherPepper { generation: 8 })),
            (moved_to_8(), (8, WRONG, Some(OLD)), Err(OtherPepper { generation: 8 })),
            (moved_to_8(), (7, OLD, None), other(8, 7)),
            (moved_to_8(), (9, WRONG, Some(NEW)), other(8, 9)),
            (finished_at_8(), (8, NEW, None), Ok(Start::Ready)),
            (finished_at_8(), (8, NEW, Some(OLD)), Ok(Start::Ready)),
            (finished_at_8(), (7, OLD, None), other(8, 7)),
        ] {
            let started = standing.start(&held(generation, current, previous));
            assert_eq!(started, expected, "{standing:?} with {generation} {current} {previous:?}");
        }
    }

    #[test]
    fn steps_are_taken_once_and_in_order() {
        let missing = Refusal::PreviousMissing { generation: 7 };
        for (standing, (generation, current, previous), step, finish) in [
            (at_7(), (7, OLD, None), Err(Refusal::NoNext { next: 8 }), Ok(false)),
            (at_7(), (8, NEW, None), Err(missing), Err(missing)),
            (at_7(), (8, NEW, Some(OLD)), Ok(Step::Move), Err(Refusal::NotMoved { next: 8 })),
            (announced(), (8, NEW, Some(OLD)), Ok(Step::Move), Err(Refusal::NotMoved { next: 8 })),
            (moved_to_8(), (8, NEW, Some(OLD)), Ok(Step::Moved), Ok(true)),
            (moved_to_8(), (8, NEW, None), Ok(Step::Moved), Ok(true)),
            (finished_at_8(), (8, NEW, Some(OLD)), Ok(Step::Over), Ok(false)),
            (finished_at_8(), (8, NEW, None), Err(Refusal::NoNext { next: 9 }), Ok(false)),
        ] {
            let held = held(generation, current, previous);
            assert_eq!(standing.step(&held), step, "{standing:?} {generation} {previous:?}");
            assert_eq!(standing.can_finish(&held), finish, "{standing:?} {generation} {previous:?}");
        }
    }

    #[test]
    fn a_refusal_names_the_setting_and_the_way_out() {
        for (refusal, said) in [
            (
                Refusal::OtherGeneration { recorded: 7, given: 9 },
                "set POSTRIDER_TOKEN_PEPPER_GENERATION to 7",
            ),
            (Refusal::OtherPepper { generation: 7 }, "set POSTRIDER_TOKEN_PEPPER to the one"),
            (Refusal::OtherNext { generation: 8 }, "POSTRIDER_TOKEN_PEPPER to that one"),
            (
                Refusal::PreviousMissing { generation: 7 },
                "set POSTRIDER_TOKEN_PEPPER_PREVIOUS to the pepper of",
            ),
            (
                Refusal::OtherPrevious { generation: 7 },
                "POSTRIDER_TOKEN_PEPPER_PREVIOUS is not the pepper of",
            ),
            (Refusal::NoNext { next: 8 }, "POSTRIDER_TOKEN_PEPPER_GENERATION to 8"),
            (Refusal::NotMoved { next: 8 }, "run `postrider keys rotate-pepper` first"),
        ] {
            let text = refusal.to_string();
            assert!(text.contains(said), "{said}: {text}");
        }
    }
}
