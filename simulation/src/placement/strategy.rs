//! Where a tenant goes when it is made. Cells count by their weights.

use postrider_testkit::chance::Bits;

use super::{
    demand::Demand,
    fleet::Fleet,
    tenants::{Tenant, fraction},
};
use crate::chance::Chance;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Rendezvous hashing: the id alone decides, so nobody needs a directory, and nobody is ever asked how full cells are.
    Hash,
    /// Two cells by chance, and the emptier of them.
    TwoChoices,
    /// The emptiest cell.
    LeastLoaded,
}

pub const STRATEGIES: [Strategy; 3] = [Strategy::Hash, Strategy::TwoChoices, Strategy::LeastLoaded];

impl Strategy {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hash => "hash of the id",
            Self::TwoChoices => "two choices",
            Self::LeastLoaded => "least loaded",
        }
    }

    /// A cell for a tenant; `None` where there is none. `loads` are what cells carry now.
    pub fn place(
        self,
        fleet: &Fleet,
        loads: &[Demand],
        tenant: &Tenant,
        chance: &mut Chance,
    ) -> Option<usize> {
        let emptiest = |cells: &[usize]| {
            let share = |cell: &usize| fleet.share(*cell, &loads[*cell]);
            cells.iter().copied().min_by(|one, other| share(one).total_cmp(&share(other)))
        };
        let live: Vec<_> = fleet.live().collect();
        match self {
            Self::Hash => by_hash(fleet, tenant.id),
            Self::TwoChoices if live.is_empty() => None,
            Self::TwoChoices => emptiest(&[chance.pick(&live), chance.pick(&live)]),
            Self::LeastLoaded => emptiest(&live),
        }
    }
}

/// The cell with the highest score, where a cell of twice the weight wins twice as often. A score depends on the tenant and
/// the cell alone, so a new cell takes tenants over and moves none between others.
pub fn by_hash(fleet: &Fleet, tenant: u64) -> Option<usize> {
    let mut bits = Bits::of(tenant);
    let scores = fleet.cells.iter().map(|cell| -cell.weight / fraction(bits.draw()).ln());
    let of_living = scores.enumerate().filter(|(cell, _)| !fleet.cells[*cell].is_lost);
    of_living.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(cell, _)| cell)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::tenants::{self, tests::population};

    fn homes(fleet: &Fleet) -> Vec<usize> {
        let mut chance = Chance::new(11);
        (0..20_000).map(|_| by_hash(fleet, chance.bits()).expect("a cell lives")).collect()
    }

    #[test]
    fn a_hash_gives_cells_their_weights() {
        let homes = homes(&Fleet::new(&[1.0, 2.0, 1.0], 0));
        let of = |cell| homes.iter().filter(|home| **home == cell).count();
        assert!((9_600..10_400).contains(&of(1)), "{}", of(1));
        assert!((4_700..5_300).contains(&of(0)), "{}", of(0));
    }

    #[test]
    fn a_hash_moves_tenants_to_a_new_cell_and_from_a_lost_one_only() {
        let mut fleet = Fleet::new(&[1.0; 7], 0);
        let before = homes(&fleet);
        fleet.add(1.0);
        let with_another = homes(&fleet);
        let moved = before.iter().zip(&with_another).filter(|(one, other)| one != other);
        assert!(moved.clone().all(|(_, home)| *home == 7));
        assert!((2_300..2_700).contains(&moved.count()), "about an eighth");
        fleet.lose(3);
        for (home, other) in with_another.iter().zip(homes(&fleet)) {
            assert!(other != 3 && (other == *home || *home == 3));
        }
    }

    #[test]
    fn two_choices_and_the_least_loaded_fill_cells_more_evenly_than_a_hash() {
        let tenants = tenants::draw(&population(5));
        let spread = |strategy: Strategy| {
            let mut fleet = Fleet::new(&[1.0; 8], tenants.len());
            let mut loads = vec![Demand::default(); 8];
            let mut chance = Chance::new(1);
            for (number, tenant) in tenants.iter().enumerate() {
                let cell = strategy.place(&fleet, &loads, tenant, &mut chance).expect("a cell lives");
                fleet.settle(number, cell);
                loads[cell] = loads[cell].plus(&tenant.demand(100));
            }
            let fullest = loads.iter().map(Demand::share).fold(0.0, f64::max);
            fullest / Demand::sum(&loads).share() * 8.0
        };
        let [hash, two, least] = STRATEGIES.map(spread);
        assert!(least < hash && two < hash, "{least} {two} {hash}");
    }
}
