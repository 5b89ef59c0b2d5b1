//! Ends a worker whose seed never comes to its end: an engine that is busy without a pause lets nobody else run, so that
//! only another thread can tell.

use std::{
    process,
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread,
    time::Duration,
};

/// Longest time for a seed; most take a tenth of a second.
pub const LONGEST_SEED: Duration = Duration::from_secs(60);

/// Watches until it is dropped.
#[derive(Debug)]
pub struct Watchdog {
    begun: Sender<u64>,
}

impl Watchdog {
    /// Calls `bark` with the seed that began last, if the next one does not begin in time.
    pub fn start(patience: Duration, bark: impl Fn(u64) + Send + 'static) -> Self {
        let (begun, seeds) = mpsc::channel();
        thread::spawn(move || {
            let Ok(mut seed) = seeds.recv() else { return };
            loop {
                match seeds.recv_timeout(patience) {
                    Ok(next) => seed = next,
                    Err(RecvTimeoutError::Timeout) => return bark(seed),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        });
        Self { begun }
    }

    pub fn begins(&self, seed: u64) {
        // A watchdog that has barked listens no more.
        let _ = self.begun.send(seed);
    }
}

/// Tells which seed it is and ends this process; its PostgreSQL ends with it.
pub fn give_up(seed: u64) {
    eprintln!(
        "seed {seed}: no end within {} s, a process is busy without a pause\nSee it again: cargo run -p \
         postrider-simulation -- --seed {seed}",
        LONGEST_SEED.as_secs()
    );
    process::exit(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_barks_at_the_seed_that_does_not_end_and_at_no_other() {
        let (heard, barks) = mpsc::channel();
        let bark = move |seed| heard.send(seed).expect("the test listens");
        let quiet = Watchdog::start(Duration::from_secs(600), bark.clone());
        quiet.begins(1);
        drop(quiet);
        let watchdog = Watchdog::start(Duration::from_millis(1), bark);
        watchdog.begins(2);
        assert_eq!(barks.recv(), Ok(2));
        watchdog.begins(3);
        assert!(barks.recv().is_err(), "nobody is left who could bark");
    }
}
