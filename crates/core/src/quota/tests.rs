use std::num::NonZeroU32;

use proptest::prelude::*;
use time::OffsetDateTime;

use super::*;
use crate::bucket::Rate;

/// A moment in the middle of minute 1,000,000.
fn now() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(60_000_030).expect("a time")
}

const RUNNING: i32 = 1_000_000;
const NONE: Quotas = Quotas { hourly_events: None, hourly_bytes: None, open_deliveries: None };

fn minute(number: i32, events: u64, bytes: u64) -> Minute {
    Minute { number, events, bytes }
}

fn used(minutes: &[Minute], open: Option<u64>) -> Usage {
    Usage::at(now(), minutes.iter().copied(), open)
}

#[test]
fn a_tenants_own_settings_go_before_the_defaults_and_zero_is_no_limit() {
    let rate =
        |per_second, burst| Some(Rate { per_second, burst: NonZeroU32::new(burst).expect("not zero") });
    let set = |rate, burst, hourly_events| Settings { rate, burst, hourly_events, ..Settings::default() };
    for (own, default, expected_rate, expected_events) in [
        (set(None, None, None), set(None, None, None), None, None),
        (set(None, None, None), set(Some(2.5), None, Some(7)), rate(2.5, 3), Some(7)),
        (set(None, None, None), set(Some(2.5), Some(0), Some(0)), rate(2.5, 3), None),
        (set(Some(0.0), None, Some(0)), set(Some(2.5), Some(9), Some(7)), None, None),
        (set(Some(10.0), None, Some(8)), set(Some(2.5), Some(9), Some(7)), rate(10.0, 9), Some(8)),
        (set(Some(10.0), Some(0), None), set(Some(2.5), Some(9), None), rate(10.0, 10), None),
        (set(Some(0.01), None, None), set(None, None, None), rate(0.01, 1), None),
        (set(None, Some(4), None), set(Some(2.5), Some(9), None), rate(2.5, 4), None),
        (set(None, Some(4), None), set(None, Some(9), None), None, None),
    ] {
        let limits = own.over(&default);
        assert_eq!((limits.rate, limits.quotas.hourly_events), (expected_rate, expected_events), "{own:?}");
        assert_eq!(limits.quotas.is_any(), expected_events.is_some());
    }
}

#[test]
fn an_hour_is_the_running_minute_and_the_sixty_before() {
    let usage = used(
        &[
            minute(RUNNING - 61, 100, 100),
            minute(RUNNING - 60, 1, 10),
            minute(RUNNING, 2, 20),
            minute(RUNNING, 4, 40),
            // The clock was set back.
            minute(RUNNING + 60, 8, 80),
            minute(RUNNING + 61, 100, 100),
        ],
        None,
    );
    let expected = [minute(RUNNING - 60, 1, 10), minute(RUNNING, 6, 60), minute(RUNNING + 60, 8, 80)];
    assert_eq!(usage.minutes(), expected);
}

#[test]
fn what_does_not_fit_is_told_what_is_left_and_when_there_is_more() {
    let minutes = [minute(RUNNING - 60, 1, 500), minute(RUNNING - 1, 2, 300), minute(RUNNING, 7, 100)];
    let event = Demand { bytes: 200, deliveries: 3 };
    let refused = |quotas: Quotas, open| {
        let excess = used(&minutes, open).check(&quotas, event, now()).err()?;
        let wait = excess.retry_after.map(|wait| wait.as_secs());
        Some(((excess.quota, excess.left, wait), excess.is_for_good()))
    };
    let check = |quotas: Quotas, open, expected: Option<(Quota, u64, Option<u64>)>| {
        assert_eq!(refused(quotas, open), expected.map(|told| (told, false)), "{quotas:?} {open:?}");
    };
    let never = |quotas: Quotas, open, expected: (Quota, u64)| {
        let (quota, left) = expected;
        assert_eq!(refused(quotas, open), Some(((quota, left, None), true)), "{quotas:?} {open:?}");
    };
    let events = |limit| Quotas { hourly_events: Some(limit), ..NONE };
    check(NONE, None, None);
    check(events(11), None, None);
    // The oldest minute leaves at the end of the running one.
    check(events(10), None, Some((Quota::HourlyEvents, 0, Some(30))));
    check(events(9), None, Some((Quota::HourlyEvents, 0, Some(59 * 60 + 30))));
    check(events(8), None, Some((Quota::HourlyEvents, 0, Some(59 * 60 + 30))));
    check(events(7), None, Some((Quota::HourlyEvents, 0, Some(60 * 60 + 30))));
    check(events(1), None, Some((Quota::HourlyEvents, 0, Some(60 * 60 + 30))));
    let bytes = |limit| Quotas { hourly_bytes: Some(limit), ..NONE };
    check(bytes(1_100), None, None);
    check(bytes(1_099), None, Some((Quota::HourlyBytes, 199, Some(30))));
    check(bytes(200), None, Some((Quota::HourlyBytes, 0, Some(60 * 60 + 30))));
    never(bytes(199), None, (Quota::HourlyBytes, 0));
    let open = |limit| Quotas { open_deliveries: Some(limit), ..NONE };
    check(open(8), Some(5), None);
    check(open(7), Some(5), Some((Quota::OpenDeliveries, 2, None)));
    check(open(7), Some(50), Some((Quota::OpenDeliveries, 0, None)));
    check(open(1_000), None, Some((Quota::OpenDeliveries, 0, None)));
    check(open(3), Some(1), Some((Quota::OpenDeliveries, 2, None)));
    never(open(2), Some(0), (Quota::OpenDeliveries, 2));
    never(open(2), None, (Quota::OpenDeliveries, 0));
    // What will be free in an hour is no answer to what never fits.
    never(Quotas { hourly_events: Some(1), ..open(2) }, Some(0), (Quota::OpenDeliveries, 2));
    check(
        Quotas { hourly_events: Some(1), ..open(3) },
        Some(3),
        Some((Quota::HourlyEvents, 0, Some(60 * 60 + 30))),
    );
    let nobody = Demand { bytes: 1, deliveries: 0 };
    assert_eq!(used(&minutes, None).check(&open(1), nobody, now()), Ok(()), "it opens nothing");
}

fn candidate(quotas: &Quotas, bytes: u64, key: Option<u32>, is_repeat: bool) -> Candidate<'_, u32> {
    Candidate { account: 0, quotas, demand: Demand { bytes, deliveries: 1 }, key, is_repeat }
}

#[test]
fn a_batch_is_decided_in_its_order_and_repeats_cost_nothing() {
    let quotas = Quotas { hourly_events: Some(3), hourly_bytes: Some(100), ..NONE };
    let batch = [
        candidate(&quotas, 90, Some(1), false),
        // Too large, and the next of this key is not.
        candidate(&quotas, 11, Some(2), false),
        candidate(&quotas, 10, Some(2), false),
        // Repeats, of the batch and of the past.
        candidate(&quotas, 11, Some(2), false),
        candidate(&quotas, 5_000, Some(3), true),
        candidate(&quotas, 0, None, false),
        candidate(&quotas, 0, None, false),
    ];
    let mut accounts = [used(&[], Some(7))];
    let verdicts = decide(&mut accounts, batch, now());
    let kinds: Vec<char> = verdicts
        .iter()
        .map(|verdict| match verdict {
            Verdict::Counted => 'c',
            Verdict::Free => 'f',
            Verdict::Refused(Excess { quota: Quota::HourlyBytes, .. }) => 'b',
            Verdict::Refused(_) => 'e',
        })
        .collect();
    assert_eq!(kinds, ['c', 'b', 'c', 'f', 'f', 'c', 'e']);
    assert_eq!(
        (accounts[0].minutes(), accounts[0].open_at_most()),
        (&[minute(RUNNING, 3, 100)][..], Some(10))
    );
}

#[test]
fn whoever_has_no_account_is_let_through() {
    let elsewhere = Candidate { account: 1, ..candidate(&NONE, 1, Some(1), false) };
    let mut accounts = [used(&[], None)];
    assert_eq!(decide(&mut accounts, [elsewhere, elsewhere], now()), [Verdict::Free; 2]);
    assert!(accounts[0].minutes().is_empty());
}

proptest! {
    /// Whatever is asked for and however the time goes on: no window of an hour ever has more than the quotas, and what
    /// is told about the wait is true.
    #[test]
    fn no_hour_exceeds_the_quotas(
        limits in (1_u64..20, 1_u64..500),
        asked in prop::collection::vec((0_i64..900, 0_u64..120), 1..80),
    ) {
        let quotas = Quotas { hourly_events: Some(limits.0), hourly_bytes: Some(limits.1), ..NONE };
        let mut time = now();
        let mut written: Vec<Minute> = Vec::new();
        let mut accepted: Vec<(OffsetDateTime, u64)> = Vec::new();
        for (pause_s, bytes) in asked {
            time += time::Duration::seconds(pause_s);
            let mut usage = Usage::at(time, written.iter().copied(), None);
            let demand = Demand { bytes, deliveries: 1 };
            match usage.check(&quotas, demand, time) {
                Ok(()) => {
                    usage.add(demand, time);
                    accepted.push((time, bytes));
                }
                Err(Excess { retry_after: Some(wait), .. }) => {
                    let later = Usage::at(time + wait, written.iter().copied(), None);
                    // Another quota may still be in the way, for longer.
                    if let Err(excess) = later.check(&quotas, demand, time + wait) {
                        prop_assert!(excess.quota == Quota::HourlyBytes, "{excess:?} after {wait:?}");
                    }
                }
                Err(Excess { retry_after: None, .. }) => prop_assert!(bytes > limits.1),
            }
            written = usage.minutes().to_vec();
            prop_assert!(written.len() <= 61);
            let hour = accepted.iter().filter(|(at, _)| *at > time - time::Duration::HOUR);
            let (events, bytes) = hour.fold((0, 0), |(events, sum), (_, bytes)| (events + 1, sum + bytes));
            prop_assert!(events <= limits.0 && bytes <= limits.1, "{events} events, {bytes} bytes");
        }
    }
}
