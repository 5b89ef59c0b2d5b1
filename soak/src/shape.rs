//! Which processes a soak runs, and what they share beside their database.
//!
//! Invariant: nothing else in the soak knows how many processes there are, or which of them publishers may ask.

/// How the program is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Two processes that do everything, and their database.
    Pair,
    /// Two processes that accept events and two that deliver them, with a RabbitMQ and a Redis beside the database.
    Fleet,
}

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    All,
    Api,
    Worker,
}

/// A process's place: whoever is killed there is followed by another of the same role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) index: usize,
    pub(crate) name: &'static str,
    pub(crate) role: Role,
}

/// What processes use and can do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dependency {
    Broker,
    Redis,
}

const PAIR: &[Seat] =
    &[Seat { index: 0, name: "a", role: Role::All }, Seat { index: 1, name: "b", role: Role::All }];

const FLEET: &[Seat] = &[
    Seat { index: 0, name: "api-a", role: Role::Api },
    Seat { index: 1, name: "api-b", role: Role::Api },
    Seat { index: 2, name: "worker-a", role: Role::Worker },
    Seat { index: 3, name: "worker-b", role: Role::Worker },
];

impl Shape {
    pub(crate) const fn seats(self) -> &'static [Seat] {
        match self {
            Self::Pair => PAIR,
            Self::Fleet => FLEET,
        }
    }

    pub(crate) const fn dependencies(self) -> &'static [Dependency] {
        match self {
            Self::Pair => &[],
            Self::Fleet => &[Dependency::Broker, Dependency::Redis],
        }
    }

    /// Where publishers may go.
    pub(crate) fn doors(self) -> Vec<Seat> {
        self.seats().iter().copied().filter(|seat| seat.role.takes_events()).collect()
    }
}

impl Role {
    /// As the command line and the database write it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Api => "api",
            Self::Worker => "worker",
        }
    }

    pub(crate) const fn takes_events(self) -> bool {
        match self {
            Self::All | Self::Api => true,
            Self::Worker => false,
        }
    }
}

impl Dependency {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Broker => "RabbitMQ",
            Self::Redis => "Redis",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_numbered_and_told_apart_and_some_have_a_door() {
        for shape in [Shape::Pair, Shape::Fleet] {
            let seats = shape.seats();
            assert!(seats.iter().map(|seat| seat.index).eq(0..seats.len()), "{shape:?}");
            let names: std::collections::BTreeSet<_> = seats.iter().map(|seat| seat.name).collect();
            assert_eq!(names.len(), seats.len(), "{shape:?}");
            assert!(shape.doors().len() > 1, "{shape:?}");
        }
    }
}
