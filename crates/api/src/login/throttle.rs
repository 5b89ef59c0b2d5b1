//! How fast somebody may guess passwords: per account, and per address he does it from.
//!
//! A few failures are free; each further one doubles the wait before the next attempt, up to a minute, and what waits is
//! forgotten after a quarter of an hour. An attempt counts as failed from its beginning, so many at once gain nothing; one
//! that is refused here does not count, so nobody's wait grows while others keep asking. Somebody who logged in from an
//! address lately is counted by that address, apart from strangers who guess at the same account: they do not lock him
//! out.
//!
//! Invariant: the memory is fixed. Whoever is counted has a slot by a hash that nobody outside can compute; two who share
//! one wait for each other's failures, and none can push another's out.

use std::{
    hash::{BuildHasher as _, RandomState},
    net::{IpAddr, Ipv6Addr},
    sync::{Mutex, PoisonError},
};

use time::OffsetDateTime;

/// Slots of each table; 16 bytes each.
const SLOTS: usize = 1 << 14;
/// Failures without a wait.
const FREE_FOR_ACCOUNT: u32 = 5;
/// More from an address, behind which there may be a whole office.
const FREE_FOR_ADDRESS: u32 = 50;
/// Longest wait in seconds: short enough for the rightful owner, and 1,440 guesses a day for everybody else.
const MAX_WAIT_SECONDS: u32 = 60;
/// After so long without another failure all is forgotten (15 minutes).
const FORGOTTEN_AFTER_MS: i64 = 15 * 60 * 1_000;

/// What is remembered of failed attempts.
pub(crate) struct Throttle {
    hasher: RandomState,
    tables: Mutex<Tables>,
}

struct Tables {
    accounts: Vec<Slot>,
    addresses: Vec<Slot>,
    /// Hashes of accounts with the addresses that they were logged in to from.
    known: Vec<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    failures: u32,
    /// Since 1970.
    last_failure_ms: i64,
    /// Somebody was told to wait since then.
    has_refused: bool,
}

/// What an attempt is refused with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) seconds: u32,
    /// Nobody was told to wait since the last attempt that was let through: of many that are refused only one need cost
    /// anything.
    pub(crate) is_first: bool,
}

/// An attempt that was let through, and counts as failed until its end is known.
#[must_use]
pub(crate) struct Attempt<'a> {
    throttle: &'a Throttle,
    account: usize,
    address: Option<usize>,
    /// The account from this address.
    pair: u64,
}

impl Default for Throttle {
    fn default() -> Self {
        let tables = Tables {
            accounts: vec![Slot::default(); SLOTS],
            addresses: vec![Slot::default(); SLOTS],
            known: vec![0; SLOTS],
        };
        Self { hasher: RandomState::new(), tables: Mutex::new(tables) }
    }
}

impl Throttle {
    /// Lets an attempt through.
    ///
    /// # Errors
    /// How long to wait.
    pub(crate) fn admit(
        &self,
        account: &str,
        address: Option<IpAddr>,
        now: OffsetDateTime,
    ) -> Result<Attempt<'_>, Wait> {
        let now_ms = milliseconds(now);
        let network = address.map(network);
        let pair = self.hasher.hash_one((account, network));
        let alone = self.hasher.hash_one(account);
        let address = network.map(|network| index(self.hasher.hash_one(network)));
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = tables.known[index(pair)] == pair;
        let account = index(if is_known { pair } else { alone });

        let of_account = tables.accounts[account].wait_seconds(FREE_FOR_ACCOUNT, now_ms);
        let of_address =
            address.map_or(0, |address| tables.addresses[address].wait_seconds(FREE_FOR_ADDRESS, now_ms));
        match of_account.max(of_address) {
            0 => {}
            seconds => {
                let slot = match address {
                    Some(address) if of_account == 0 => &mut tables.addresses[address],
                    Some(_) | None => &mut tables.accounts[account],
                };
                let is_first = !std::mem::replace(&mut slot.has_refused, true);
                return Err(Wait { seconds, is_first });
            }
        }
        tables.accounts[account].count(now_ms);
        if let Some(address) = address {
            tables.addresses[address].count(now_ms);
        }
        drop(tables);
        Ok(Attempt { throttle: self, account, address, pair })
    }
}

impl Attempt<'_> {
    /// It was the owner. What the address has on its account stays: somebody who has one account may guess at others.
    pub(crate) fn succeeded(self) {
        let mut tables = self.throttle.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.accounts[self.account] = Slot::default();
        tables.known[index(self.pair)] = self.pair;
        self.take_back_address(&mut tables);
    }

    /// Nothing was compared, for a reason that the caller cannot help.
    pub(crate) fn did_not_happen(self) {
        let mut tables = self.throttle.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.accounts[self.account].take_back();
        self.take_back_address(&mut tables);
    }

    fn take_back_address(&self, tables: &mut Tables) {
        if let Some(address) = self.address {
            tables.addresses[address].take_back();
        }
    }
}

impl Slot {
    /// Seconds before the next attempt; of the last one a part may be over.
    fn wait_seconds(&mut self, free: u32, now_ms: i64) -> u32 {
        // A clock that was set back makes no wait longer than it was.
        self.last_failure_ms = self.last_failure_ms.min(now_ms);
        let passed_ms = now_ms.saturating_sub(self.last_failure_ms);
        if passed_ms >= FORGOTTEN_AFTER_MS {
            self.failures = 0;
        }
        let Some(beyond) = self.failures.checked_sub(free) else { return 0 };
        let wait = 1_u32.checked_shl(beyond).unwrap_or(MAX_WAIT_SECONDS).clamp(1, MAX_WAIT_SECONDS);
        wait.saturating_sub(u32::try_from(passed_ms / 1_000).unwrap_or(u32::MAX))
    }

    fn count(&mut self, now_ms: i64) {
        self.failures = self.failures.saturating_add(1);
        self.last_failure_ms = now_ms;
        self.has_refused = false;
    }

    fn take_back(&mut self) {
        self.failures = self.failures.saturating_sub(1);
    }
}

fn milliseconds(time: OffsetDateTime) -> i64 {
    i64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

/// What counts as one address: with IPv6 a whole network of 64 bits is usually in one hand.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address @ IpAddr::V4(_) => address,
    }
}

fn index(hash: u64) -> usize {
    // The lowest bits, of which there are enough on every machine.
    usize::try_from(hash & (SLOTS as u64 - 1)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use time::{Duration, macros::datetime};

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-03-01 12:00:00 UTC);

    fn from(text: &str) -> IpAddr {
        text.parse().expect("address")
    }

    fn fail(throttle: &Throttle, account: &str, address: &str, now: OffsetDateTime) -> Result<(), u32> {
        throttle.admit(account, Some(from(address)), now).map(drop).map_err(|wait| wait.seconds)
    }

    #[test]
    fn waits_double_up_to_a_minute_and_are_forgotten() {
        let throttle = Throttle::default();
        for _ in 0..FREE_FOR_ACCOUNT {
            assert_eq!(fail(&throttle, "ada", "192.0.2.1", NOW), Ok(()));
        }
        let mut now = NOW;
        for wait in [1, 2, 4, 8, 16, 32, 60, 60, 60] {
            for _ in 0..100 {
                assert_eq!(fail(&throttle, "ada", "192.0.2.1", now), Err(wait), "asking makes it no longer");
            }
            now += Duration::milliseconds(i64::from(wait) * 1_000 - 1);
            assert_eq!(fail(&throttle, "ada", "192.0.2.1", now), Err(1));
            now += Duration::MILLISECOND;
            assert_eq!(fail(&throttle, "ada", "192.0.2.1", now), Ok(()));
        }
        assert_eq!(fail(&throttle, "bob", "192.0.2.1", now), Ok(()), "another account");
        assert_eq!(
            fail(&throttle, "ada", "192.0.2.1", now - Duration::days(1)),
            Err(60),
            "the clock was set back"
        );
        now += Duration::milliseconds(FORGOTTEN_AFTER_MS);
        for _ in 0..FREE_FOR_ACCOUNT {
            assert_eq!(fail(&throttle, "ada", "192.0.2.1", now), Ok(()));
        }
    }

    #[test]
    fn an_address_that_tries_many_accounts_is_slowed_down_although_it_has_one_itself() {
        let throttle = Throttle::default();
        for number in 0..FREE_FOR_ADDRESS {
            let address = format!("2001:db8::{number:x}");
            assert_eq!(fail(&throttle, &number.to_string(), &address, NOW), Ok(()));
            if number + 1 < FREE_FOR_ADDRESS {
                throttle.admit("mallory", Some(from(&address)), NOW).expect("let through").succeeded();
            }
        }
        assert_eq!(fail(&throttle, "ada", "2001:db8::ffff", NOW), Err(1));
        assert_eq!(fail(&throttle, "ada", "2001:db8:0:1::1", NOW), Ok(()), "another network");
        assert_eq!(fail(&throttle, "ada", "192.0.2.1", NOW), Ok(()));
        let nowhere = throttle.admit("ada", None, NOW).map(Attempt::did_not_happen);
        assert_eq!(nowhere, Ok(()));
    }

    #[test]
    fn an_attempt_that_did_not_happen_counts_for_nothing_and_a_success_begins_anew() {
        let throttle = Throttle::default();
        for _ in 0..1_000 {
            throttle.admit("ada", Some(from("192.0.2.1")), NOW).expect("let through").did_not_happen();
        }
        for _ in 1..FREE_FOR_ACCOUNT {
            assert_eq!(fail(&throttle, "ada", "192.0.2.1", NOW), Ok(()));
        }
        throttle.admit("ada", Some(from("192.0.2.1")), NOW).expect("let through").succeeded();
        for _ in 0..FREE_FOR_ACCOUNT {
            assert_eq!(fail(&throttle, "ada", "192.0.2.1", NOW), Ok(()));
        }
        assert_eq!(fail(&throttle, "ada", "192.0.2.1", NOW), Err(1));
    }

    #[test]
    fn of_many_refusals_between_two_attempts_one_is_the_first() {
        let throttle = Throttle::default();
        let refused = |account, address, now| {
            throttle.admit(account, Some(from(address)), now).map(drop).expect_err("refused").is_first
        };
        for _ in 0..FREE_FOR_ACCOUNT {
            assert_eq!(fail(&throttle, "ada", "192.0.2.1", NOW), Ok(()));
        }
        let later = NOW + Duration::SECOND;
        assert_eq!([NOW, NOW].map(|now| refused("ada", "192.0.2.1", now)), [true, false]);
        assert_eq!(fail(&throttle, "ada", "192.0.2.1", later), Ok(()));
        assert_eq!([later, later].map(|now| refused("ada", "192.0.2.1", now)), [true, false]);
        for number in 0..FREE_FOR_ADDRESS {
            assert_eq!(fail(&throttle, &number.to_string(), "192.0.2.2", NOW), Ok(()));
        }
        assert_eq!(["bob", "eve"].map(|account| refused(account, "192.0.2.2", NOW)), [true, false]);
    }

    #[test]
    fn strangers_do_not_lock_out_somebody_who_logged_in_from_his_address() {
        let throttle = Throttle::default();
        throttle.admit("ada", Some(from("192.0.2.1")), NOW).expect("let through").succeeded();
        for number in 0..FREE_FOR_ACCOUNT {
            assert_eq!(fail(&throttle, "ada", &format!("198.51.100.{number}"), NOW), Ok(()));
        }
        assert_eq!(fail(&throttle, "ada", "198.51.100.99", NOW), Err(1));
        assert_eq!(fail(&throttle, "ada", "192.0.2.1", NOW), Ok(()));
    }
}
