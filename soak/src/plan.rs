//! What happens to the processes, their database and what they share beside it, drawn from the seed before anything starts.
//!
//! Invariants: exactly as many kills as were asked for, of whatever is killed; every event is published under some step;
//! no step leaves a process frozen or dead at its end; what a shape does not have comes to no harm.

use std::time::Duration;

use postrider_embedded::Shutdown;
use postrider_engine::heartbeat::TIME_TO_LIVE;

use crate::{
    chance::Chance,
    shape::{Dependency, Seat, Shape},
};

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
/// spell do the others live long enough to take over what the dead left behind.
const SAME_AGAIN_PERCENT: u64 = 88;
/// From its kill until a dependency is started again.
const ABSENCE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(3)];
/// A freeze of a dependency.
const HANG: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(6)];
/// What RabbitMQ needs to start, about: events are spread over that time, too.
const BROKER_START: Duration = Duration::from_secs(4);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `kill -9`, then started again at once.
    Kill(Seat),
    /// The same for two, in this order.
    KillTwo([Seat; 2]),
    /// SIGSTOP, and SIGCONT after this time.
    Stop { seat: Seat, lasting: Duration },
    /// The database ends and comes back; a process may be killed while it is away.
    Restart { shutdown: Shutdown, killed: Option<Seat> },
    /// Something befalls what the processes can do without.
    Deprive { of: Dependency, trouble: Trouble },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// `kill -9`, and started again after this time.
    Killed { away: Duration },
    /// Every queue and every message, or every key, is gone.
    Emptied,
    /// SIGSTOP, and SIGCONT after this time.
    Frozen { lasting: Duration },
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
    /// Events spread over the time that something stands still or is away.
    pub(crate) meanwhile: usize,
}

/// Draws the faults; the more kills, the more of everything else.
pub(crate) fn draw(shape: Shape, seed: u64, kills: usize, events: usize) -> Vec<Step> {
    let mut chance = Chance::of(seed, &[0]);
    let mut kinds = kinds(shape, kills);
    chance.shuffle(&mut kinds);
    let faults = faults(&mut chance, shape.seats(), kinds);
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

/// What of a fault is decided before chance has its say.
#[derive(Clone, Copy)]
enum Kind {
    Kill,
    KillTwo,
    Stop([Duration; 2]),
    Restart { shutdown: Shutdown, kills: bool },
    KillOf(Dependency),
    EmptyingOf(Dependency),
    HangOf(Dependency),
}

fn kinds(shape: Shape, kills: usize) -> Vec<Kind> {
    let mut left = kills;
    // As many kills of a kind as are wanted, each of so many at once, if so many are left.
    let mut spend = |wanted: usize, each: usize| {
        let count = wanted.min(left / each);
        left -= count * each;
        count
    };
    let mut kinds = Vec::new();
    for &of in shape.dependencies() {
        kinds.extend((0..spend(kills.div_ceil(12), 1)).map(|_| Kind::KillOf(of)));
        kinds.extend((0..(kills / 20).max(1)).map(|_| Kind::EmptyingOf(of)));
        kinds.extend((0..kills / 25).map(|_| Kind::HangOf(of)));
    }
    let restarts = (kills / 20).max(2);
    let restarts_with_a_kill = spend(restarts / 3, 1);
    kinds.extend((0..restarts).map(|number| Kind::Restart {
        shutdown: if number % 2 == 0 { Shutdown::Immediate } else { Shutdown::Fast },
        kills: number < restarts_with_a_kill,
    }));
    kinds.extend((0..spend(kills / 25, 2)).map(|_| Kind::KillTwo));
    kinds.extend((0..spend(kills, 1)).map(|_| Kind::Kill));
    kinds.extend((0..(kills / 10).max(1)).map(|_| Kind::Stop(SHORT_STOP)));
    kinds.extend((0..kills / 40).map(|_| Kind::Stop(LONG_STOP)));
    kinds
}

fn faults(chance: &mut Chance, seats: &[Seat], kinds: Vec<Kind>) -> Vec<Fault> {
    let mut victims = Victims { seats, now: any(chance, seats), waiting: Vec::new() };
    let choose = |kind| {
        let victim = victims.next(chance);
        match kind {
            Kind::Kill => Fault::Kill(victim),
            Kind::KillTwo => Fault::KillTwo([victim, any(chance, &others(seats, victim))]),
            Kind::Stop([shortest, longest]) => {
                Fault::Stop { seat: victim, lasting: chance.between(shortest, longest) }
            }
            Kind::Restart { shutdown, kills } => Fault::Restart { shutdown, killed: kills.then_some(victim) },
            Kind::KillOf(of) => {
                let trouble = Trouble::Killed { away: chance.between(ABSENCE[0], ABSENCE[1]) };
                Fault::Deprive { of, trouble }
            }
            Kind::EmptyingOf(of) => Fault::Deprive { of, trouble: Trouble::Emptied },
            Kind::HangOf(of) => {
                let trouble = Trouble::Frozen { lasting: chance.between(HANG[0], HANG[1]) };
                Fault::Deprive { of, trouble }
            }
        }
    };
    kinds.into_iter().map(choose).collect()
}

/// Who is hit next: mostly the same one as before, and everybody once before anybody for the second time.
struct Victims<'a> {
    seats: &'a [Seat],
    now: Seat,
    waiting: Vec<Seat>,
}

impl Victims<'_> {
    fn next(&mut self, chance: &mut Chance) -> Seat {
        if !chance.percent(SAME_AGAIN_PERCENT) {
            if self.waiting.is_empty() {
                self.waiting = others(self.seats, self.now);
                chance.shuffle(&mut self.waiting);
            }
            self.now = self.waiting.pop().unwrap_or(self.now);
        }
        self.now
    }
}

fn any(chance: &mut Chance, seats: &[Seat]) -> Seat {
    seats[usize::try_from(chance.below(seats.len() as u64)).unwrap_or_default()]
}

/// All but that one.
fn others(seats: &[Seat], but: Seat) -> Vec<Seat> {
    seats.iter().copied().filter(|seat| *seat != but).collect()
}

/// How long a fault lasts by itself.
pub(crate) fn standstill(fault: Fault) -> Duration {
    match fault {
        Fault::Stop { lasting, .. } => lasting,
        Fault::Kill(_) | Fault::KillTwo(_) | Fault::Restart { .. } => Duration::ZERO,
        Fault::Deprive { of, trouble } => {
            let start = match of {
                Dependency::Broker => BROKER_START,
                Dependency::Redis => Duration::ZERO,
            };
            match trouble {
                Trouble::Killed { away } => away + start,
                Trouble::Emptied => start,
                Trouble::Frozen { lasting } => lasting,
            }
        }
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

    const SHAPES: [Shape; 2] = [Shape::Pair, Shape::Fleet];

    fn kills(fault: Fault) -> usize {
        match fault {
            Fault::Kill(_) => 1,
            Fault::KillTwo(_) => 2,
            Fault::Stop { .. } => 0,
            Fault::Restart { killed, .. } => usize::from(killed.is_some()),
            Fault::Deprive { trouble, .. } => usize::from(matches!(trouble, Trouble::Killed { .. })),
        }
    }

    fn victims(plan: &[Step]) -> Vec<Seat> {
        let victims = plan.iter().filter_map(|step| match step.fault {
            Fault::Kill(seat) => Some(seat),
            Fault::KillTwo(_) | Fault::Stop { .. } | Fault::Restart { .. } | Fault::Deprive { .. } => None,
        });
        victims.collect()
    }

    #[test]
    fn a_plan_has_all_its_kills_and_events() {
        let wanted = [(1, 1, 10), (2, 4, 500), (3, 200, 50_000), (4, 1_000, 999), (5, 0, 7), (6, 3, 100)];
        for (shape, (seed, wanted_kills, events)) in
            SHAPES.into_iter().flat_map(|shape| wanted.map(|wanted| (shape, wanted)))
        {
            let plan = draw(shape, seed, wanted_kills, events);
            let drawn = plan.iter().map(|step| kills(step.fault)).sum::<usize>();
            assert_eq!(drawn, wanted_kills, "{shape:?}, seed {seed}");
            let published: usize = plan.iter().map(|step| step.spread + step.burst + step.meanwhile).sum();
            assert_eq!(published, events, "{shape:?}, seed {seed}");
            let is_restart = |shutdown| move |step: &Step| matches!(step.fault, Fault::Restart { shutdown: is, .. } if is == shutdown);
            assert!(plan.iter().any(is_restart(Shutdown::Fast)), "{shape:?}, seed {seed}");
            assert!(plan.iter().any(is_restart(Shutdown::Immediate)), "{shape:?}, seed {seed}");
        }
    }

    #[test]
    fn a_seed_makes_one_plan() {
        for shape in SHAPES {
            assert_eq!(draw(shape, 5, 200, 50_000), draw(shape, 5, 200, 50_000));
            assert_ne!(draw(shape, 5, 200, 50_000), draw(shape, 6, 200, 50_000));
        }
    }

    #[test]
    fn a_long_plan_freezes_processes_beyond_their_lease() {
        let is_long =
            |step: &&Step| matches!(step.fault, Fault::Stop { lasting, .. } if lasting > TIME_TO_LIVE);
        for shape in SHAPES {
            assert_eq!(draw(shape, 8, 200, 50_000).iter().filter(is_long).count(), 5);
        }
    }

    #[test]
    fn two_that_die_at_once_are_two() {
        for shape in SHAPES {
            for step in draw(shape, 9, 200, 50_000) {
                let Fault::KillTwo([first, second]) = step.fault else { continue };
                assert_ne!(first, second);
            }
        }
    }

    #[test]
    fn kills_come_in_spells_that_spare_the_others_while_one_dies_again_and_again() {
        for (shape, seed) in SHAPES.into_iter().flat_map(|shape| (0..20).map(move |seed| (shape, seed))) {
            let victims = victims(&draw(shape, seed, 200, 50_000));
            let longest = victims.chunk_by(|one, next| one == next).map(<[Seat]>::len).max();
            assert!(longest >= Some(12), "{shape:?}, seed {seed}: {longest:?}");
        }
    }

    #[test]
    fn in_a_fleet_everybody_dies_and_what_is_shared_suffers_everything() {
        for seed in 0..20 {
            let plan = draw(Shape::Fleet, seed, 100, 20_000);
            let victims = victims(&plan);
            for seat in Shape::Fleet.seats() {
                assert!(victims.contains(seat), "seed {seed}: {seat:?} is spared");
            }
            for dependency in Shape::Fleet.dependencies() {
                let count = |is_meant: fn(Trouble) -> bool| {
                    let meets = |step: &&Step| matches!(step.fault, Fault::Deprive { of, trouble } if of == *dependency && is_meant(trouble));
                    plan.iter().filter(meets).count()
                };
                assert_eq!(count(|trouble| matches!(trouble, Trouble::Killed { .. })), 9, "seed {seed}");
                assert_eq!(count(|trouble| trouble == Trouble::Emptied), 5, "seed {seed}");
                assert_eq!(count(|trouble| matches!(trouble, Trouble::Frozen { .. })), 4, "seed {seed}");
            }
        }
    }

    #[test]
    fn what_a_pair_does_not_have_comes_to_no_harm() {
        let is_deprived = |step: &Step| matches!(step.fault, Fault::Deprive { .. });
        assert!(!draw(Shape::Pair, 1, 200, 50_000).iter().any(is_deprived));
        assert!(draw(Shape::Fleet, 1, 4, 500).iter().any(is_deprived));
    }
}
