//! A token bucket: so many requests per second, and so many at once after a pause.

use std::time::Duration;

use postrider_store::endpoints::Rate;

#[derive(Debug)]
pub(super) struct Bucket {
    rate: Rate,
    tokens: f64,
    filled_at: Duration,
}

impl Bucket {
    pub(super) fn full(rate: Rate, now: Duration) -> Self {
        Self { rate, tokens: f64::from(rate.burst.get()), filled_at: now }
    }

    /// Goes on under a changed rate with what is in the bucket.
    pub(super) fn set_rate(&mut self, rate: Rate, now: Duration) {
        if self.rate != rate {
            self.fill(now);
            self.rate = rate;
            self.tokens = self.tokens.min(f64::from(rate.burst.get()));
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and a burst in 32 bits"
    )]
    pub(super) fn whole_tokens(&mut self, now: Duration) -> u32 {
        self.fill(now);
        self.tokens.floor() as u32
    }

    /// Takes a token, or says how long the next one takes.
    pub(super) fn take(&mut self, now: Duration) -> Result<(), Duration> {
        self.fill(now);
        if self.tokens < 1.0 {
            return Err(self.wait(now));
        }
        self.tokens -= 1.0;
        Ok(())
    }

    /// Time until a whole token is there.
    pub(super) fn wait(&self, now: Duration) -> Duration {
        let there = self.tokens + now.saturating_sub(self.filled_at).as_secs_f64() * self.rate.per_second;
        let missing = (1.0 - there).max(0.0);
        // A microsecond more, so that rounding does not make the caller come a moment too early.
        Duration::try_from_secs_f64(missing / self.rate.per_second)
            .unwrap_or(Duration::MAX)
            .saturating_add(Duration::from_micros(1))
    }

    pub(super) fn is_full(&self, now: Duration) -> bool {
        let there = self.tokens + now.saturating_sub(self.filled_at).as_secs_f64() * self.rate.per_second;
        there >= f64::from(self.rate.burst.get())
    }

    fn fill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.filled_at);
        self.tokens =
            (self.tokens + passed.as_secs_f64() * self.rate.per_second).min(f64::from(self.rate.burst.get()));
        self.filled_at = self.filled_at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let rate = Rate { per_second: 10.0, burst: NonZeroU32::new(2).expect("not zero") };
        let mut bucket = Bucket::full(rate, Duration::ZERO);
        assert_eq!(bucket.whole_tokens(Duration::ZERO), 2);
        assert!(bucket.take(Duration::ZERO).is_ok());
        assert!(bucket.take(Duration::ZERO).is_ok());
        let wait = bucket.take(Duration::ZERO).expect_err("it is empty");
        assert!(bucket.take(wait).is_ok());
        assert!(bucket.take(wait).is_err());
        assert!(bucket.is_full(Duration::from_secs(1)));
        assert_eq!(bucket.whole_tokens(Duration::from_secs(60)), 2);
    }
}
