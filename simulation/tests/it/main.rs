//! The simulation as a test: some hundred seeds, and the proof that a seed repeats itself.

use std::process::Command;

use postrider_simulation::{laboratory::Laboratory, run};

const SEEDS: &str = "100";
/// Seeds that are run twice, with others in between.
const REPEATED: [u64; 4] = [3, 17, 40, 41];
/// What some of the seeds must have shown, or they prove little.
const NEEDED: [&str; 13] = [
    "crash after settle",
    "crash before settle",
    "crash at settle_gathered",
    "crash at settle_written",
    "claim given back",
    "interrupted attempt",
    "wait for a lock",
    "refused: over quota",
    "accepted after an hour",
    "replay finished",
    "replay cancelled",
    "letter brought back by a replay",
    "waited for a deleted endpoint",
];

#[test]
fn some_hundred_seeds_are_sound() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_simulation"));
    let output = program.args(["--seeds", SEEDS]).output().expect("the simulation starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    for needed in NEEDED {
        assert!(said.contains(needed), "no run had: {needed}\n{said}");
    }
    assert!(said.ends_with(&format!("\n{SEEDS} seeds are clean.\n")), "{said}");
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
