//! The simulation as a test: some hundred seeds, and the proof that a seed repeats itself.

use postrider_simulation::{campaign, laboratory::Laboratory, run};

const SEEDS: u64 = 200;
/// Seeds that are run twice, with others in between.
const REPEATED: [u64; 4] = [3, 17, 40, 41];

#[test]
fn some_hundred_seeds_are_sound() {
    let mut laboratory = Laboratory::open().expect("a private PostgreSQL starts");
    let summary = campaign::run(&mut laboratory, 0..SEEDS, 3).expect("the simulation itself works");
    assert!(summary.broken.is_empty(), "the seeds {:?} are not sound; see above", summary.broken);
    for happened in
        ["crash after settle", "crash before settle", "crash at settle_written", "interrupted attempt"]
    {
        assert!(summary.counts.contains_key(happened), "no run had: {happened}");
    }
}

#[test]
fn a_seed_repeats_itself_to_the_last_step() {
    let mut laboratory = Laboratory::open().expect("a private PostgreSQL starts");
    let mut hashes = || {
        let traces =
            REPEATED.map(|seed| run::run(&mut laboratory, seed).expect("the simulation works").trace);
        traces.map(|trace| (trace.hash(), trace.lines))
    };
    for (first, second) in hashes().into_iter().zip(hashes()) {
        let differing = first.1.iter().zip(&second.1).find(|(one, other)| one != other);
        assert_eq!(differing, None, "the traces part here");
        assert_eq!(first.0, second.0);
    }
}
