//! A short soak: two processes, killed, frozen and deprived of their database while events are published.

use std::{path::Path, time::Duration};

use postrider_soak::{Options, run};

/// Takes as long as a lease lives: only then can what the dead held be taken over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_soak_is_sound() {
    let options = Options {
        postrider: Path::new(env!("CARGO_BIN_EXE_postrider")).to_owned(),
        events: 500,
        kills: 4,
        seed: 1,
        longest: Duration::from_secs(120),
    };
    let ended = run(&options).await;
    let outcome = ended.result.unwrap_or_else(|error| panic!("{error}; see {:?}", ended.kept));
    assert!(outcome.is_sound(), "{outcome}\nsee {:?}", ended.kept);
    assert!(outcome.fast_restarts > 0 && outcome.immediate_restarts > 0 && outcome.stops > 0, "{outcome}");
    assert!(ended.kept.is_none(), "a sound soak leaves nothing behind");
}
