use proptest::prelude::*;
use time::macros::datetime;

use super::*;

const NOW: OffsetDateTime = datetime!(2026-03-01 12:00:00 UTC);

fn answered(status: u16) -> Outcome {
    Outcome::Answered(Answer { status, retry_after: None })
}

fn failed(kind: FailureKind) -> Outcome {
    Outcome::Failed(Failure { kind, detail: String::new() })
}

fn progress(tries: u16, left: Duration) -> Progress {
    Progress { tries, deadline: NOW + left, now: NOW }
}

const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn statuses_are_judged() {
    let delivered = Verdict::Delivered;
    let rejected = Verdict::Dead { reason: DeadReason::Rejected };
    let gone = Verdict::Dead { reason: DeadReason::EndpointGone };
    let again = Verdict::Retry { delay: Duration::from_millis(2_500) };
    for (status, expected) in [
        (200, delivered),
        (204, delivered),
        (299, delivered),
        (100, rejected),
        (199, rejected),
        (300, rejected),
        (301, rejected),
        (304, rejected),
        (307, rejected),
        (400, rejected),
        (404, rejected),
        (422, rejected),
        (600, rejected),
        (999, rejected),
        (410, gone),
        (408, again),
        (425, again),
        (429, again),
        (500, again),
        (501, again),
        (599, again),
    ] {
        assert_eq!(decide(&Rules::default(), &answered(status), progress(1, DAY), 0.0), expected, "{status}");
    }
}

#[test]
fn a_failed_request_is_tried_again_until_attempts_or_time_run_out() {
    let outcome = failed(FailureKind::Timeout);
    let dead = |reason| Verdict::Dead { reason };
    let check = |tries, left, expected| {
        assert_eq!(
            decide(&Rules::default(), &outcome, progress(tries, left), 0.0),
            expected,
            "{tries} {left:?}"
        );
    };
    check(24, DAY, Verdict::Retry { delay: Duration::from_secs(3_600) });
    check(25, DAY, dead(DeadReason::AttemptsExhausted));
    check(26, DAY, dead(DeadReason::AttemptsExhausted));
    check(1, Duration::from_millis(2_501), Verdict::Retry { delay: Duration::from_millis(2_500) });
    check(1, Duration::from_millis(2_500), dead(DeadReason::DeadlinePassed));
    check(1, Duration::ZERO, dead(DeadReason::DeadlinePassed));
}

#[test]
fn retry_after_lengthens_a_wait_but_never_past_the_cap_or_the_deadline() {
    let check = |value: &str, left, expected| {
        let outcome = Outcome::Answered(Answer { status: 429, retry_after: RetryAfter::parse(value) });
        assert_eq!(decide(&Rules::default(), &outcome, progress(1, left), 0.0), expected, "{value}");
    };
    let again = |delay| Verdict::Retry { delay };
    check("120", DAY, again(Duration::from_secs(120)));
    check("1", DAY, again(Duration::from_millis(2_500)));
    check("99999999999", DAY, again(MAX_RETRY_AFTER));
    check("99999999999999999999999999", DAY, again(MAX_RETRY_AFTER));
    check("Sun, 01 Mar 2026 12:10:00 GMT", DAY, again(Duration::from_secs(600)));
    check("Fri, 31 Dec 9999 23:59:59 GMT", DAY, again(MAX_RETRY_AFTER));
    check("Sun, 01 Mar 2020 12:10:00 GMT", DAY, again(Duration::from_millis(2_500)));
    check("Thu, 01 Jan 1970 00:00:00 GMT", DAY, again(Duration::from_millis(2_500)));
    check("120", Duration::from_secs(60), Verdict::Dead { reason: DeadReason::DeadlinePassed });
    let spread = |value: &str, left, seconds, jitter| {
        let outcome = Outcome::Answered(Answer { status: 429, retry_after: RetryAfter::parse(value) });
        let delay = Duration::from_secs_f64(seconds);
        let verdict = decide(&Rules::default(), &outcome, progress(1, left), jitter);
        assert_eq!(verdict, again(delay), "{value} {jitter}");
    };
    spread("120", DAY, 126.0, 0.5);
    spread("120", DAY, 132.0, 1.0);
    // The policy's own delay, 5 seconds with this jitter, where that is longer.
    spread("4", DAY, 5.0, 1.0);
    // Chance kills nobody.
    spread("120", Duration::from_secs(121), 120.0, 1.0);
    spread("99999999999", DAY, MAX_RETRY_AFTER.as_secs_f64() * 1.1, 1.0);
    for ignored in ["1.5", "-5", "soon", "", "0x10", "1 2"] {
        assert_eq!(RetryAfter::parse(ignored), None, "{ignored}");
    }
    // Dates that nothing can hold.
    for ignored in
        ["Fri, 31 Dec 9999 23:59:60 GMT", "Sat, 01 Jan 10000 00:00:00 GMT", "Wed, 31 Dec 1969 23:59:59 GMT"]
    {
        assert_eq!(RetryAfter::parse(ignored), None, "{ignored}");
    }
}

#[test]
fn policies_outside_their_bounds_are_refused() {
    let seconds = Duration::from_secs;
    let check = |attempts, age, initial, max, expected| {
        assert_eq!(Policy::new(attempts, age, initial, max).err(), expected);
    };
    check(1, seconds(1), seconds(1), seconds(1), None);
    check(0, DAY, seconds(1), seconds(2), Some(Error::Attempts));
    check(101, DAY, seconds(1), seconds(2), Some(Error::Attempts));
    check(5, Duration::ZERO, seconds(1), seconds(2), Some(Error::Age));
    check(5, DAY * 8, seconds(1), seconds(2), Some(Error::Age));
    check(5, DAY, seconds(3), seconds(2), Some(Error::InitialDelay));
    check(5, DAY, Duration::ZERO, seconds(2), Some(Error::InitialDelay));
    check(5, DAY, seconds(3), DAY + seconds(1), Some(Error::MaxDelay));
}

proptest! {
    #[test]
    fn backoff_stays_between_half_and_the_whole_delay(tries in 0..=u16::MAX, jitter in -1.0..2.0_f64) {
        let policy = Policy::DEFAULT;
        let delay = policy.backoff(tries, jitter);
        prop_assert!(delay >= policy.initial_delay() / 2);
        prop_assert!(delay <= policy.max_delay());
        prop_assert!(policy.backoff(tries.saturating_add(1), 0.0) >= policy.backoff(tries, 0.0));
    }

    #[test]
    fn a_retry_always_starts_before_the_deadline(
        status in 100..1000_u16,
        seconds: Option<u64>,
        tries in 1..=200_u16,
        left_ms in 0..200_000_000_u64,
        jitter in 0.0..=1.0_f64,
    ) {
        let outcome = Outcome::Answered(Answer { status, retry_after: seconds.map(RetryAfter::Seconds) });
        let progress = progress(tries, Duration::from_millis(left_ms));
        if let Verdict::Retry { delay } = decide(&Rules::default(), &outcome, progress, jitter) {
            prop_assert!(progress.now + delay < progress.deadline);
            prop_assert!(tries < Policy::DEFAULT.max_attempts());
        }
    }
}
