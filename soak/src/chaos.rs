//! Carries out the plan: lets publishers publish, and strikes amid their requests.
//!
//! Invariant: a fault has ended, and everything lives, before the next one begins.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use postrider_core::id::DeliveryId;
use postrider_embedded::{Cluster, Shutdown};
use postrider_engine::heartbeat::TIME_TO_LIVE;
use rustix::process::Signal;
use time::OffsetDateTime;
use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    clock,
    dependencies::Dependencies,
    error::Error,
    fleet::Fleet,
    plan::{self, Fault, Step, Trouble},
    publish::Pace,
    queue::{Cut, Queue},
    receive::Book,
    repeats::AttemptKey,
    shape::{Dependency, Seat},
};

/// Events are allowed this often.
const SLICE: Duration = Duration::from_millis(50);
/// How often the one who watches is told how far it got.
const TOLD_EVERY: Duration = Duration::from_secs(10);
/// What a process that stands still had sent to the database has happened by then.
const SETTLED_AFTER: Duration = Duration::from_millis(200);

/// What was done, and what it hit.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) faults: Faults,
    /// Requests of publishers in flight at the kills.
    pub(crate) requests_hit: usize,
    /// Attempts in flight at the kills of processes.
    pub(crate) cut: Vec<Cut>,
    /// Attempts in flight when processes were frozen.
    pub(crate) frozen: BTreeSet<AttemptKey>,
    /// Attempts in flight when the database came back.
    pub(crate) stranded: BTreeSet<AttemptKey>,
    /// Rows that were found past the hard limit of their lease and one poll.
    pub(crate) overdue: Vec<(DeliveryId, String)>,
    /// Absences of the broker in which no receiver got anything.
    pub(crate) silences: Vec<String>,
}

/// How often what was done.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// By what was killed.
    pub kills: BTreeMap<&'static str, usize>,
    pub stops: usize,
    /// Stops after which the process had been declared dead.
    pub lives_lost: usize,
    pub fast_restarts: usize,
    pub immediate_restarts: usize,
    /// What lost everything it had.
    pub emptied: BTreeMap<&'static str, usize>,
    /// What hung, beside the processes.
    pub frozen: BTreeMap<&'static str, usize>,
}

pub(crate) struct Chaos<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) fleet: &'a mut Fleet,
    pub(crate) dependencies: Option<&'a mut Dependencies>,
    pub(crate) queue: &'a Queue,
    pub(crate) pace: &'a Pace,
    pub(crate) book: &'a Book,
    pub(crate) done: Done,
}

impl Faults {
    pub fn kills(&self) -> usize {
        self.kills.values().sum()
    }
}

impl Done {
    /// Every attempt that a fault had in flight and may have interrupted.
    pub(crate) fn hit(&self) -> BTreeSet<AttemptKey> {
        let cut = self.cut.iter().map(|cut| cut.attempt);
        cut.chain(self.frozen.iter().copied()).chain(self.stranded.iter().copied()).collect()
    }
}

impl Chaos<'_> {
    pub(crate) async fn carry_out(mut self, plan: &[Step]) -> Result<Done, Error> {
        let began = clock::monotonic();
        let mut told = began;
        for (number, step) in plan.iter().enumerate() {
            publish_for(self.pace, step.gap, step.spread).await;
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
                    self.done.faults.kills()
                );
            }
        }
        self.pace.end();
        Ok(self.done)
    }

    async fn strike(&mut self, step: &Step) -> Result<(), Error> {
        match step.fault {
            Fault::Kill(seat) => {
                let victim = self.kill(seat).await?;
                self.revive(victim).await
            }
            Fault::KillTwo([first, second]) => {
                let victims = [self.kill(first).await?, self.kill(second).await?];
                for victim in victims {
                    self.revive(victim).await?;
                }
                Ok(())
            }
            Fault::Stop { seat, lasting } => self.stop(seat, lasting, step.meanwhile).await,
            Fault::Restart { shutdown, killed } => self.restart_database(shutdown, killed).await,
            Fault::Deprive { of, trouble } => self.deprive(of, trouble, step).await,
        }
    }

    async fn kill(&mut self, seat: Seat) -> Result<Victim, Error> {
        *self.done.faults.kills.entry(seat.role.as_str()).or_default() += 1;
        self.done.requests_hit += self.fleet.requests_in_flight(seat);
        let instance = self.fleet.instance(seat);
        let killed_at = clock::now();
        self.fleet.kill(seat).await?;
        Ok(Victim { seat, instance, killed_at })
    }

    /// Looks at what the dead held, and starts the process again.
    async fn revive(&mut self, victim: Victim) -> Result<(), Error> {
        let Victim { seat, instance, killed_at } = victim;
        let Some(instance) = instance else { return self.fleet.launch(seat).await };
        let mut held: BTreeSet<AttemptKey> =
            self.queue.in_flight(Some(instance)).await?.into_iter().collect();
        self.fleet.launch(seat).await?;
        // What it had just asked for when it was killed was still done.
        held.extend(self.queue.in_flight(Some(instance)).await?);
        self.done.cut.extend(held.into_iter().map(|attempt| Cut { attempt, killed_at }));
        Ok(())
    }

    async fn stop(&mut self, seat: Seat, lasting: Duration, events: usize) -> Result<(), Error> {
        let life = self.fleet.instance(seat);
        self.done.faults.stops += 1;
        self.fleet.signal(seat, Signal::STOP)?;
        sleep(SETTLED_AFTER).await;
        if life.is_some() {
            self.done.frozen.extend(self.queue.in_flight(life).await?);
        }
        publish_for(self.pace, lasting.saturating_sub(SETTLED_AFTER), events).await;
        self.fleet.signal(seat, Signal::CONT)?;
        if lasting > TIME_TO_LIVE {
            self.fleet.learn(seat).await?;
            self.done.faults.lives_lost += usize::from(self.fleet.instance(seat) != life);
        }
        Ok(())
    }

    async fn restart_database(&mut self, shutdown: Shutdown, killed: Option<Seat>) -> Result<(), Error> {
        match shutdown {
            Shutdown::Fast => self.done.faults.fast_restarts += 1,
            Shutdown::Immediate => self.done.faults.immediate_restarts += 1,
        }
        self.cluster.halt(shutdown).await?;
        let victim = match killed {
            Some(seat) => Some(self.kill(seat).await?),
            None => None,
        };
        self.cluster.resume().await?;
        // Among them what was claimed in a transaction whose end nobody was told of.
        self.done.stranded.extend(self.queue.in_flight(None).await?);
        match victim {
            Some(victim) => self.revive(victim).await,
            None => Ok(()),
        }
    }

    async fn deprive(&mut self, of: Dependency, trouble: Trouble, step: &Step) -> Result<(), Error> {
        let dependencies = self.dependencies.as_deref_mut().ok_or(Error::NoDependency(of.as_str()))?;
        let faults = &mut self.done.faults;
        let (count, is_away) = match trouble {
            Trouble::Killed { .. } => (&mut faults.kills, true),
            Trouble::Emptied => (&mut faults.emptied, true),
            Trouble::Frozen { .. } => (&mut faults.frozen, false),
        };
        *count.entry(of.as_str()).or_default() += 1;
        let before = self.book.open().count;
        let (suffered, ()) = tokio::join!(
            dependencies.suffer(of, trouble),
            publish_for(self.pace, plan::standstill(step.fault), step.meanwhile)
        );
        suffered?;
        if of == Dependency::Broker && is_away && step.meanwhile > 0 && self.book.open().count == before {
            self.done.silences.push(format!("{trouble:?}: {} events were published", step.meanwhile));
        }
        Ok(())
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
    seat: Seat,
    instance: Option<Uuid>,
    killed_at: OffsetDateTime,
}

/// Spreads events over a time.
async fn publish_for(pace: &Pace, lasting: Duration, events: usize) {
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
        pace.allow(due - given);
        given = due;
        sleep(SLICE.mul_f64(allowed).min(lasting).saturating_sub(began.elapsed())).await;
    }
}
