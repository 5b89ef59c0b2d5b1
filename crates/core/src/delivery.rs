//! The states of a delivery. Each carries exactly its data; a transition consumes the state it starts from.
//!
//! ```text
//! pending ──claim──► in flight ──success──► delivered
//!    ▲  ▲               │ │ └──final, exhausted or too late──► dead letter ──replay──► pending
//!    │  └─interrupted───┘ │
//!    └──due── scheduled ◄─┘ worth another try in time
//! ```

use std::time::Duration;

use time::OffsetDateTime;

use crate::{
    id::{DeliveryId, LeaseToken},
    retry::{self, DeadReason, Outcome, Policy, Progress, Rules, Verdict},
};

/// The counters of a delivery that every open state keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub id: DeliveryId,
    /// Number of the newest attempt, 0 before the first. Never restarts.
    pub attempt_number: u32,
    /// Attempts in this run, interrupted ones included; restarts on replay.
    pub tries: u16,
    pub deadline: OffsetDateTime,
}

/// Waiting to be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Pending {
    pub run: Run,
}

/// Claimed under a lease; the request may be on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct InFlight {
    pub run: Run,
    pub token: LeaseToken,
}

/// Waiting for its next try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Scheduled {
    pub run: Run,
    pub delay: Duration,
}

/// Ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Delivered {
    pub id: DeliveryId,
    pub attempt_number: u32,
}

/// Ended without success; waits for a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct DeadLettered {
    pub id: DeliveryId,
    pub attempt_number: u32,
    pub reason: DeadReason,
}

/// What an attempt leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Next {
    Delivered(Delivered),
    Scheduled(Scheduled),
    DeadLettered(DeadLettered),
}

/// What a lost lease leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Interrupted {
    Pending(Pending),
    DeadLettered(DeadLettered),
}

impl Pending {
    /// Starts the next attempt under a fresh lease.
    pub fn claim(self, token: LeaseToken) -> InFlight {
        let run = self.run;
        let run = Run {
            attempt_number: run.attempt_number.saturating_add(1),
            tries: run.tries.saturating_add(1),
            ..run
        };
        InFlight { run, token }
    }
}

/// One claim of a delivery; the next one has another token, also where the same process makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseId {
    pub delivery_id: DeliveryId,
    pub token: LeaseToken,
}

impl InFlight {
    pub const fn lease_id(&self) -> LeaseId {
        LeaseId { delivery_id: self.run.id, token: self.token }
    }

    /// Ends the attempt with what came of the request.
    pub fn conclude(self, rules: &Rules, outcome: &Outcome, now: OffsetDateTime, jitter: f64) -> Next {
        let Run { id, attempt_number, tries, deadline } = self.run;
        match retry::decide(rules, outcome, Progress { tries, deadline, now }, jitter) {
            Verdict::Delivered => Next::Delivered(Delivered { id, attempt_number }),
            Verdict::Retry { delay } => Next::Scheduled(Scheduled { run: self.run, delay }),
            Verdict::Dead { reason } => Next::DeadLettered(DeadLettered { id, attempt_number, reason }),
        }
    }

    /// The lease was lost: the attempt counts, and its outcome is unknown. The delivery is sent again unless its
    /// attempts are used up, so that one whose sending kills its worker does not do so for ever.
    pub fn interrupt(self, policy: &Policy) -> Interrupted {
        let Run { id, attempt_number, tries, .. } = self.run;
        if tries >= policy.max_attempts() {
            let reason = DeadReason::AttemptsExhausted;
            return Interrupted::DeadLettered(DeadLettered { id, attempt_number, reason });
        }
        Interrupted::Pending(Pending { run: self.run })
    }
}

impl DeadLettered {
    /// Sends the delivery again: budget and deadline restart, the numbering goes on.
    pub fn replay(self, policy: &Policy, now: OffsetDateTime) -> Pending {
        let deadline = now + policy.max_age();
        Pending { run: Run { id: self.id, attempt_number: self.attempt_number, tries: 0, deadline } }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::macros::datetime;
    use uuid::Uuid;

    use super::*;
    use crate::retry::{Answer, Failure, FailureKind};

    const START: OffsetDateTime = datetime!(2026-03-01 12:00:00 UTC);

    fn fresh(policy: &Policy) -> Pending {
        let id = DeliveryId::from_uuid(Uuid::from_u128(1));
        Pending { run: Run { id, attempt_number: 0, tries: 0, deadline: START + policy.max_age() } }
    }

    fn outcome(choice: u8) -> Outcome {
        match choice {
            0 => Outcome::Answered(Answer { status: 204, retry_after: None }),
            1 => Outcome::Answered(Answer { status: 404, retry_after: None }),
            2 => Outcome::Failed(Failure { kind: FailureKind::Timeout, detail: String::new() }),
            _ => Outcome::Answered(Answer { status: 503, retry_after: None }),
        }
    }

    proptest! {
        /// Whatever happens, numbers rise by one, a run ends within its bounds, and a replay keeps the numbering.
        #[test]
        fn every_history_ends_within_its_bounds(
            choices in proptest::collection::vec((0..6_u8, 0.0..=1.0_f64), 1..400),
        ) {
            let policy = Policy::DEFAULT;
            let mut pending = fresh(&policy);
            let mut now = START;
            let mut last_number = 0;
            for (choice, jitter) in choices {
                let in_flight = pending.claim(LeaseToken::from_uuid(Uuid::from_u128(2)));
                prop_assert_eq!(in_flight.run.attempt_number, last_number + 1);
                last_number = in_flight.run.attempt_number;
                if choice == 5 {
                    pending = match in_flight.interrupt(&policy) {
                        Interrupted::Pending(pending) => pending,
                        Interrupted::DeadLettered(dead) => dead.replay(&policy, now),
                    };
                    prop_assert!(pending.run.tries < policy.max_attempts());
                    continue;
                }
                match in_flight.conclude(&policy.into(), &outcome(choice), now, jitter) {
                    Next::Delivered(delivered) => {
                        prop_assert_eq!(delivered.attempt_number, last_number);
                        return Ok(());
                    }
                    Next::Scheduled(scheduled) => {
                        now += scheduled.delay;
                        prop_assert!(now < scheduled.run.deadline);
                        prop_assert!(scheduled.run.tries < policy.max_attempts());
                        pending = Pending { run: scheduled.run };
                    }
                    Next::DeadLettered(dead) => {
                        prop_assert_eq!(dead.attempt_number, last_number);
                        pending = dead.replay(&policy, now);
                        prop_assert_eq!(pending.run.tries, 0);
                    }
                }
            }
        }
    }
}
