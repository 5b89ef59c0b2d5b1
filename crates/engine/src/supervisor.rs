//! Every long-lived task of the process starts here, and how it ends is watched.
//!
//! Invariant: no task dies unnoticed. A task that ends before the drain, panics or fails takes the process into an
//! orderly drain and then a failing exit. The first signal drains, a second one or the time limit aborts.

use std::{future::Future, time::Duration};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;

/// Why a process ends with a failing exit status.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("task `{0}` ended although nobody asked it to")]
    EndedEarly(&'static str),
    #[error("task `{name}` failed")]
    Failed { name: &'static str, source: TaskError },
    #[error("a task panicked")]
    Panicked(#[source] tokio::task::JoinError),
    #[error("tasks were still running when the time to drain was over")]
    DrainTimeout,
}

/// What a task may fail with.
pub type TaskError = Box<dyn std::error::Error + Send + Sync>;

/// Tells tasks that the process is ending. Cloned freely.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    draining: CancellationToken,
    aborting: CancellationToken,
}

impl Shutdown {
    /// Asks for an orderly end: take nothing new, finish what is in hand.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// Asks for an end at once.
    pub fn abort(&self) {
        self.draining.cancel();
        self.aborting.cancel();
    }

    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Completes when the drain begins.
    pub async fn draining(&self) {
        self.draining.cancelled().await;
    }

    /// The same for parts that do not know this type.
    pub fn draining_token(&self) -> CancellationToken {
        self.draining.clone()
    }

    /// Completes when the end is at once.
    pub async fn aborting(&self) {
        self.aborting.cancelled().await;
    }
}

/// The tasks of a process.
#[derive(Debug, Default)]
pub struct Supervisor {
    tasks: JoinSet<(&'static str, Result<(), TaskError>)>,
    shutdown: Shutdown,
}

impl Supervisor {
    pub fn new(shutdown: Shutdown) -> Self {
        Self { tasks: JoinSet::new(), shutdown }
    }

    pub const fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Starts a task that runs until the drain. It is expected to watch [`Shutdown`] itself.
    pub fn start<F, E>(&mut self, name: &'static str, task: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<TaskError>,
    {
        self.tasks.spawn(async move { (name, task.await.map_err(Into::into)) });
    }

    /// Watches all tasks until they have ended: when the drain is asked for, or when one of them dies. After the drain
    /// began they have `drain_limit`; then they are aborted.
    pub async fn run(mut self, clock: &dyn Clock, drain_limit: Duration) -> Result<(), Error> {
        let mut first_error = None;
        while !self.shutdown.is_draining() {
            tokio::select! {
                // First, so that what ends because of the drain does not count as ended early.
                biased;
                () = self.shutdown.draining() => {}
                ended = self.tasks.join_next() => {
                    let Some(ended) = ended else { return Ok(()) };
                    first_error = Some(judge_early(ended));
                    self.shutdown.drain();
                }
            }
        }
        let drained = async {
            while let Some(ended) = self.tasks.join_next().await {
                if let Err(error) = judge_late(ended) {
                    first_error.get_or_insert(error);
                }
            }
        };
        let in_time = tokio::select! {
            () = drained => true,
            () = self.shutdown.aborting() => false,
            () = clock.sleep(drain_limit) => false,
        };
        if !in_time {
            self.shutdown.abort();
            self.tasks.shutdown().await;
            first_error.get_or_insert(Error::DrainTimeout);
        }
        first_error.map_or(Ok(()), Err)
    }
}

type Ended = Result<(&'static str, Result<(), TaskError>), tokio::task::JoinError>;

fn judge_early(ended: Ended) -> Error {
    match ended {
        Ok((name, Ok(()))) => Error::EndedEarly(name),
        Ok((name, Err(source))) => Error::Failed { name, source },
        Err(panic) => Error::Panicked(panic),
    }
}

fn judge_late(ended: Ended) -> Result<(), Error> {
    match ended {
        Ok((_, Ok(()))) => Ok(()),
        Ok((name, Err(source))) => Err(Error::Failed { name, source }),
        Err(panic) => Err(Error::Panicked(panic)),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::clock::SystemClock;

    const LIMIT: Duration = Duration::from_secs(5);

    fn until_drained(shutdown: &Shutdown) -> impl Future<Output = Result<(), Infallible>> + use<> {
        let shutdown = shutdown.clone();
        async move {
            shutdown.draining().await;
            Ok(())
        }
    }

    #[tokio::test]
    async fn an_asked_for_drain_ends_well() {
        let mut supervisor = Supervisor::default();
        let shutdown = supervisor.shutdown().clone();
        supervisor.start("one", until_drained(&shutdown));
        supervisor.start("two", until_drained(&shutdown));
        shutdown.drain();
        assert!(supervisor.run(&SystemClock::new(), LIMIT).await.is_ok());
    }

    #[tokio::test]
    async fn a_dead_task_drains_the_others_and_fails_the_process() {
        let mut supervisor = Supervisor::default();
        let shutdown = supervisor.shutdown().clone();
        supervisor.start("lives", until_drained(&shutdown));
        supervisor.start("dies", async { Err(TaskError::from("broken")) });
        let error = supervisor.run(&SystemClock::new(), LIMIT).await.expect_err("the process fails");
        assert!(matches!(error, Error::Failed { name: "dies", .. }), "{error:?}");
        assert!(shutdown.is_draining());
    }

    #[tokio::test]
    async fn a_task_that_ends_early_or_panics_fails_the_process() {
        let mut supervisor = Supervisor::default();
        supervisor.start("ends", async { Ok::<(), Infallible>(()) });
        let error = supervisor.run(&SystemClock::new(), LIMIT).await.expect_err("the process fails");
        assert!(matches!(error, Error::EndedEarly("ends")), "{error:?}");

        let mut supervisor = Supervisor::default();
        supervisor.start("panics", async {
            assert!(std::hint::black_box(false), "on purpose");
            Ok::<(), Infallible>(())
        });
        let error = supervisor.run(&SystemClock::new(), LIMIT).await.expect_err("the process fails");
        assert!(matches!(error, Error::Panicked(_)), "{error:?}");
    }

    #[tokio::test]
    async fn a_task_that_does_not_drain_is_aborted() {
        let mut supervisor = Supervisor::default();
        let shutdown = supervisor.shutdown().clone();
        supervisor.start("stuck", std::future::pending::<Result<(), Infallible>>());
        shutdown.drain();
        let error = supervisor.run(&SystemClock::new(), Duration::ZERO).await.expect_err("the process fails");
        assert!(matches!(error, Error::DrainTimeout), "{error:?}");
    }
}
