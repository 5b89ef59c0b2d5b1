//! The side lane: what waited for a lock in everybody's lane is stored there, application by application.
//!
//! Invariant: an application whose plan somebody has locked holds up the others once. While it is locked its events go to
//! the side lane straight away; each of them would hold up everybody for a lock wait otherwise. However many are locked,
//! and whatever is (a key, a table), each publisher is answered before it gives up.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use postrider_core::id::ApplicationId;
use postrider_store::{
    ingest::{self, Refusal, Submission},
    lanes::{LOCK_TIMEOUT, Lane, Line, bounded},
};
use tokio::sync::mpsc;

use super::{IngestLane, Prepared, answer, application, refuse};
use crate::waiting::WaitingRoom;

/// How long a lane is stuck before it refuses what it has not tried yet, and what waits behind. So whoever comes waits for
/// the rest of such a spell, and in the worst case for another one: together, and with one lock wait beyond the limit in
/// each, less than publishers wait for their answers.
const LONGEST_SPELL: Duration = LOCK_TIMEOUT.saturating_mul(2);

/// Which of the lanes it is.
#[derive(Debug)]
pub enum Kind {
    /// Everybody's. Items that waited for a lock go to the side lane, so that they hold up nobody else.
    Main { side_lane: mpsc::Sender<Submission> },
    /// The same for tenants that have quotas.
    Metered { side_lane: mpsc::Sender<Submission> },
    /// That of those who waited, where each application is stored by itself.
    Side,
}

impl Kind {
    pub(super) const fn lane(&self) -> Lane {
        match self {
            Self::Main { .. } => Lane::Ingest,
            Self::Metered { .. } => Lane::IngestMetered,
            Self::Side => Lane::IngestAside,
        }
    }

    /// Where its items go that would hold up the others.
    pub(super) const fn side_lane(&self) -> Option<&mpsc::Sender<Submission>> {
        match self {
            Self::Main { side_lane } | Self::Metered { side_lane } => Some(side_lane),
            Self::Side => None,
        }
    }
}

/// Applications whose plan was found locked, until one of their events gets through in the side lane.
#[derive(Debug, Default)]
pub struct Locked(Mutex<HashSet<ApplicationId>>);

impl Locked {
    pub(super) fn note(&self, id: ApplicationId) {
        self.set().insert(id);
    }

    pub(super) fn strike_off(&self, id: ApplicationId) {
        self.set().remove(&id);
    }

    fn contains(&self, id: ApplicationId) -> bool {
        self.set().contains(&id)
    }

    /// Takes out of `items` those of applications that are listed.
    pub(super) fn take_out<T>(
        &self,
        items: &mut Vec<T>,
        application: impl Fn(&T) -> ApplicationId,
    ) -> Vec<T> {
        let listed = self.set();
        if listed.is_empty() {
            return Vec::new();
        }
        items.extract_if(.., |item| listed.contains(&application(item))).collect()
    }

    fn set(&self) -> MutexGuard<'_, HashSet<ApplicationId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a batch goes, and since when its lane has been stuck if it does not go well.
#[derive(Debug)]
pub(super) struct Course {
    stuck_since: Duration,
    pub(super) waited_in_vain: bool,
    pub(super) got_through: bool,
}

impl Course {
    pub(super) const fn begun(stuck_since: Duration) -> Self {
        Self { stuck_since, waited_in_vain: false, got_through: false }
    }
}

impl<T> IngestLane<T> {
    /// Lets those of a part give way that wait for a lock; the others come back as another part.
    pub(super) async fn step_aside(
        &self,
        line: &mut Line,
        part: Vec<Prepared>,
        parts: &mut Vec<Vec<Prepared>>,
    ) {
        match &self.kind {
            Kind::Main { side_lane } | Kind::Metered { side_lane } => {
                let locked = self.find_locked(line, &part).await;
                // Where it is another lock, or the database does not tell, all have to wait.
                let (waiting, others) = if locked.is_empty() {
                    (part, Vec::new())
                } else {
                    part.into_iter().partition(|prepared| locked.contains(&application(&prepared.submission)))
                };
                set_aside(side_lane, waiting.into_iter().map(|prepared| prepared.submission));
                parts.push(others);
            }
            Kind::Side => {
                // Whose plan is locked too would wait as long again, one after the other.
                let locked = self.find_locked(line, parts.iter().flatten().chain(&part)).await;
                let is_locked = |part: &mut Vec<Prepared>| {
                    part.first().is_some_and(|first| locked.contains(&application(&first.submission)))
                };
                for locked_part in parts.extract_if(.., is_locked).chain([part]) {
                    refuse(locked_part, Refusal::Contended);
                }
            }
        }
    }

    /// Whoever of a part is still to be tried: nobody whose publisher has given up, and nobody at all where the lane has
    /// been stuck for too long.
    pub(super) fn still_waiting(&self, mut part: Vec<Prepared>, course: &Course) -> Vec<Prepared> {
        part.retain(|prepared| !prepared.submission.reply.is_closed());
        if self.is_stuck(course) && self.is_over(course) {
            refuse(std::mem::take(&mut part), Refusal::Overloaded);
        }
        part
    }

    /// After a batch: where its lane is stuck, refuses who stood behind it all the while: in the side lane those whose plan
    /// is locked, and after too long everybody. Tells whether it is stuck.
    pub(super) fn turn_away(
        &self,
        room: &mut WaitingRoom<ApplicationId, Submission>,
        course: &Course,
    ) -> bool {
        if !self.is_stuck(course) {
            return false;
        }
        if matches!(self.kind, Kind::Side) {
            for submission in room.take_out(|id| self.locked.contains(*id)) {
                answer(submission, Err(Refusal::Contended));
            }
        }
        if self.is_over(course) {
            for submission in room.take_out(|_| true) {
                answer(submission, Err(Refusal::Overloaded));
            }
        }
        true
    }

    /// Everybody's lane goes on as long as something gets through, since what waits for locks leaves it.
    const fn is_stuck(&self, course: &Course) -> bool {
        match self.kind {
            Kind::Main { .. } | Kind::Metered { .. } => course.waited_in_vain && !course.got_through,
            Kind::Side => course.waited_in_vain,
        }
    }

    fn is_over(&self, course: &Course) -> bool {
        self.clock.monotonic().saturating_sub(course.stuck_since) >= LONGEST_SPELL
    }

    /// In the side lane a part is one application's, so that one is not locked, or no longer.
    pub(super) fn got_through(&self, part: &[Prepared]) {
        if let (Kind::Side, Some(prepared)) = (&self.kind, part.first()) {
            self.locked.strike_off(application(&prepared.submission));
        }
    }

    /// Finds out whose plans are locked, and lists them. Nobody, where the database does not tell.
    async fn find_locked(
        &self,
        line: &mut Line,
        waiting: impl IntoIterator<Item = &Prepared>,
    ) -> HashSet<ApplicationId> {
        let ids: BTreeSet<ApplicationId> =
            waiting.into_iter().map(|prepared| application(&prepared.submission)).collect();
        let ids: Vec<ApplicationId> = ids.into_iter().collect();
        let answer = bounded(async { ingest::locked_plans(line.connection().await?, &ids).await }).await;
        let locked: HashSet<ApplicationId> = line.checked(answer).unwrap_or_default().into_iter().collect();
        for id in &locked {
            self.locked.note(*id);
        }
        locked
    }
}

/// A part for each application, the first to come at the end: among those that stepped aside, only the events whose
/// application is locked shall wait.
pub(super) fn by_application(batch: Vec<Prepared>) -> Vec<Vec<Prepared>> {
    let mut parts: Vec<Vec<Prepared>> = Vec::new();
    let mut places = HashMap::new();
    for prepared in batch {
        let place = *places.entry(application(&prepared.submission)).or_insert(parts.len());
        match parts.get_mut(place) {
            Some(part) => part.push(prepared),
            None => parts.push(vec![prepared]),
        }
    }
    parts.reverse();
    parts
}

/// Sends items to the side lane, so that the next batch does not wait for the same lock.
pub(super) fn set_aside(
    side_lane: &mpsc::Sender<Submission>,
    submissions: impl IntoIterator<Item = Submission>,
) {
    for submission in submissions {
        // It takes as many as may wait at all: those who hung up leave events in it for a moment.
        if let Err(full) = side_lane.try_send(submission) {
            answer(full.into_inner(), Err(Refusal::Contended));
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn what_is_listed_is_taken_out_until_it_is_struck_off() {
        let id = |number| ApplicationId::from_uuid(Uuid::from_u128(number));
        let locked = Locked::default();
        let mut items = vec![(1, 'a'), (2, 'b'), (1, 'c'), (3, 'd')];
        let mut take_out = |locked: &Locked| locked.take_out(&mut items, |(number, _)| id(*number));
        assert_eq!(take_out(&locked), []);
        locked.note(id(1));
        locked.note(id(3));
        locked.strike_off(id(3));
        assert_eq!(take_out(&locked), [(1, 'a'), (1, 'c')]);
        assert_eq!(items, [(2, 'b'), (3, 'd')]);
    }
}
