//! Short soaks: processes are killed, frozen and deprived of what they stand on while events are published.

use std::{path::Path, time::Duration};

use postrider_soak::{Options, Outcome, Shape, run};

/// Runs one that must be sound.
async fn soak(shape: Shape, kills: usize, seed: u64) -> Outcome {
    let options = Options {
        postrider: Path::new(env!("CARGO_BIN_EXE_postrider")).to_owned(),
        shape,
        events: 500,
        kills,
        seed,
        longest: Duration::from_secs(150),
    };
    let ended = run(&options).await;
    let outcome = ended.result.unwrap_or_else(|error| panic!("{error}; see {:?}", ended.kept));
    assert!(outcome.is_sound(), "{outcome}\nsee {:?}", ended.kept);
    assert!(ended.kept.is_none(), "a sound soak leaves nothing behind");
    let faults = &outcome.faults;
    assert!(faults.fast_restarts > 0 && faults.immediate_restarts > 0 && faults.stops > 0, "{outcome}");
    outcome
}

/// Takes as long as a lease lives: only then can what the dead held be taken over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_soak_is_sound() {
    soak(Shape::Pair, 4, 1).await;
}

/// Takes as long, and as RabbitMQ takes to start three times. With this seed each process is killed once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_soak_of_a_fleet_with_a_broker_and_a_redis_is_sound() {
    let outcome = soak(Shape::Fleet, 6, 131).await;
    let faults = &outcome.faults;
    assert_eq!((faults.kills["api"], faults.kills["worker"]), (2, 2), "{outcome}");
    for (suffered, what) in
        [(&faults.kills, "RabbitMQ"), (&faults.kills, "Redis"), (&faults.emptied, "RabbitMQ")]
    {
        assert!(suffered.contains_key(what), "{what} was spared: {outcome}");
    }
}
