//! What the people of a run are given to, besides what they do in every run: quotas, replays of many letters, and the
//! deletion of an endpoint. The seed chooses, so that most pairs of them meet.

use postrider_core::quota::Settings;

use crate::chance::Chance;

/// What a step of chaos weighs in which somebody acts: in every run, and more for each habit.
const WEIGHT: usize = 1;
const WEIGHT_OF_HABIT: usize = 5;

#[derive(Debug, Clone, Copy)]
pub struct Habits {
    /// The tenant's limits when the run begins.
    pub limits: Settings,
    /// Somebody sets others now and then, or none.
    pub changes_limits: bool,
    /// Somebody previews, executes and cancels replays.
    pub replays: bool,
    /// Somebody deletes an endpoint.
    pub deletes: bool,
}

impl Habits {
    pub fn new(chance: &mut Chance) -> Self {
        let is_limited = chance.one_in(3);
        Self {
            limits: if is_limited { tight(chance) } else { Settings::default() },
            changes_limits: chance.one_in(6),
            replays: chance.one_in(2),
            deletes: chance.one_in(3),
        }
    }

    /// Whether the tenant may ever have quotas.
    pub fn has_quotas(&self) -> bool {
        self.changes_limits || self.limits != Settings::default()
    }

    /// How often somebody acts.
    pub fn weight(&self) -> usize {
        let habits = [self.changes_limits, self.replays, self.deletes];
        WEIGHT + WEIGHT_OF_HABIT * habits.iter().filter(|has| **has).count()
    }
}

/// Quotas that a run comes upon, and that each still leave room for one event.
pub fn tight(chance: &mut Chance) -> Settings {
    let (events, bytes, open) = (chance.between(3, 25), chance.between(60, 300), chance.between(3, 12));
    let (has_events, has_bytes) = (chance.one_in(2), chance.one_in(2));
    let has_open = chance.one_in(2) || !(has_events || has_bytes);
    Settings {
        hourly_events: has_events.then_some(events),
        hourly_bytes: has_bytes.then_some(bytes),
        open_deliveries: has_open.then_some(open),
        ..Settings::default()
    }
}
