//! What happens to the processes and their database, drawn from the seed before anything starts.
//!
//! Invariants: exactly as many kills as were asked for; every event is published under some step; no step leaves both
//! processes frozen or dead at its end.

use std::time::Duration;

use postrider_embedded::Shutdown;
use postrider_engine::heartbeat::TIME_TO_LIVE;

use crate::chance::Chance;

/// Between two faults, while events are published.
const SHORTEST_GAP: Duration = Duration::from_millis(300);
const LONGEST_GAP: Duration = Duration::from_millis(1_100);
/// Between a burst of events and the fault that is to hit it.
const LONGEST_AIM: Duration = Duration::from_millis(25);
/// A freeze that nobody may take for a death.
const SHORT_STOP: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(4)];
/// A freeze after which the process finds itself declared dead.
const LONG_STOP: [Duration; 2] = [
    TIME_TO_LIVE.saturating_add(Duration::from_secs(2)),
    TIME_TO_LIVE.saturating_add(Duration::from_secs(4)),
];
/// How likely the next kill hits the same process again. Kills come faster than a death is noticed, so only in such a
/// spell does the other process live long enough to take over what the dead left behind.
const SAME_AGAIN_PERCENT: u64 = 88;

/// One of the two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    A,
    B,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::A, Self::B];

    pub(crate) const fn index(self) -> usize {
        match self {
            Self::A => 0,
            Self::B => 1,
        }
    }

    pub(crate) const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `kill -9`, then started again at once.
    Kill(Side),
    /// The same for both, in this order.
    KillBoth([Side; 2]),
    /// SIGSTOP, and SIGCONT after this time.
    Stop { side: Side, lasting: Duration },
    /// The database ends and comes back; a process may be killed while it is away.
    Restart { shutdown: Shutdown, killed: Option<Side> },
}

/// Events to publish, and a fault amid them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) gap: Duration,
    /// Events spread over the gap.
    pub(crate) spread: usize,
    /// Events published at once at its end, so that the fault finds some in flight.
    pub(crate) burst: usize,
    /// From the burst to the fault.
    pub(crate) aim: Duration,
    pub(crate) fault: Fault,
    /// Events spread over the time that a process stands still.
    pub(crate) meanwhile: usize,
}

/// Draws the faults; the more kills, the more of everything else.
pub(crate) fn draw(seed: u64, kills: usize, events: usize) -> Vec<Step> {
    let mut chance = Chance::of(seed, &[0]);
    let faults = faults(&mut chance, kills);
    let gaps: Vec<Duration> = faults.iter().map(|_| chance.between(SHORTEST_GAP, LONGEST_GAP)).collect();
    let spans: Vec<[Duration; 2]> =
        gaps.iter().zip(&faults).map(|(gap, fault)| [*gap, standstill(*fault)]).collect();
    let shares = shares(events, &spans);
    let steps = faults.into_iter().zip(gaps).zip(shares);
    steps
        .map(|((fault, gap), [before, meanwhile])| Step {
            gap,
            spread: before / 2,
            burst: before - before / 2,
            aim: chance.between(Duration::ZERO, LONGEST_AIM),
            fault,
            meanwhile,
        })
        .collect()
}

enum Kind {
    Kill,
    KillBoth,
    Stop([Duration; 2]),
    Restart { shutdown: Shutdown, kills: bool },
}

fn faults(chance: &mut Chance, kills: usize) -> Vec<Fault> {
    let restarts = (kills / 20).max(2);
    let restarts_with_a_kill = restarts / 3;
    let double_kills = kills / 25;
    let single_kills = kills.saturating_sub(restarts_with_a_kill + 2 * double_kills);
    let mut kinds = Vec::new();
    kinds.extend((0..single_kills).map(|_| Kind::Kill));
    kinds.extend((0..double_kills).map(|_| Kind::KillBoth));
    kinds.extend((0..(kills / 10).max(1)).map(|_| Kind::Stop(SHORT_STOP)));
    kinds.extend((0..kills / 40).map(|_| Kind::Stop(LONG_STOP)));
    kinds.extend((0..restarts).map(|number| Kind::Restart {
        shutdown: if number % 2 == 0 { Shutdown::Immediate } else { Shutdown::Fast },
        kills: number < restarts_with_a_kill,
    }));
    chance.shuffle(&mut kinds);

    let mut victim = if chance.percent(50) { Side::A } else { Side::B };
    let choose = |kind| {
        if !chance.percent(SAME_AGAIN_PERCENT) {
            victim = victim.other();
        }
        match kind {
            Kind::Kill => Fault::Kill(victim),
            Kind::KillBoth => Fault::KillBoth([victim, victim.other()]),
            Kind::Stop([shortest, longest]) => {
                Fault::Stop { side: victim, lasting: chance.between(shortest, longest) }
            }
            Kind::Restart { shutdown, kills } => Fault::Restart { shutdown, killed: kills.then_some(victim) },
        }
    };
    kinds.into_iter().map(choose).collect()
}

fn standstill(fault: Fault) -> Duration {
    match fault {
        Fault::Stop { lasting, .. } => lasting,
        Fault::Kill(_) | Fault::KillBoth(_) | Fault::Restart { .. } => Duration::ZERO,
    }
}

/// Events for each span, by its length; what rounding leaves over comes later, and the last span gets the rest.
fn shares(events: usize, spans: &[[Duration; 2]]) -> Vec<[usize; 2]> {
    let total = spans.iter().flatten().map(Duration::as_millis).sum::<u128>().max(1);
    let (mut passed, mut given) = (0, 0);
    let mut share = |span: &Duration| {
        passed += span.as_millis();
        let due = usize::try_from(events as u128 * passed / total).unwrap_or(events);
        let share = due - given;
        given = due;
        share
    };
    spans.iter().map(|[gap, standstill]| [share(gap), share(standstill)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kills(fault: Fault) -> usize {
        match fault {
            Fault::Kill(_) => 1,
            Fault::KillBoth(_) => 2,
            Fault::Stop { .. } => 0,
            Fault::Restart { killed, .. } => usize::from(killed.is_some()),
        }
    }

    #[test]
    fn a_plan_has_all_its_kills_and_events() {
        for (seed, wanted_kills, events) in [(1, 1, 10), (2, 4, 500), (3, 200, 50_000), (4, 1_000, 999)] {
            let plan = draw(seed, wanted_kills, events);
            assert_eq!(plan.iter().map(|step| kills(step.fault)).sum::<usize>(), wanted_kills, "seed {seed}");
            let published: usize = plan.iter().map(|step| step.spread + step.burst + step.meanwhile).sum();
            assert_eq!(published, events, "seed {seed}");
            let is_restart = |shutdown| move |step: &Step| matches!(step.fault, Fault::Restart { shutdown: is, .. } if is == shutdown);
            assert!(plan.iter().any(is_restart(Shutdown::Fast)), "seed {seed}");
            assert!(plan.iter().any(is_restart(Shutdown::Immediate)), "seed {seed}");
        }
    }

    #[test]
    fn a_seed_makes_one_plan() {
        assert_eq!(draw(5, 200, 50_000), draw(5, 200, 50_000));
        assert_ne!(draw(5, 200, 50_000), draw(6, 200, 50_000));
    }

    #[test]
    fn a_long_plan_freezes_processes_beyond_their_lease() {
        let is_long =
            |step: &&Step| matches!(step.fault, Fault::Stop { lasting, .. } if lasting > TIME_TO_LIVE);
        assert_eq!(draw(8, 200, 50_000).iter().filter(is_long).count(), 5);
    }

    #[test]
    fn kills_come_in_spells_that_spare_one_process_while_the_other_dies_again_and_again() {
        for seed in 0..20 {
            let victims = draw(seed, 200, 50_000).into_iter().filter_map(|step| match step.fault {
                Fault::Kill(side) => Some(side),
                Fault::KillBoth(_) | Fault::Stop { .. } | Fault::Restart { .. } => None,
            });
            let victims: Vec<Side> = victims.collect();
            let longest = victims.chunk_by(|one, next| one == next).map(<[Side]>::len).max();
            assert!(longest >= Some(12), "seed {seed}: {longest:?}");
        }
    }
}
