//! Processes whose clocks are an hour off, or jump by one: leases, retries and deadlines go by the database's time, and a
//! signature carries the time of its attempt.

use std::{
    fs,
    path::{Path, PathBuf},
};

use postrider_testkit::{
    ledger::Ledger,
    postgres::Database,
    receiver::{Answer, Gate, Receiver, Request},
};

use super::scene::{OVER, counter, endpoint, outcomes, until_nothing_is_open};
use crate::server::Server;

const HOUR_SECONDS: i64 = 3_600;
/// Shorter than the clocks are off: judged by one of them, every delivery would be past its deadline, or never.
const MAX_AGE_SECONDS: u32 = 600;

/// Where the library lies that shows a process another time: from the package `libfaketime`, or from Python's.
fn library() -> PathBuf {
    let tools = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.tools/venv/lib"));
    let below = |directory: &Path, rest: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().join(rest)).collect()
    };
    let places = [
        below(Path::new("/usr/lib"), "faketime/libfaketimeMT.so.1"),
        below(tools, "site-packages/libfaketime/vendor/libfaketime/src/libfaketime.so.1"),
    ];
    let found = places.concat().into_iter().find(|place| place.is_file());
    found.expect("libfaketime is missing; `scripts/setup test` installs it")
}

/// A clock for one process, which may be set while it runs.
pub(super) struct Clock {
    file: tempfile::NamedTempFile,
    library: PathBuf,
}

impl Clock {
    pub(super) fn off_by(seconds: i64) -> Self {
        let clock = Self { file: tempfile::NamedTempFile::new().unwrap(), library: library() };
        clock.set(seconds);
        clock
    }

    /// Seconds to the true time.
    pub(super) fn set(&self, seconds: i64) {
        // In one write, so that the process never reads half of it.
        fs::write(self.file.path(), format!("{seconds:+}\n")).unwrap();
    }

    pub(super) fn variables(&self) -> [(&str, &str); 4] {
        [
            ("LD_PRELOAD", self.library.to_str().unwrap()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.path().to_str().unwrap()),
            ("FAKETIME_NO_CACHE", "1"),
            // The time of day is off; how much time passes is not.
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ]
    }
}

/// When a request says it was signed.
fn timestamp(request: &Request) -> i64 {
    request.header("webhook-timestamp").unwrap().parse().unwrap()
}

#[tokio::test]
async fn clocks_an_hour_off_hurry_and_delay_nothing() {
    let (fast, slow) = (Clock::off_by(HOUR_SECONDS), Clock::off_by(-HOUR_SECONDS));
    for (accepting, delivering) in [(&fast, &slow), (&slow, &fast)] {
        let database = Database::fresh().await;
        let receiver = Receiver::start().await;
        receiver.queue([Answer::status(503), Answer::status(500)]);
        let api = Server::start_with(&database, "api", &accepting.variables()).await;
        let publisher = api.publisher().await;
        endpoint(&publisher, "warehouse", &receiver.url("/"), MAX_AGE_SECONDS).await;
        let worker = Server::start_with(&database, "worker", &delivering.variables()).await;
        let bystander = Server::start(&database, "worker").await;
        let mut ledger = Ledger::default();
        for number in 0..10 {
            ledger.accepted.push(publisher.publish(&format!("[{number}]")).await);
        }
        receiver.wait_for(12).await;
        until_nothing_is_open(database.pool()).await;
        let report = ledger.with_receiver(&receiver).check(database.pool(), OVER).await;
        assert_eq!((report.delivered, report.attempts, report.dead_lettered), (10, 12, 0));
        assert_eq!(report.interrupted_attempts, 0);
        for process in [&worker, &bystander] {
            assert_eq!(counter(process.address, "postrider_lives_lost_total").await, 0);
        }
    }
}

#[tokio::test]
async fn a_clock_that_jumps_breaks_no_lease_and_each_attempt_is_signed_anew() {
    let clock = Clock::off_by(0);
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let gates = [Gate::default(), Gate::default()];
    receiver.queue([Answer::status(503).after(&gates[0]), Answer::status(503).after(&gates[1])]);
    let server = Server::start_with(&database, "all", &clock.variables()).await;
    let publisher = server.publisher().await;
    endpoint(&publisher, "warehouse", &receiver.url("/"), MAX_AGE_SECONDS).await;
    let accepted = publisher.publish("[1]").await;
    for (number, (gate, off)) in gates.iter().zip([HOUR_SECONDS, -HOUR_SECONDS]).enumerate() {
        receiver.wait_for(number + 1).await;
        clock.set(off);
        gate.open();
    }
    let requests = receiver.wait_for(3).await;
    until_nothing_is_open(database.pool()).await;
    let delivery = publisher.wait_for_delivery(&accepted, "delivered").await;
    assert_eq!(outcomes(&publisher, &delivery).await, ["scheduled", "scheduled", "delivered"]);
    let [first, second, third] = [0, 1, 2].map(|number: usize| timestamp(&requests[number]));
    assert!((HOUR_SECONDS..HOUR_SECONDS + 60).contains(&(second - first)), "signed when it was sent");
    assert!((HOUR_SECONDS - 60..=HOUR_SECONDS).contains(&(first - third)), "signed when it was sent");
    let signatures: std::collections::BTreeSet<_> =
        requests.iter().map(|request| request.header("webhook-signature")).collect();
    assert_eq!(signatures.len(), 3, "each under its own time");
    assert_eq!(counter(server.address, "postrider_lives_lost_total").await, 0);
    let ledger = Ledger { accepted: vec![accepted], ..Ledger::default() }.with_receiver(&receiver);
    let report = ledger.check(database.pool(), OVER).await;
    assert_eq!((report.delivered, report.attempts, report.interrupted_attempts), (1, 3, 0));
}
