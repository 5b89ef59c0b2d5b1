//! Chance that can be repeated: everything random in a soak is drawn from its seed.

use std::time::Duration;

use postrider_testkit::chance::Bits;

#[derive(Debug, Clone)]
pub(crate) struct Chance(Bits);

impl Chance {
    /// A stream of its own for each subject, so that what one draws does not depend on when the others do.
    pub(crate) fn of(seed: u64, subject: &[u64]) -> Self {
        Self(subject.iter().fold(Bits::of(seed), |mut bits, part| Bits::of(bits.draw() ^ part)))
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.0.draw()
    }

    /// A number below `bound`, which must not be 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A length between the two, in whole milliseconds.
    pub(crate) fn between(&mut self, shortest: Duration, longest: Duration) -> Duration {
        let span = u64::try_from(longest.saturating_sub(shortest).as_millis()).unwrap_or(u64::MAX - 1);
        shortest + Duration::from_millis(self.below(span + 1))
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let chosen = usize::try_from(self.below(last as u64 + 1)).unwrap_or(last);
            items.swap(last, chosen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_and_a_subject_make_one_stream() {
        let drawn = |seed, subject: &[u64]| {
            let mut chance = Chance::of(seed, subject);
            [chance.draw(), chance.draw()]
        };
        assert_eq!(drawn(1, &[2, 3]), drawn(1, &[2, 3]));
        assert_ne!(drawn(1, &[2, 3]), drawn(1, &[3, 2]));
        assert_ne!(drawn(1, &[2]), drawn(2, &[2]));
    }

    #[test]
    fn lengths_stay_between_their_ends_and_reach_both() {
        let (shortest, longest) = (Duration::from_millis(3), Duration::from_millis(5));
        let mut chance = Chance::of(7, &[]);
        let drawn: std::collections::BTreeSet<u128> =
            (0..100).map(|_| chance.between(shortest, longest).as_millis()).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [3, 4, 5]);
    }
}
