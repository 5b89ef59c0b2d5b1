//! Ends a process whose seed never comes to its end: an engine that is busy without a pause lets nobody else run, so that
//! only another thread can tell.

use std::{
    convert::Infallible,
    process,
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread,
    time::Duration,
};

/// Longest time for a seed; most take a tenth of a second.
const LONGEST_SEED: Duration = Duration::from_secs(60);

/// Watches until it is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Watchdog {
    /// Nothing is ever sent: its end is what the thread waits for.
    _watched: Sender<Infallible>,
}

impl Watchdog {
    /// Ends this process, and its PostgreSQL with it, if the seed takes too long.
    pub(crate) fn of_seed(seed: u64) -> Self {
        Self::start(LONGEST_SEED, move || {
            eprintln!(
                "seed {seed}: no end within {} s, a process is busy without a pause\nSee it again: cargo run -p \
                 postrider-simulation -- --seed {seed}",
                LONGEST_SEED.as_secs()
            );
            process::exit(1);
        })
    }

    fn start(patience: Duration, bark: impl FnOnce() + Send + 'static) -> Self {
        let (watched, end) = mpsc::channel();
        thread::spawn(move || {
            if end.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                bark();
            }
        });
        Self { _watched: watched }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_barks_at_a_seed_that_does_not_end_and_at_no_other() {
        let (heard, barks) = mpsc::channel();
        let bark = |seed| {
            let heard = heard.clone();
            move || heard.send(seed).expect("the test listens")
        };
        drop(Watchdog::start(Duration::from_secs(600), bark(1)));
        let watchdog = Watchdog::start(Duration::from_millis(1), bark(2));
        assert_eq!(barks.recv(), Ok(2));
        drop(watchdog);
        drop(heard);
        assert!(barks.recv().is_err(), "nobody is left who could bark");
    }
}
