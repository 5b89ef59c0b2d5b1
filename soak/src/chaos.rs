//! Carries out the plan: lets publishers publish, and strikes amid their requests.
//!
//! Invariant: a fault has ended, and both processes live, before the next one begins.

use std::time::Duration;

use postrider_core::id::DeliveryId;
use postrider_embedded::{Cluster, Shutdown};
use postrider_engine::heartbeat::TIME_TO_LIVE;
use rustix::process::Signal;
use time::OffsetDateTime;
use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    clock,
    error::Error,
    fleet::Fleet,
    plan::{Fault, Side, Step},
    publish::Pace,
    queue::{Held, Queue},
};

/// Events are allowed this often.
const SLICE: Duration = Duration::from_millis(50);
/// How often the one who watches is told how far it got.
const TOLD_EVERY: Duration = Duration::from_secs(10);
/// A database that just came back may refuse a question or two.
const TRIES: u32 = 50;
const PAUSE_BETWEEN_TRIES: Duration = Duration::from_millis(100);

/// What was done, and what it hit.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) kills: usize,
    pub(crate) stops: usize,
    /// Stops after which the process had been declared dead.
    pub(crate) lives_lost: usize,
    pub(crate) fast_restarts: usize,
    pub(crate) immediate_restarts: usize,
    /// Requests of publishers in flight at the kills.
    pub(crate) requests_hit: usize,
    /// Deliveries in flight at the kills.
    pub(crate) held: Vec<Held>,
    /// Rows that were found past the hard limit of their lease and one poll.
    pub(crate) overdue: Vec<(DeliveryId, String)>,
}

pub(crate) struct Chaos<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) fleet: &'a mut Fleet,
    pub(crate) queue: &'a Queue,
    pub(crate) pace: &'a Pace,
    pub(crate) done: Done,
}

impl Chaos<'_> {
    pub(crate) async fn carry_out(mut self, plan: &[Step]) -> Result<Done, Error> {
        let began = clock::monotonic();
        let mut told = began;
        for (number, step) in plan.iter().enumerate() {
            self.publish_for(step.gap, step.spread).await;
            self.fleet.look_after().await?;
            self.pace.allow(step.burst);
            sleep(step.aim).await;
            self.strike(step).await?;
            self.look_for_overdue().await;
            if told.elapsed() >= TOLD_EVERY {
                told = clock::monotonic();
                eprintln!(
                    "{:4} s: {} of {} faults, {} kills",
                    began.elapsed().as_secs(),
                    number + 1,
                    plan.len(),
                    self.done.kills
                );
            }
        }
        self.pace.end();
        Ok(self.done)
    }

    /// Spreads events over a time.
    async fn publish_for(&self, lasting: Duration, events: usize) {
        let slices = lasting.div_duration_f64(SLICE).ceil().max(1.0);
        let mut allowed = 0.0;
        let began = clock::monotonic();
        let mut given = 0;
        while allowed < slices {
            allowed += 1.0;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "a share of a number of events that is far below 2^52"
            )]
            let due = ((events as f64 * allowed / slices).round() as usize).min(events);
            self.pace.allow(due - given);
            given = due;
            sleep(SLICE.mul_f64(allowed).min(lasting).saturating_sub(began.elapsed())).await;
        }
    }

    async fn strike(&mut self, step: &Step) -> Result<(), Error> {
        match step.fault {
            Fault::Kill(side) => {
                let victim = self.kill(side).await?;
                self.revive(victim).await
            }
            Fault::KillBoth([first, second]) => {
                let victims = [self.kill(first).await?, self.kill(second).await?];
                for victim in victims {
                    self.revive(victim).await?;
                }
                Ok(())
            }
            Fault::Stop { side, lasting } => self.stop(side, lasting, step.meanwhile).await,
            Fault::Restart { shutdown, killed } => self.restart_database(shutdown, killed).await,
        }
    }

    async fn kill(&mut self, side: Side) -> Result<Victim, Error> {
        self.done.kills += 1;
        self.done.requests_hit += self.fleet.requests_in_flight(side);
        let instance = self.fleet.instance(side);
        let killed_at = clock::now();
        self.fleet.kill(side).await?;
        Ok(Victim { side, instance, killed_at })
    }

    /// Looks at what the dead held, and starts the process again.
    async fn revive(&mut self, victim: Victim) -> Result<(), Error> {
        if let Some(instance) = victim.instance {
            let mut tries = 0;
            let held = loop {
                match self.queue.held_by(instance, victim.killed_at).await {
                    Ok(held) => break held,
                    Err(error) if tries == TRIES => return Err(error.into()),
                    Err(_) => tries += 1,
                }
                sleep(PAUSE_BETWEEN_TRIES).await;
            };
            self.done.held.extend(held);
        }
        self.fleet.launch(victim.side).await
    }

    async fn stop(&mut self, side: Side, lasting: Duration, events: usize) -> Result<(), Error> {
        let life = self.fleet.instance(side);
        self.done.stops += 1;
        self.fleet.signal(side, Signal::STOP)?;
        self.publish_for(lasting, events).await;
        self.fleet.signal(side, Signal::CONT)?;
        if lasting > TIME_TO_LIVE {
            self.fleet.learn(side).await?;
            self.done.lives_lost += usize::from(self.fleet.instance(side) != life);
        }
        Ok(())
    }

    async fn restart_database(&mut self, shutdown: Shutdown, killed: Option<Side>) -> Result<(), Error> {
        match shutdown {
            Shutdown::Fast => self.done.fast_restarts += 1,
            Shutdown::Immediate => self.done.immediate_restarts += 1,
        }
        self.cluster.halt(shutdown).await?;
        let victim = match killed {
            Some(side) => Some(self.kill(side).await?),
            None => None,
        };
        self.cluster.resume().await?;
        match victim {
            Some(victim) => self.revive(victim).await,
            None => Ok(()),
        }
    }

    /// The database may be just coming back; then the next look finds what this one does not.
    async fn look_for_overdue(&mut self) {
        let known: Vec<DeliveryId> = self.done.overdue.iter().map(|(delivery, _)| *delivery).collect();
        let found = self.queue.overdue().await.unwrap_or_default();
        self.done.overdue.extend(found.into_iter().filter(|(delivery, _)| !known.contains(delivery)));
    }
}

/// A process that was killed.
struct Victim {
    side: Side,
    instance: Option<Uuid>,
    killed_at: OffsetDateTime,
}
