//! The side lane: what waited for a lock in everybody's lane is stored there, application by application.
//!
//! Invariant: an application whose plan somebody has locked holds up the others once. While it is locked its events go to
//! the side lane straight away; each of them would hold up everybody for a lock wait otherwise.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use postrider_core::id::ApplicationId;
use postrider_store::{
    ingest::{self, Refusal, Submission},
    lanes::{Lane, Line, bounded},
};
use tokio::sync::mpsc;

use super::{IngestLane, Prepared, answer, application, refuse};

/// Which of the two lanes it is.
#[derive(Debug)]
pub enum Way {
    /// Everybody's. Items that waited for a lock go to the side lane, so that they hold up nobody else.
    Main { side_lane: mpsc::Sender<Submission> },
    /// Theirs, where each application is stored by itself.
    Side,
}

impl Way {
    pub(super) const fn lane(&self) -> Lane {
        match self {
            Self::Main { .. } => Lane::Ingest,
            Self::Side => Lane::IngestAside,
        }
    }
}

/// Applications whose plan was found locked, or whose events waited in the side lane for some other lock, until one of their
/// events gets through there.
#[derive(Debug, Default)]
pub struct Locked(Mutex<HashSet<ApplicationId>>);

impl Locked {
    pub(super) fn note(&self, id: ApplicationId) {
        self.set().insert(id);
    }

    pub(super) fn strike_off(&self, id: ApplicationId) {
        self.set().remove(&id);
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

impl<T> IngestLane<T> {
    /// Lets those of a part give way that wait for a lock, and returns the others.
    pub(super) async fn step_aside(&self, line: &mut Line, part: Vec<Prepared>) -> Vec<Prepared> {
        match &self.way {
            Way::Main { side_lane } => {
                let (waiting, others) = self.apart(line, part).await;
                hand_over(side_lane, waiting.into_iter().map(|prepared| prepared.submission));
                others
            }
            Way::Side => {
                if let Some(prepared) = part.first() {
                    self.locked.note(application(&prepared.submission));
                }
                refuse(part, Refusal::Contended);
                Vec::new()
            }
        }
    }

    /// In the side lane a part is one application's, so that one is not locked, or no longer.
    pub(super) fn got_through(&self, part: &[Prepared]) {
        if let (Way::Side, Some(prepared)) = (&self.way, part.first()) {
            self.locked.strike_off(application(&prepared.submission));
        }
    }

    /// Finds out whose plans are locked, so that the others of a batch can be stored. Where it is another lock, or the
    /// database does not tell, all have to wait.
    async fn apart(&self, line: &mut Line, part: Vec<Prepared>) -> (Vec<Prepared>, Vec<Prepared>) {
        let ids: HashSet<ApplicationId> =
            part.iter().map(|prepared| application(&prepared.submission)).collect();
        let ids: Vec<ApplicationId> = ids.into_iter().collect();
        let answer = bounded(async { ingest::locked_plans(line.connection().await?, &ids).await }).await;
        let locked = line.checked(answer).unwrap_or_default();
        if locked.is_empty() {
            return (part, Vec::new());
        }
        for id in &locked {
            self.locked.note(*id);
        }
        part.into_iter().partition(|prepared| locked.contains(&application(&prepared.submission)))
    }
}

/// Hands items over to the side lane, so that the next batch does not wait for the same lock.
pub(super) fn hand_over(
    side_lane: &mpsc::Sender<Submission>,
    submissions: impl IntoIterator<Item = Submission>,
) {
    for submission in submissions {
        if let Err(full) = side_lane.try_send(submission) {
            answer(full.into_inner(), Err(Refusal::Overloaded));
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
