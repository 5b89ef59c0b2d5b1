//! Hashing passwords costs tens of milliseconds of a core and 19 MiB each, whoever asks for it.
//!
//! Invariant: half of the machine's cores hash at most, so that publishing goes on, and a bounded number waits; whoever
//! finds no place is refused at once.

use std::{sync::Arc, thread};

use postrider_core::problem::Code;
use tokio::sync::Semaphore;

use crate::problem::Problem;

/// How many may wait for each core that hashes: about a second and a half of work.
const WAITING_PER_CORE: usize = 32;

/// The cores that hash, and the places in line.
#[derive(Debug)]
pub(crate) struct Hashing {
    cores: Arc<Semaphore>,
    places: Arc<Semaphore>,
}

impl Default for Hashing {
    fn default() -> Self {
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2));
        Self::of(cores, cores * WAITING_PER_CORE)
    }
}

impl Hashing {
    fn of(cores: usize, waiting: usize) -> Self {
        Self { cores: Arc::new(Semaphore::new(cores)), places: Arc::new(Semaphore::new(cores + waiting)) }
    }

    /// Does such work on a thread where it holds up nothing else.
    ///
    /// # Errors
    /// `503` where no place is left.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_full| overloaded())?;
        let core =
            Arc::clone(&self.cores).acquire_owned().await.map_err(|closed| Problem::internal(&closed))?;
        let done = tokio::task::spawn_blocking(move || {
            // A caller who hangs up does not stop the work, so it is the work that holds them.
            let _held = (place, core);
            work()
        });
        done.await.map_err(|error| Problem::internal(&error))
    }
}

fn overloaded() -> Problem {
    Problem::new(
        Code::Overloaded,
        "Too many passwords are being checked. Nothing was done; try again shortly.",
    )
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures::{FutureExt as _, future::join_all};

    use super::*;

    #[tokio::test]
    async fn work_is_bounded_and_so_is_what_waits_also_for_callers_who_hang_up() {
        let hashing = Hashing::of(1, 2);
        let (sender, receiver) = mpsc::channel::<()>();
        let mut hung_up = Box::pin(hashing.run(move || receiver.recv().is_ok()));
        assert!(hung_up.as_mut().now_or_never().is_none());
        drop(hung_up);
        let mut waiting = join_all((0..2).map(|number| hashing.run(move || number)));
        assert!((&mut waiting).now_or_never().is_none(), "the only core is taken");
        let refused = hashing.run(|| ()).await.expect_err("no place");
        assert_eq!(refused.code(), Code::Overloaded);
        sender.send(()).expect("it listens");
        let done: Vec<_> = waiting.await.into_iter().map(|done| done.expect("done")).collect();
        assert_eq!(done, [0, 1]);
        assert_eq!(hashing.places.available_permits(), 3);
    }
}
