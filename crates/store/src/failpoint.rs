//! Failpoints: the places where a process may end, stand still or fall silent at the worst moment, and where tests make
//! it do so. Release builds have none: [`reach`] is empty there, and nothing can be armed.

use std::str::FromStr;

/// A place on the way of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// A batch of events of tenants with quotas is written and counted, nothing of it is committed.
    IngestWritten,
    /// A batch of events is committed, no publisher has heard of it.
    IngestCommitted,
    /// Deliveries are claimed, none is being sent.
    TakeClaimed,
    /// A receiver has answered, the result is known to nobody else.
    DeliverAnswered,
    /// A result is on its way to the settle lane's batch.
    DeliverConcluded,
    /// Results are gathered, nothing of them is written.
    SettleGathered,
    /// Results are committed, nothing has followed from them.
    SettleWritten,
    /// The next beat of this process is due.
    HeartbeatDue,
    /// A batch of dead letters is moved and counted, nothing of it is committed.
    ReplayMoved,
    /// It is committed, nothing has followed from it.
    ReplayCommitted,
    /// A batch of secrets is sealed anew, nothing of it is written.
    SecretsResealed,
    /// It is committed, nothing has followed from it.
    SecretsReplaced,
    /// The installation has moved to the next pepper, and that is not committed.
    PepperWritten,
    /// It is committed, nothing has followed from it.
    PepperCommitted,
    /// A registry file is written, nothing of it is committed.
    RegistryWritten,
    /// It is committed, and nobody was told.
    RegistryCommitted,
}

impl Point {
    pub const ALL: [Self; 16] = [
        Self::IngestWritten,
        Self::IngestCommitted,
        Self::TakeClaimed,
        Self::DeliverAnswered,
        Self::DeliverConcluded,
        Self::SettleGathered,
        Self::SettleWritten,
        Self::HeartbeatDue,
        Self::ReplayMoved,
        Self::ReplayCommitted,
        Self::SecretsResealed,
        Self::SecretsReplaced,
        Self::PepperWritten,
        Self::PepperCommitted,
        Self::RegistryWritten,
        Self::RegistryCommitted,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::IngestWritten => "ingest_written",
            Self::IngestCommitted => "ingest_committed",
            Self::TakeClaimed => "take_claimed",
            Self::DeliverAnswered => "deliver_answered",
            Self::DeliverConcluded => "deliver_concluded",
            Self::SettleGathered => "settle_gathered",
            Self::SettleWritten => "settle_written",
            Self::HeartbeatDue => "heartbeat_due",
            Self::ReplayMoved => "replay_moved",
            Self::ReplayCommitted => "replay_committed",
            Self::SecretsResealed => "secrets_resealed",
            Self::SecretsReplaced => "secrets_replaced",
            Self::PepperWritten => "pepper_written",
            Self::PepperCommitted => "pepper_committed",
            Self::RegistryWritten => "registry_written",
            Self::RegistryCommitted => "registry_committed",
        }
    }
}

/// What happens at an armed point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The process gets SIGKILL.
    Kill,
    /// The process gets SIGSTOP; whoever armed it sends SIGCONT.
    Stop,
    /// The task that came here goes no further.
    Hang,
}

/// An action, and how often the point is passed unharmed before it happens; it then happens at every pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    pub point: Point,
    pub action: Action,
    pub passes: u32,
}

/// `point:action:passes`, such as `settle_written:kill:3`.
impl FromStr for Plan {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(':');
        let (Some(point), Some(action), Some(passes), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Malformed);
        };
        let point = Point::ALL.into_iter().find(|known| known.as_str() == point).ok_or(Malformed)?;
        let action = match action {
            "kill" => Action::Kill,
            "stop" => Action::Stop,
            "hang" => Action::Hang,
            _ => return Err(Malformed),
        };
        Ok(Self { point, action, passes: passes.parse().map_err(|_| Malformed)? })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a failpoint is written point:action:passes, such as settle_written:kill:3")]
pub struct Malformed;

#[cfg(not(debug_assertions))]
#[inline]
pub async fn reach(_point: Point) {}

#[cfg(debug_assertions)]
pub use armed::{arm, disarm, hung, reach};

#[cfg(debug_assertions)]
mod armed {
    use std::sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    };

    use rustix::process::{Signal, getpid, kill_process};

    use super::{Action, Plan, Point};

    static ARMED: Mutex<Option<Plan>> = Mutex::new(None);
    static HUNG: AtomicU64 = AtomicU64::new(0);

    /// From now on, for the whole process; replaces what was armed before.
    pub fn arm(plan: Plan) {
        *ARMED.lock().unwrap_or_else(PoisonError::into_inner) = Some(plan);
    }

    pub fn disarm() {
        *ARMED.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// How many tasks of this process have gone no further, so far.
    pub fn hung() -> u64 {
        HUNG.load(Ordering::Relaxed)
    }

    /// Passes the point, unless the plan says otherwise.
    pub async fn reach(point: Point) {
        match due(point) {
            Some(Action::Kill) => signal(Signal::KILL),
            Some(Action::Stop) => signal(Signal::STOP),
            Some(Action::Hang) => {
                HUNG.fetch_add(1, Ordering::Relaxed);
                std::future::pending::<()>().await;
            }
            None => {}
        }
    }

    fn due(point: Point) -> Option<Action> {
        let mut armed = ARMED.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = armed.as_mut().filter(|plan| plan.point == point)?;
        match plan.passes.checked_sub(1) {
            Some(left) => {
                plan.passes = left;
                None
            }
            None => Some(plan.action),
        }
    }

    /// A stopped process goes on here when it is told to, and stops no second time.
    fn signal(signal: Signal) {
        disarm();
        if let Err(error) = kill_process(getpid(), signal) {
            tracing::error!(%error, "a failpoint could not signal its own process");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_read_from_text() {
        let plan = Plan { point: Point::SettleWritten, action: Action::Kill, passes: 3 };
        assert_eq!("settle_written:kill:3".parse(), Ok(plan));
        for point in Point::ALL {
            assert!(format!("{}:stop:0", point.as_str()).parse::<Plan>().is_ok());
        }
        for malformed in [
            "",
            "settle_written",
            "settle_written:kill",
            "nowhere:kill:1",
            "take_claimed:nap:1",
            "take_claimed:kill:-1",
            "take_claimed:kill:1:2",
        ] {
            assert_eq!(malformed.parse::<Plan>(), Err(Malformed), "{malformed}");
        }
    }
}
