//! A token bucket: so many tokens per second, and so many at once after a pause.
//!
//! Invariant: over any time no more is taken than the rate allows and a burst, save that what is taken at once may be more
//! than a burst: that waits until the bucket is full and leaves a debt, which the rate pays off first.

use std::{num::NonZeroU32, ops::RangeInclusive, time::Duration};

/// How fast a bucket fills, and how much it holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    pub per_second: f64,
    /// What may be taken at once after a pause.
    pub burst: NonZeroU32,
}

impl Rate {
    /// Bounds of [`Rate::per_second`] at an endpoint: from one request in a hundred seconds up.
    pub const PER_SECOND_BOUNDS: RangeInclusive<f64> = 0.01..=10_000.0;
    /// Largest [`Rate::burst`] of an endpoint.
    pub const BURST_BOUND: NonZeroU32 = NonZeroU32::new(10_000).expect("not zero");

    /// The burst where none is given: what a second allows, rounded up.
    pub fn a_second_of(per_second: f64) -> NonZeroU32 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate is positive; beyond 2^32 the cast gives the largest number there is"
        )]
        let whole = per_second.ceil() as u32;
        NonZeroU32::new(whole).unwrap_or(NonZeroU32::MIN)
    }
}

/// How a bucket stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// Whole tokens; none while there is a debt.
    pub tokens: u32,
    pub until_full: Duration,
}

/// Times are monotonic and have any beginning.
#[derive(Debug)]
pub struct Bucket {
    rate: Rate,
    /// Less than zero where more was taken than there was.
    tokens: f64,
    filled_at: Duration,
}

impl Bucket {
    pub fn full(rate: Rate, now: Duration) -> Self {
        Self { rate, tokens: f64::from(rate.burst.get()), filled_at: now }
    }

    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Goes on under a changed rate with what is in the bucket.
    pub fn set_rate(&mut self, rate: Rate, now: Duration) {
        if self.rate != rate {
            self.fill(now);
            self.rate = rate;
            self.tokens = self.tokens.min(f64::from(rate.burst.get()));
        }
    }

    /// Goes on with so many tokens: somebody else has counted. Less than zero is a debt.
    pub fn set_tokens(&mut self, tokens: f64, now: Duration) {
        self.filled_at = self.filled_at.max(now);
        self.tokens = tokens.min(f64::from(self.rate.burst.get()));
    }

    pub fn level(&mut self, now: Duration) -> Level {
        Level { tokens: self.whole_tokens(now), until_full: self.until_full(now) }
    }

    /// None while there is a debt.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and a burst in 32 bits"
    )]
    pub fn whole_tokens(&mut self, now: Duration) -> u32 {
        self.fill(now);
        self.tokens.floor().max(0.0) as u32
    }

    /// Takes so many tokens at once, or says how long it takes until it can.
    ///
    /// # Errors
    /// The time until there are as many, or the bucket is full.
    pub fn take(&mut self, count: u32, now: Duration) -> Result<(), Duration> {
        self.fill(now);
        if self.tokens < self.needed(count) {
            return Err(self.wait(count, now));
        }
        self.tokens -= f64::from(count);
        Ok(())
    }

    /// Time until so many tokens can be taken.
    pub fn wait(&self, count: u32, now: Duration) -> Duration {
        let missing = (self.needed(count) - self.there(now)).max(0.0);
        // A microsecond more, so that rounding does not make the caller come a moment too early.
        self.time_for(missing).saturating_add(Duration::from_micros(1))
    }

    pub fn is_full(&self, now: Duration) -> bool {
        self.there(now) >= f64::from(self.rate.burst.get())
    }

    /// Time until it is full.
    pub fn until_full(&self, now: Duration) -> Duration {
        self.time_for((f64::from(self.rate.burst.get()) - self.there(now)).max(0.0))
    }

    /// More than the bucket holds will never be in it.
    fn needed(&self, count: u32) -> f64 {
        f64::from(count.min(self.rate.burst.get()))
    }

    fn there(&self, now: Duration) -> f64 {
        self.tokens + now.saturating_sub(self.filled_at).as_secs_f64() * self.rate.per_second
    }

    fn time_for(&self, tokens: f64) -> Duration {
        Duration::try_from_secs_f64(tokens / self.rate.per_second).unwrap_or(Duration::MAX)
    }

    fn fill(&mut self, now: Duration) {
        self.tokens = self.there(now).min(f64::from(self.rate.burst.get()));
        self.filled_at = self.filled_at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate(per_second: f64, burst: u32) -> Rate {
        Rate { per_second, burst: NonZeroU32::new(burst).expect("not zero") }
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let mut bucket = Bucket::full(rate(10.0, 2), Duration::ZERO);
        assert_eq!(bucket.whole_tokens(Duration::ZERO), 2);
        assert!(bucket.take(1, Duration::ZERO).is_ok());
        assert!(bucket.take(1, Duration::ZERO).is_ok());
        let wait = bucket.take(1, Duration::ZERO).expect_err("it is empty");
        assert!(bucket.take(1, wait).is_ok());
        assert!(bucket.take(1, wait).is_err());
        assert!(bucket.is_full(Duration::from_secs(1)));
        assert_eq!(bucket.whole_tokens(Duration::from_secs(60)), 2);
    }

    #[test]
    fn what_is_larger_than_the_burst_waits_for_a_full_bucket_and_leaves_a_debt() {
        let second = Duration::from_secs(1);
        let mut bucket = Bucket::full(rate(10.0, 5), Duration::ZERO);
        assert_eq!(bucket.take(1, Duration::ZERO), Ok(()));
        let wait = bucket.take(25, Duration::ZERO).expect_err("it is not full");
        assert_eq!(wait.as_millis(), 100);
        assert_eq!(bucket.take(25, second), Ok(()));
        assert_eq!(bucket.whole_tokens(second), 0, "a debt of 20");
        assert_eq!(bucket.take(1, second).expect_err("a debt").as_millis(), 2_100);
        assert_eq!(bucket.take(0, second).expect_err("even nothing has to wait").as_millis(), 2_000);
        assert_eq!(bucket.until_full(second).as_millis(), 2_500);
        assert_eq!(bucket.take(1, second * 4), Ok(()));
    }

    #[test]
    fn a_smaller_burst_takes_what_is_too_much_and_a_clock_that_stands_still_gives_nothing() {
        let mut bucket = Bucket::full(rate(10.0, 5), Duration::from_secs(9));
        bucket.set_rate(rate(1.0, 2), Duration::from_secs(9));
        assert_eq!(bucket.whole_tokens(Duration::from_secs(8)), 2);
        assert_eq!(bucket.take(2, Duration::from_secs(8)), Ok(()));
        assert_eq!(bucket.whole_tokens(Duration::from_secs(9)), 0);
        assert_eq!(bucket.whole_tokens(Duration::from_secs(10)), 1);
    }

    proptest! {
        /// Whatever is asked for, and when: up to any time no more is given than a burst, what the rate gave by then,
        /// and what the last taking had beyond a burst.
        #[test]
        fn no_more_is_given_than_rate_burst_and_one_debt(
            per_second in 0.1_f64..100.0,
            burst in 1_u32..50,
            asked in prop::collection::vec((0_u64..2_000, 1_u32..80), 1..60),
        ) {
            let mut bucket = Bucket::full(rate(per_second, burst), Duration::ZERO);
            let (mut now, mut given) = (Duration::ZERO, 0_u32);
            for (pause_ms, count) in asked {
                now += Duration::from_millis(pause_ms);
                match bucket.take(count, now) {
                    Ok(()) => {
                        given += count;
                        let debt = f64::from(count.saturating_sub(burst));
                        let most = f64::from(burst) + now.as_secs_f64() * per_second + debt;
                        prop_assert!(f64::from(given) <= most + 1e-6, "{given} of {most} at {now:?}");
                    }
                    Err(wait) => {
                        now += wait;
                        prop_assert_eq!(bucket.take(count, now), Ok(()), "after the time that was told");
                        given += count;
                    }
                }
            }
        }
    }
}
