//! Chance that repeats itself: everything a run decides comes from its seed, in the order in which it is asked.

use postrider_testkit::chance::Bits;
use uuid::Uuid;

#[derive(Debug, Clone)]
pub struct Chance(Bits);

impl Chance {
    pub const fn new(seed: u64) -> Self {
        Self(Bits::of(seed))
    }

    pub const fn bits(&mut self) -> u64 {
        self.0.draw()
    }

    /// A number in `0..count`; 0 where there is nothing to choose from.
    pub fn below(&mut self, count: usize) -> usize {
        let count = u64::try_from(count).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.bits() % count).unwrap_or_default()
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.bits() % (high - low + 1)
    }

    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// One of them; panics on none.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A copy of one of them; panics on none.
    pub fn choose<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// One of them, as often as its weight says; `None` where all weigh nothing.
    pub fn weighted<T: Copy>(&mut self, choices: &[(usize, T)]) -> Option<T> {
        let total: usize = choices.iter().map(|(weight, _)| weight).sum();
        if total == 0 {
            return None;
        }
        let mut at = self.below(total);
        choices.iter().find_map(|(weight, choice)| match at.checked_sub(*weight) {
            Some(left) => {
                at = left;
                None
            }
            None => Some(*choice),
        })
    }

    pub const fn uuid(&mut self) -> Uuid {
        Uuid::from_u64_pair(self.bits(), self.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::Chance;

    #[test]
    fn a_seed_repeats_itself_and_weights_count() {
        let draw = |seed| {
            let mut chance = Chance::new(seed);
            (0..1_000).map(|_| chance.weighted(&[(0, 'a'), (1, 'b'), (3, 'c')])).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let of = |letter| draw(1).iter().filter(|drawn| **drawn == Some(letter)).count();
        assert_eq!(of('a'), 0);
        assert!((650..850).contains(&of('c')), "{}", of('c'));
        assert_eq!(Chance::new(1).weighted(&[(0, 'a')]), None);
    }
}
