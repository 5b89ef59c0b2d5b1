//! Redis as it fails: away, slow, frozen, emptied, not who it says it is. The limits go on in the process meanwhile.

use std::{sync::Arc, time::Duration};

use postrider_broker::redis;
use postrider_core::limiter::{Answer, Entry, Limiter, Reach};
use postrider_testkit::{authority::Authority, log::Log, redis::Redis};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    limiter::parties::{again, client, client_with, clock, entry, now, rate, tenant},
    tls,
};

/// Longest wait for what must come.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks.
const POLL: Duration = Duration::from_millis(5);
/// Longest that anybody waits for an answer, whatever Redis does: a call that is given up, and a busy machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// A part of the second that a call may take.
const CALL_IS_UNDER_WAY: Duration = Duration::from_millis(200);

async fn until_reach(limits: &redis::Redis, expected: Reach) {
    let looking = async {
        while limits.reach() != expected {
            sleep(POLL).await;
        }
    };
    timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("it never came to {expected:?}"));
}

/// Asks as long as it takes, and panics where an answer does.
async fn enter(limits: &redis::Redis, entry: Entry) -> Answer {
    timeout(ANSWER_LIMIT, limits.enter(entry)).await.expect("an answer comes soon")
}

#[tokio::test]
async fn without_redis_each_process_answers_at_once_and_comes_back_to_it_by_itself() {
    let mut server = Redis::fresh().await;
    let mut lanes = JoinSet::new();
    let limits = client(&server.url(), &mut lanes).await;
    assert_eq!(limits.reach(), Reach::Shared);
    for how in ["stopped", "killed", "frozen"] {
        let wish = entry(2, Some(rate(0.1, 2)));
        assert_eq!(enter(&limits, wish).await, Answer::Granted);
        match how {
            "stopped" => server.stop().await,
            "killed" => server.kill(),
            _ => server.freeze(),
        }
        // Whoever asks meanwhile is answered: the bucket of the process is full.
        let alone = entry(2, Some(rate(0.1, 2)));
        for _ in 0..2 {
            assert_eq!(enter(&limits, again(&alone)).await, Answer::Granted, "{how}");
        }
        until_reach(&limits, Reach::Process).await;
        assert!(matches!(enter(&limits, again(&alone)).await, Answer::Wait(_)), "{how}: its limits hold");
        let (tenant, rate) = (tenant(), rate(0.1, 3));
        assert_eq!(limits.take(tenant, rate, 3).await.answer, Answer::Granted, "{how}");
        assert!(matches!(limits.take(tenant, rate, 1).await.answer, Answer::Wait(_)), "{how}");
        match how {
            "frozen" => server.thaw(),
            _ => server.start().await,
        }
        until_reach(&limits, Reach::Shared).await;
    }
}

#[tokio::test]
async fn a_process_that_starts_without_redis_finds_it_later() {
    let mut server = Redis::fresh().await;
    server.stop().await;
    let mut lanes = JoinSet::new();
    let limits = client(&server.url(), &mut lanes).await;
    assert_eq!(limits.reach(), Reach::Process);
    let held = entry(1, None);
    assert_eq!(enter(&limits, held).await, Answer::Granted);
    assert!(matches!(enter(&limits, again(&held)).await, Answer::Wait(_)), "one is in flight");
    limits.leave(held.endpoint_id, held.lease_id);
    assert_eq!(enter(&limits, again(&held)).await, Answer::Granted, "it was given back");
    server.start().await;
    until_reach(&limits, Reach::Shared).await;
}

#[tokio::test]
async fn an_emptied_redis_goes_on_with_full_buckets_and_the_script_again() {
    let server = Redis::fresh().await;
    let mut lanes = JoinSet::new();
    let limits = client(&server.url(), &mut lanes).await;
    let wish = entry(1, Some(rate(0.1, 1)));
    assert_eq!(enter(&limits, wish).await, Answer::Granted);
    assert!(matches!(enter(&limits, again(&wish)).await, Answer::Wait(_)));
    server.flush().await;
    let answers = futures::future::join_all((0..20).map(|_| limits.enter(entry(1, Some(rate(0.1, 1))))));
    assert_eq!(timeout(ANSWER_LIMIT, answers).await.expect("answers come soon"), [Answer::Granted; 20]);
    assert_eq!(enter(&limits, again(&wish)).await, Answer::Granted);
    assert_eq!(limits.reach(), Reach::Shared, "nobody noticed");
}

/// Else an endpoint would stand still until the leases of those whose requests ended meanwhile end by themselves.
#[tokio::test]
async fn what_was_given_back_while_redis_was_away_is_given_back_when_it_returns() {
    let server = Redis::fresh().await;
    let mut lanes = JoinSet::new();
    let (limits, other) = (client(&server.url(), &mut lanes).await, client(&server.url(), &mut lanes).await);
    let held = entry(1, None);
    assert_eq!(enter(&limits, held).await, Answer::Granted);
    server.freeze();
    until_reach(&limits, Reach::Process).await;
    limits.leave(held.endpoint_id, held.lease_id);
    server.thaw();
    expect_it_to_be_free(&limits, &other, held).await;
}

async fn expect_it_to_be_free(limits: &redis::Redis, other: &redis::Redis, held: Entry) {
    until_reach(limits, Reach::Shared).await;
    until_reach(other, Reach::Shared).await;
    let start = now();
    while enter(other, again(&held)).await != Answer::Granted {
        sleep(POLL).await;
        assert!(start.elapsed() < held.lifetime / 2, "it would end by itself after {:?}", held.lifetime);
    }
}

/// A call of a client that has gone before its turn is never run.
#[tokio::test]
async fn what_redis_was_told_and_did_not_hear_is_given_back_once_more() {
    /// Longer than a call may take, and soon over.
    const PAUSE_MS: u32 = 2_000;
    let server = Redis::fresh().await;
    let mut lanes = JoinSet::new();
    let (limits, other) = (client(&server.url(), &mut lanes).await, client(&server.url(), &mut lanes).await);
    let held = entry(1, None);
    assert_eq!(enter(&limits, held).await, Answer::Granted);
    server.ask::<()>(::redis::cmd("CLIENT").arg("PAUSE").arg(PAUSE_MS).arg("ALL")).await;
    limits.leave(held.endpoint_id, held.lease_id);
    until_reach(&limits, Reach::Process).await;
    expect_it_to_be_free(&limits, &other, held).await;
}

#[tokio::test]
async fn every_key_ends_by_itself() {
    let server = Redis::fresh().await;
    let mut lanes = JoinSet::new();
    let limits = client(&server.url(), &mut lanes).await;
    // What the connection was tried with.
    server.ask::<()>(&::redis::cmd("FLUSHDB")).await;
    let wish = entry(1, Some(rate(0.1, 2)));
    for _ in 0..2 {
        let _ = enter(&limits, again(&wish)).await;
    }
    let without_rate = entry(1, None);
    for _ in 0..2 {
        let _ = enter(&limits, again(&without_rate)).await;
    }
    let indebted = tenant();
    let _ = limits.take(indebted, rate(0.1, 5), 100).await;
    let keys: Vec<String> = server.ask(::redis::cmd("KEYS").arg("*")).await;
    assert_eq!(keys.len(), 5, "{keys:?}");
    for key in keys {
        assert!(key.starts_with("postrider:{"), "{key}");
        let left_ms: i64 = server.ask(::redis::cmd("PTTL").arg(&key)).await;
        // The longest is a debt of a hundred tokens at ten seconds each.
        assert!((1..=1_001_000).contains(&left_ms), "{key} ends in {left_ms} ms");
        if key.contains(&indebted.to_string()) {
            assert!(left_ms > 900_000, "a debt is not forgotten: {key} ends in {left_ms} ms");
        }
    }
}

#[tokio::test]
async fn whoever_ends_gives_back_what_it_has() {
    let server = Redis::fresh().await;
    let mut lanes = JoinSet::new();
    let limits = client(&server.url(), &mut lanes).await;
    let held = entry(3, None);
    let wishes = [again(&held), again(&held), again(&held)];
    for wish in wishes {
        assert_eq!(enter(&limits, wish).await, Answer::Granted);
    }
    let leases = async || -> u64 {
        server.ask(::redis::cmd("ZCARD").arg(format!("postrider:{{{}}}:leases", held.endpoint_id))).await
    };
    assert_eq!(leases().await, 3);
    for wish in wishes {
        limits.leave(wish.endpoint_id, wish.lease_id);
    }
    drop(limits);
    timeout(PATIENCE, lanes.join_next())
        .await
        .expect("the lane ends")
        .expect("there is one")
        .expect("in order");
    assert_eq!(leases().await, 0);
}

#[tokio::test]
async fn whoever_asks_as_redis_is_lost_or_ends_while_it_is_away_does_not_wait_for_it() {
    let server = Redis::fresh().await;
    let mut lanes = JoinSet::new();
    let limits = client(&server.url(), &mut lanes).await;
    server.freeze();
    let asked_first = enter(&limits, entry(1, None));
    // While nobody knows yet that the first one is not answered.
    let asked_meanwhile = async {
        sleep(CALL_IS_UNDER_WAY).await;
        enter(&limits, entry(1, None)).await
    };
    assert_eq!(tokio::join!(asked_first, asked_meanwhile), (Answer::Granted, Answer::Granted));
    assert_eq!(limits.reach(), Reach::Process);
    drop(limits);
    let ended = timeout(PATIENCE, lanes.join_next()).await.expect("the lane ends");
    ended.expect("there is one").expect("in order");
}

/// A process that always has another request at hand would otherwise leave nothing to one that has to ask anew.
#[tokio::test]
async fn whoever_waits_longest_for_a_lease_is_next() {
    let server = Redis::fresh().await;
    let mut lanes = JoinSet::new();
    let (greedy, patient) =
        (client(&server.url(), &mut lanes).await, client(&server.url(), &mut lanes).await);
    let held = entry(1, None);
    let mut greed = JoinSet::new();
    greed.spawn(async move {
        loop {
            let wish = again(&held);
            // Given back and asked for in one call: nobody else ever sees it free.
            while greedy.enter(wish).await != Answer::Granted {}
            sleep(Duration::from_millis(1)).await;
            greedy.leave(wish.endpoint_id, wish.lease_id);
        }
    });
    for _ in 0..5 {
        // The other one has it again.
        let mut wish = again(&held);
        while enter(&patient, wish).await == Answer::Granted {
            patient.leave(wish.endpoint_id, wish.lease_id);
            sleep(POLL).await;
            wish = again(&held);
        }
        let start = now();
        while let Answer::Wait(wait) = enter(&patient, wish).await {
            sleep(wait).await;
            assert!(start.elapsed() < Duration::from_secs(3), "it waits for ever");
        }
        patient.leave(wish.endpoint_id, wish.lease_id);
        sleep(POLL).await;
    }
}

/// The clocks of processes differ, and are set; only the one of Redis counts.
#[tokio::test]
async fn clocks_of_processes_do_not_matter() {
    let server = Redis::fresh().await;
    let mut lanes = JoinSet::new();
    let far = |hours: u64| -> Arc<postrider_core::limiter::Monotonic> {
        let clock = clock();
        Arc::new(move || {
            Duration::from_secs(hours * 3_600) + clock() * u32::try_from(hours + 1).expect("few")
        })
    };
    let early = client_with(&server.url(), RootCertStore::empty(), far(0), &mut lanes).await;
    let late = client_with(&server.url(), RootCertStore::empty(), far(48), &mut lanes).await;
    let wish = entry(2, Some(rate(0.1, 3)));
    assert_eq!(enter(&early, again(&wish)).await, Answer::Granted);
    assert_eq!(enter(&late, again(&wish)).await, Answer::Granted);
    assert!(matches!(enter(&early, again(&wish)).await, Answer::Wait(_)), "two are in flight");
    let (tenant, rate) = (tenant(), rate(0.1, 3));
    assert_eq!(early.take(tenant, rate, 2).await.answer, Answer::Granted);
    assert_eq!(late.take(tenant, rate, 1).await.answer, Answer::Granted);
    assert!(matches!(late.take(tenant, rate, 1).await.answer, Answer::Wait(_)));
    assert!(matches!(early.take(tenant, rate, 1).await.answer, Answer::Wait(_)));
}

/// As if it had been an hour ahead until now.
#[tokio::test]
async fn a_clock_of_redis_that_was_set_back_holds_nobody_up() {
    const AHEAD_US: i64 = 3_600_000_000;
    let server = Redis::fresh().await;
    let mut lanes = JoinSet::new();
    let limits = client(&server.url(), &mut lanes).await;
    let wish = entry(1, Some(rate(0.1, 3)));
    assert_eq!(enter(&limits, wish).await, Answer::Granted);
    let (bucket, leases) = (
        format!("postrider:{{{}}}:bucket", wish.endpoint_id),
        format!("postrider:{{{}}}:leases", wish.endpoint_id),
    );
    let at: i64 = server.ask(::redis::cmd("HGET").arg(&bucket).arg("at")).await;
    server.ask::<()>(::redis::cmd("HSET").arg(&bucket).arg("at").arg(at + AHEAD_US)).await;
    let held = wish.lease_id.as_bytes();
    server.ask::<f64>(::redis::cmd("ZINCRBY").arg(&leases).arg(AHEAD_US).arg(held)).await;
    assert_eq!(enter(&limits, again(&wish)).await, Answer::Granted, "no lease lives for an hour");
    let second: i64 = server.ask(::redis::cmd("HGET").arg(&bucket).arg("at")).await;
    assert!(second < at + AHEAD_US, "from here on its new time counts");
}

fn trusting(authority: &Authority) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(authority.certificate_pem().as_bytes()).expect("PEM");
    roots.add(certificate).expect("an authority");
    roots
}

#[tokio::test]
async fn redis_is_believed_only_by_its_name_and_its_authority() {
    let authority = Authority::default();
    let server = Redis::with_tls(&authority).await;
    let mut lanes = JoinSet::new();
    let reach = async |url: &str, roots: RootCertStore, lanes: &mut JoinSet<()>| {
        client_with(url, roots, clock(), lanes).await.reach()
    };
    let url = server.tls_url();
    assert_eq!(reach(&url, trusting(&authority), &mut lanes).await, Reach::Shared);
    assert_eq!(reach(&url, trusting(&Authority::default()), &mut lanes).await, Reach::Process);
    assert_eq!(reach(&url, RootCertStore::empty(), &mut lanes).await, Reach::Process);
    // The same server behind a certificate of the same authority, for this name or for another one.
    for (name, expected) in [("127.0.0.1", Reach::Shared), ("redis.example", Reach::Process)] {
        let address = place(&server).trim_end_matches("/0").to_owned();
        let port = tls::in_front(authority.server(&[name]), address, &mut lanes).await;
        let (login, _) = url.split_once('@').expect("a password");
        let url = format!("{login}@127.0.0.1:{port}/0");
        assert_eq!(reach(&url, trusting(&authority), &mut lanes).await, expected, "{name}");
    }
}

/// Its URL, without the password.
fn place(server: &Redis) -> String {
    server.url().rsplit('@').next().expect("a place").to_owned()
}

/// As docs/operations.md gives it.
#[tokio::test]
async fn an_account_needs_no_more_than_is_documented() {
    let documented = include_str!("../../../../docs/operations.md");
    let account = documented.lines().find_map(|line| line.strip_prefix("ACL SETUSER ")).expect("an account");
    let server = Redis::fresh().await;
    let mut create = ::redis::cmd("ACL");
    create.arg("SETUSER").arg(account.split(' ').collect::<Vec<_>>());
    server.ask::<()>(&create).await;
    let mut lanes = JoinSet::new();
    let limits = client(&format!("redis://postrider:PASSWORD@{}", place(&server)), &mut lanes).await;
    let wish = entry(1, Some(rate(0.1, 2)));
    assert_eq!(enter(&limits, wish).await, Answer::Granted);
    assert!(matches!(enter(&limits, again(&wish)).await, Answer::Wait(_)), "one is in flight");
    limits.leave(wish.endpoint_id, wish.lease_id);
    assert_eq!(enter(&limits, again(&wish)).await, Answer::Granted);
    assert_eq!(limits.take(tenant(), rate(0.1, 2), 1).await.answer, Answer::Granted);
    assert_eq!(limits.reach(), Reach::Shared, "nothing was refused");
}

#[tokio::test]
async fn a_wrong_password_is_no_redis() {
    let server = Redis::fresh().await;
    let mut lanes = JoinSet::new();
    let limits = client(&format!("redis://:canary@{}", place(&server)), &mut lanes).await;
    assert_eq!(limits.reach(), Reach::Process);
    assert_eq!(enter(&limits, entry(1, None)).await, Answer::Granted);
}

/// As a replica does after a failover: it lets everybody in, and takes nothing.
#[tokio::test]
async fn a_redis_that_refuses_what_it_is_told_is_not_up_and_says_why_once() {
    let (log, _logging) = Log::start();
    let server = Redis::fresh().await;
    let follow = |host: &str, port: &str| ::redis::cmd("REPLICAOF").arg(host).arg(port).to_owned();
    // Nobody listens at that port.
    server.ask::<()>(&follow("127.0.0.1", "1")).await;
    let mut lanes = JoinSet::new();
    let limits = client(&server.url(), &mut lanes).await;
    for _ in 0..100 {
        assert_eq!(limits.reach(), Reach::Process, "it takes nothing");
        assert_eq!(enter(&limits, entry(1, None)).await, Answer::Granted);
        sleep(CALL_IS_UNDER_WAY / 10).await;
    }
    let told = log.lines_with("Redis cannot be used");
    assert!(told.len() == 1 && told[0].contains("READONLY"), "{told:?}");
    assert_eq!(log.lines_with("limits are shared"), Vec::<String>::new());
    server.ask::<()>(&follow("NO", "ONE")).await;
    until_reach(&limits, Reach::Shared).await;
}
