//! A population of tenants by chance. Sizes are heavy-tailed: some tenants out of thousands carry most of the load, and
//! nobody knows which when they are made, since all begin small.

use super::demand::Demand;
use crate::chance::Chance;

/// The exponent of the Pareto distribution: at 1.1 the largest hundredth of ten thousand tenants has about half of the load.
const EXPONENT: f64 = 1.1;
/// No tenant is larger than this many times the smallest.
const LARGEST: f64 = 1e4;
const SMALLEST_BODY_BYTES: f64 = 200.0;
const LARGEST_BODY_BYTES: f64 = 5_000.0;
/// Where the busiest hours lie: three regions of the world, two hours to either side.
const PEAK_HOURS: [u32; 3] = [3, 9, 17];
const PEAK_SPREAD_HOURS: u64 = 4;
const SHORTEST_GROWTH_WEEKS: u64 = 4;
const LONGEST_GROWTH_WEEKS: u64 = 40;
/// What a tenant has of its full size when it is made.
const FIRST_SHARE: f64 = 0.05;

#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// As good as random, as the ids of tenants are.
    pub id: u64,
    /// The week in which it is made.
    pub first_week: u32,
    growth_weeks: u32,
    full: Demand,
}

impl Tenant {
    /// What it takes in a week: nothing before it is made, then more and more until it has its full size.
    pub fn demand(&self, week: u32) -> Demand {
        let Some(age) = week.checked_sub(self.first_week) else { return Demand::default() };
        let grown = (f64::from(age) / f64::from(self.growth_weeks)).min(1.0);
        self.full.scaled((1.0 - FIRST_SHARE).mul_add(grown, FIRST_SHARE))
    }
}

/// What a population is drawn from.
#[derive(Debug, Clone, Copy)]
pub struct Population {
    pub seed: u64,
    pub tenants: usize,
    pub weeks: u32,
    pub kept_days: f64,
    /// How full one cell of ordinary size would be if it carried all of them in the last week, in such cells.
    pub total: f64,
}

/// Draws tenants in the order in which they are made.
pub fn draw(population: &Population) -> Vec<Tenant> {
    let mut chance = Chance::new(population.seed);
    let mut tenants: Vec<_> = (0..population.tenants).map(|_| one(&mut chance, population)).collect();
    tenants.sort_by_key(|tenant| tenant.first_week);
    let last = population.weeks.saturating_sub(1);
    let all: Vec<_> = tenants.iter().map(|tenant| tenant.demand(last)).collect();
    let drawn = Demand::sum(&all).share();
    for tenant in &mut tenants {
        tenant.full = tenant.full.scaled(population.total / drawn);
    }
    tenants
}

fn one(chance: &mut Chance, population: &Population) -> Tenant {
    let per_second = unit(chance).powf(-1.0 / EXPONENT).min(LARGEST);
    let body_bytes = SMALLEST_BODY_BYTES * (LARGEST_BODY_BYTES / SMALLEST_BODY_BYTES).powf(unit(chance));
    let region = chance.pick(&PEAK_HOURS);
    let peak_hour = region + whole(chance.between(0, PEAK_SPREAD_HOURS));
    Tenant {
        id: chance.bits(),
        first_week: whole(chance.bits() % u64::from(population.weeks.max(1))),
        growth_weeks: whole(chance.between(SHORTEST_GROWTH_WEEKS, LONGEST_GROWTH_WEEKS)),
        full: Demand::of(per_second, peak_hour, body_bytes, population.kept_days),
    }
}

/// A number above 0 and up to 1.
pub(super) fn unit(chance: &mut Chance) -> f64 {
    fraction(chance.bits())
}

pub(super) fn fraction(bits: u64) -> f64 {
    (f64::from(whole(bits >> 32)) + 1.0) / (f64::from(u32::MAX) + 1.0)
}

/// Of numbers that are known to be small.
fn whole(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) const fn population(seed: u64) -> Population {
        Population { seed, tenants: 2_000, weeks: 52, kept_days: 7.0, total: 5.0 }
    }

    #[test]
    fn few_tenants_carry_most_and_all_together_what_was_asked_for() {
        let tenants = draw(&population(1));
        assert_eq!(tenants, draw(&population(1)));
        assert_ne!(tenants, draw(&population(2)));
        let mut demands: Vec<_> = tenants.iter().map(|tenant| tenant.demand(51)).collect();
        assert!((Demand::sum(&demands).share() - 5.0).abs() < 1e-9);
        demands.sort_by(|one, other| other.share().total_cmp(&one.share()));
        let largest: f64 = demands[..200].iter().map(Demand::share).sum();
        let all: f64 = demands.iter().map(Demand::share).sum();
        assert!((0.5..0.9).contains(&(largest / all)), "the largest tenth has {}", largest / all);
    }

    #[test]
    fn a_tenant_grows_from_the_week_in_which_it_is_made() {
        for tenant in draw(&population(3)) {
            let shares: Vec<_> = (0..=120).map(|week| tenant.demand(week).share()).collect();
            assert!(shares.is_sorted(), "{shares:?}");
            let first = usize::try_from(tenant.first_week).expect("a week");
            assert!(shares[..first].iter().all(|share| *share == 0.0) && shares[first] > 0.0);
            assert!((shares[120] - tenant.full.share()).abs() < 1e-9);
        }
    }
}
