//! The heartbeat: keeps this process's leases alive, and watches the hearts of the others.
//!
//! Invariants:
//! - another process is declared dead only after its counter stood still for the whole time to live *while this process
//!   watched without a break*: a database that was away makes nobody look dead;
//! - a process that finds itself declared dead stops sending and begins a new life under a fresh id.
//!
//! Processes that only accept events beat, too, to be seen; they hold no leases and watch nobody.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use postrider_core::id::InstanceId;
use postrider_store::{
    Error,
    failpoint::{self, Point},
    instances::{self, Heart, Role},
    lanes::{Lane, Line, bounded},
};
use sqlx::{PgConnection, postgres::PgConnectOptions};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::Clock,
    identity::{Identity, Life},
    supervisor::Shutdown,
    worker::Worker,
};

/// Between two beats.
pub const BEAT: Duration = Duration::from_secs(1);
/// A counter that stands still for this long is a dead heart's.
pub const TIME_TO_LIVE: Duration = Duration::from_secs(10);
/// A longer gap between two of one's own looks breaks the observation.
const LONGEST_GAP: Duration = Duration::from_secs(3);

/// What this process tells the others about itself.
#[derive(Debug, Clone)]
pub struct Presence {
    pub role: Role,
    pub host: String,
}

/// Beats until `settled`: through the drain, while there are leases.
pub async fn run<T>(
    worker: Arc<Worker<T>>,
    presence: Presence,
    settled: CancellationToken,
) -> Result<(), Infallible> {
    let mut line = Line::new(worker.options.clone(), Lane::Background);
    let mut watch = Watch::default();
    while !settled.is_cancelled() {
        failpoint::reach(Point::HeartbeatDue).await;
        let beaten = beat_and_watch(&worker, &presence, &mut line, &mut watch).await;
        note(&mut line, beaten);
        metrics::gauge!("postrider_requests_in_flight").set(worker.limits.in_flight());
        tokio::select! {
            () = worker.clock.sleep(BEAT) => {}
            () = settled.cancelled() => {}
        }
    }
    retire(worker.identity.life().instance_id, &mut line).await;
    Ok(())
}

/// Beats until the drain, for a process that delivers nothing.
pub(crate) async fn attend(
    presence: Presence,
    options: PgConnectOptions,
    clock: Arc<dyn Clock>,
    shutdown: Shutdown,
) -> Result<(), Infallible> {
    let identity = Identity::new();
    let mut line = Line::new(options, Lane::Background);
    loop {
        let began = clock.monotonic();
        let beaten = async { beat(&identity, &presence, began, line.connection().await?).await.map(drop) };
        let beaten = beaten.await;
        note(&mut line, beaten);
        tokio::select! {
            () = clock.sleep(BEAT) => {}
            () = shutdown.draining() => break,
        }
    }
    retire(identity.life().instance_id, &mut line).await;
    Ok(())
}

fn note(line: &mut Line, beaten: Result<(), Error>) {
    if let Err(error) = line.checked(beaten)
        && !error.is_lost()
    {
        tracing::warn!(error = &error as &dyn std::error::Error, "the heartbeat failed");
    }
}

/// Registers or beats, and looks at the hearts of the others.
async fn beat_and_watch<T>(
    worker: &Worker<T>,
    presence: &Presence,
    line: &mut Line,
    watch: &mut Watch,
) -> Result<(), Error> {
    let began = worker.clock.monotonic();
    let open = line.connection().await?;
    let own = beat(&worker.identity, presence, began, open).await?;
    let mut hearts = bounded(instances::hearts(open)).await?;
    worker.processes.store(u32::try_from(hearts.len()).unwrap_or(u32::MAX).max(1), Ordering::Relaxed);
    hearts.retain(|heart| heart.instance_id != own.instance_id);
    let dead = watch.look(&hearts, worker.clock.monotonic());
    for heart in &dead {
        tracing::warn!(instance_id = %heart.instance_id, "a process is dead; its deliveries are taken over");
    }
    if !dead.is_empty() {
        bounded(instances::declare_dead(open, &dead)).await?;
    }
    Ok(())
}

/// Registers or beats; the life that it is known by then.
async fn beat(
    identity: &Identity,
    presence: &Presence,
    began: Duration,
    open: &mut PgConnection,
) -> Result<Arc<Life>, Error> {
    let mut own = identity.life();
    if own.is_registered() && !bounded(instances::beat(open, own.instance_id)).await? {
        let instance_id = own.instance_id;
        tracing::error!(%instance_id, "this process was declared dead; it drops its work and starts anew");
        metrics::counter!("postrider_lives_lost_total").increment(1);
        own = identity.renew();
    }
    if !own.is_registered() {
        bounded(instances::register(open, own.instance_id, presence.role, &presence.host)).await?;
    }
    own.has_beaten(began);
    Ok(own)
}

async fn retire(instance_id: InstanceId, line: &mut Line) {
    let retired = async { bounded(instances::retire(line.connection().await?, instance_id)).await };
    if let Err(error) = retired.await {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "this process could not take its leave; others will notice in time"
        );
    }
}

/// What was seen of the others, and since when.
#[derive(Debug, Default)]
struct Watch {
    last_look: Option<Duration>,
    seen: HashMap<InstanceId, (i64, Duration)>,
}

impl Watch {
    /// Takes note of the counters; returns those that have stood still for the whole time to live.
    fn look(&mut self, hearts: &[Heart], now: Duration) -> Vec<Heart> {
        let is_unbroken = self.last_look.is_some_and(|last| now.saturating_sub(last) <= LONGEST_GAP);
        self.last_look = Some(now);
        if !is_unbroken {
            self.seen.clear();
        }
        self.seen.retain(|id, _| hearts.iter().any(|heart| heart.instance_id == *id));
        let mut dead = Vec::new();
        for heart in hearts {
            let (beats, since) = self.seen.entry(heart.instance_id).or_insert((heart.beats, now));
            if *beats != heart.beats {
                (*beats, *since) = (heart.beats, now);
            } else if now.saturating_sub(*since) >= TIME_TO_LIVE {
                dead.push(*heart);
            }
        }
        dead
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn heart(beats: i64) -> Heart {
        Heart { instance_id: InstanceId::from_uuid(Uuid::from_u128(1)), beats }
    }

    /// Looks once a second from `start`; returns the second in which the heart was found dead.
    fn death(watch: &mut Watch, beats: impl Fn(u64) -> i64, seconds: std::ops::Range<u64>) -> Option<u64> {
        seconds
            .into_iter()
            .find(|second| !watch.look(&[heart(beats(*second))], Duration::from_secs(*second)).is_empty())
    }

    #[test]
    fn a_heart_that_stands_still_is_dead_after_its_time_to_live() {
        assert_eq!(death(&mut Watch::default(), |_| 5, 100..200), Some(110));
        assert_eq!(death(&mut Watch::default(), |second| i64::try_from(second).unwrap(), 100..200), None);
        assert_eq!(death(&mut Watch::default(), |second| i64::from(second >= 105), 100..200), Some(115));
    }

    #[test]
    fn a_break_in_the_observation_starts_it_anew() {
        let mut watch = Watch::default();
        assert_eq!(death(&mut watch, |_| 5, 100..109), None);
        assert_eq!(death(&mut watch, |_| 5, 130..200), Some(140), "the database was away from 108 to 130");
    }
}
