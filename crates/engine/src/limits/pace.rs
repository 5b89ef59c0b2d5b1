//! How quickly an endpoint answers these days, judged by its answers and by what has not come back yet.

use std::time::Duration;

/// Slower than this on average, or silent for this long with requests in flight: slow.
const SLOW: Duration = Duration::from_secs(1);
/// Weight of the newest answer in the average.
const NEWEST: f64 = 0.2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Class {
    Quick = 0,
    #[default]
    Unproven = 1,
    Slow = 2,
}

#[derive(Debug, Default)]
pub(super) struct Pace {
    class: Class,
    /// Running average of the latency; `None` before the first answer.
    average: Option<Duration>,
    /// With requests in flight: when the last of them was answered, or the first of them started.
    waiting_since: Option<Duration>,
}

impl Pace {
    pub(super) const fn class(&self) -> Class {
        self.class
    }

    /// A request starts.
    pub(super) fn started(&mut self, now: Duration) {
        self.waiting_since.get_or_insert(now);
    }

    /// No request is in flight any more.
    pub(super) const fn idle(&mut self) {
        self.waiting_since = None;
    }

    /// A request came back, with an answer or without.
    pub(super) fn answered(&mut self, latency: Duration, now: Duration) -> Class {
        self.average = Some(match self.average {
            Some(average) => average.mul_f64(1.0 - NEWEST) + latency.mul_f64(NEWEST),
            None => latency,
        });
        self.waiting_since = Some(now);
        self.observe(now)
    }

    /// Looks again: silence makes an endpoint slow, too.
    pub(super) fn observe(&mut self, now: Duration) -> Class {
        let is_silent = self.waiting_since.is_some_and(|since| now.saturating_sub(since) > SLOW);
        self.class = match self.average {
            _ if is_silent => Class::Slow,
            Some(average) if average > SLOW => Class::Slow,
            Some(_) => Class::Quick,
            None => Class::Unproven,
        };
        self.class
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_silence_decide_the_class() {
        let ms = Duration::from_millis;
        let mut pace = Pace::default();
        assert_eq!(pace.observe(ms(0)), Class::Unproven);
        pace.started(ms(0));
        assert_eq!(pace.observe(ms(1_000)), Class::Unproven);
        assert_eq!(pace.observe(ms(1_001)), Class::Slow, "silent for too long");
        assert_eq!(pace.answered(ms(20), ms(1_100)), Class::Quick);
        pace.idle();
        assert_eq!(pace.observe(ms(60_000)), Class::Quick, "nothing is asked of it");
        assert_eq!(pace.answered(ms(30_000), ms(90_000)), Class::Slow);
        for _ in 0..20 {
            pace.answered(ms(10), ms(90_000));
        }
        assert_eq!(pace.class(), Class::Quick, "it recovered");
    }
}
