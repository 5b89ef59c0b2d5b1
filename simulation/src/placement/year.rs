//! A year of a fleet: each week tenants are made and placed, all grow, and some move. Halfway a cell is added, and after
//! three quarters the first one is lost.

use super::{
    demand::Demand,
    fleet::Fleet,
    rebalance::{self, Bounds},
    strategy::{Strategy, by_hash},
    tenants::Tenant,
};
use crate::chance::Chance;

#[derive(Debug, Clone)]
pub struct Year {
    pub seed: u64,
    pub weeks: u32,
    /// Of the cells at the beginning.
    pub weights: Vec<f64>,
    pub bounds: Bounds,
}

/// What is told of a year.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// In the last week: the fullest cell beside the mean of all.
    pub fullest_to_mean: f64,
    /// The fullest that any cell was in any week.
    pub fullest: f64,
    pub cell_weeks: u32,
    pub cell_weeks_over: u32,
    /// Those that were chosen to move, and those that a new or a lost cell left no choice.
    pub moved: usize,
    pub forced: usize,
    /// Of both, in the week in which they moved, in cells of ordinary size.
    pub moved_load: f64,
    pub moved_bytes: f64,
}

struct State<'a> {
    tenants: &'a [Tenant],
    strategy: Strategy,
    fleet: Fleet,
    demands: Vec<Demand>,
    chance: Chance,
    outcome: Outcome,
}

/// Runs a year. Without `is_rebalanced` there is no directory either: under [`Strategy::Hash`] a new cell then takes over
/// whom the hash gives it.
pub fn run(year: &Year, tenants: &[Tenant], strategy: Strategy, is_rebalanced: bool) -> Outcome {
    run_watched(year, tenants, strategy, is_rebalanced, |_, _, _| {})
}

/// The same, and shows each week as it ends.
fn run_watched(
    year: &Year,
    tenants: &[Tenant],
    strategy: Strategy,
    is_rebalanced: bool,
    mut watch: impl FnMut(u32, &Fleet, &Outcome),
) -> Outcome {
    let mut state = State {
        tenants,
        strategy,
        fleet: Fleet::new(&year.weights, tenants.len()),
        demands: vec![Demand::default(); tenants.len()],
        chance: Chance::new(year.seed),
        outcome: Outcome::default(),
    };
    for week in 0..year.weeks {
        state.demands = tenants.iter().map(|tenant| tenant.demand(week)).collect();
        if week == year.weeks / 2 {
            state.fleet.add(1.0);
            if strategy == Strategy::Hash && !is_rebalanced {
                state.follow_the_hash();
            }
        }
        if week == year.weeks * 3 / 4 {
            let homeless = state.fleet.lose(0);
            for &tenant in &homeless {
                state.note_forced(tenant);
            }
            state.place(&homeless);
        }
        let made = (0..tenants.len()).filter(|&tenant| tenants[tenant].first_week == week);
        state.place(&made.collect::<Vec<_>>());
        if is_rebalanced {
            state.rebalance(year.bounds);
        }
        state.measure(year.bounds.limit);
        watch(week, &state.fleet, &state.outcome);
    }
    state.outcome
}

impl State<'_> {
    fn place(&mut self, homeless: &[usize]) {
        let mut loads = self.fleet.loads(&self.demands);
        for &tenant in homeless {
            let found = self.strategy.place(&self.fleet, &loads, &self.tenants[tenant], &mut self.chance);
            let Some(cell) = found else { continue };
            self.fleet.settle(tenant, cell);
            loads[cell] = loads[cell].plus(&self.demands[tenant]);
        }
    }

    fn follow_the_hash(&mut self) {
        for tenant in 0..self.tenants.len() {
            let (Some(home), Some(cell)) =
                (self.fleet.home(tenant), by_hash(&self.fleet, self.tenants[tenant].id))
            else {
                continue;
            };
            if home != cell {
                self.fleet.settle(tenant, cell);
                self.note_forced(tenant);
            }
        }
    }

    fn rebalance(&mut self, bounds: Bounds) {
        for planned in rebalance::plan(&self.fleet, &self.demands, bounds) {
            self.fleet.settle(planned.tenant, planned.to);
            self.outcome.moved += 1;
            self.note_moved(planned.tenant);
        }
    }

    fn note_forced(&mut self, tenant: usize) {
        self.outcome.forced += 1;
        self.note_moved(tenant);
    }

    fn note_moved(&mut self, tenant: usize) {
        self.outcome.moved_load += self.demands[tenant].share();
        self.outcome.moved_bytes += self.demands[tenant].stored_bytes();
    }

    fn measure(&mut self, limit: f64) {
        let loads = self.fleet.loads(&self.demands);
        let shares: Vec<_> = self.fleet.live().map(|cell| self.fleet.share(cell, &loads[cell])).collect();
        let fullest = shares.iter().copied().fold(0.0, f64::max);
        let cells: u32 = shares.iter().map(|_| 1).sum();
        self.outcome.fullest_to_mean = fullest * f64::from(cells) / shares.iter().sum::<f64>();
        self.outcome.fullest = self.outcome.fullest.max(fullest);
        self.outcome.cell_weeks += cells;
        self.outcome.cell_weeks_over += shares.iter().map(|share| u32::from(*share > limit)).sum::<u32>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{
        strategy::STRATEGIES,
        tenants::{self, tests::population},
    };

    fn year(seed: u64) -> Year {
        let bounds = Bounds { limit: 0.7, most_moves: 5 };
        Year { seed, weeks: 52, weights: vec![1.0; 8], bounds }
    }

    #[test]
    fn a_year_repeats_itself_and_rebalancing_keeps_its_bounds_and_helps() {
        for seed in 0..3 {
            let tenants = tenants::draw(&population(seed));
            for strategy in STRATEGIES {
                let [left, again] =
                    [false, false].map(|is_rebalanced| run(&year(seed), &tenants, strategy, is_rebalanced));
                assert_eq!(left, again);
                let helped = run(&year(seed), &tenants, strategy, true);
                assert_eq!(left.moved, 0);
                assert!(helped.moved <= 52 * 5, "{helped:?}");
                assert!(helped.cell_weeks_over <= left.cell_weeks_over, "{strategy:?} {helped:?} {left:?}");
                assert_eq!(helped.cell_weeks, 26 * 8 + 13 * 9 + 13 * 8);
            }
        }
    }

    #[test]
    fn in_each_week_whoever_was_made_lives_in_one_cell_that_is_there_and_few_have_moved() {
        for seed in 0..3 {
            let tenants = tenants::draw(&population(seed));
            for strategy in STRATEGIES {
                for is_rebalanced in [false, true] {
                    let (mut moved, mut weeks) = (0, 0);
                    let year = year(seed);
                    run_watched(&year, &tenants, strategy, is_rebalanced, |week, fleet, outcome| {
                        for (tenant, made) in tenants.iter().enumerate() {
                            let home = fleet.home(tenant);
                            assert_eq!(home.is_some(), made.first_week <= week, "week {week}, {made:?}");
                            assert!(home.is_none_or(|cell| !fleet.cells[cell].is_lost), "week {week}");
                        }
                        let cells = 8 + usize::from(week >= 26);
                        assert_eq!((fleet.cells.len(), fleet.cells[0].is_lost), (cells, week >= 39));
                        let of_week = outcome.moved - moved;
                        assert!(of_week <= if is_rebalanced { year.bounds.most_moves } else { 0 });
                        moved = outcome.moved;
                        weeks += 1;
                    });
                    assert_eq!(weeks, year.weeks);
                }
            }
        }
    }

    #[test]
    fn a_hash_without_a_directory_moves_whom_a_new_cell_is_given() {
        let tenants = tenants::draw(&population(4));
        let [left, helped] =
            [false, true].map(|is_rebalanced| run(&year(4), &tenants, Strategy::Hash, is_rebalanced));
        assert!(left.forced > helped.forced + 50, "{left:?} {helped:?}");
    }
}
