//! The same year under each strategy, with rebalancing and without, as one table.

use super::{
    demand::Demand,
    strategy::STRATEGIES,
    tenants::{self, Population, Tenant},
    year::{self, Year},
};

/// What the largest tenants take, and a line for each way to place them, in Markdown.
pub fn report(population: &Population, year: &Year) -> String {
    let tenants = tenants::draw(population);
    let mut lines = vec![
        largest(&tenants, year.weeks - 1),
        String::new(),
        "| placed by | rebalanced | fullest / mean | fullest ever | above limit | moved + forced | load moved | copied |"
            .to_owned(),
        "|---|---|---|---|---|---|---|---|".to_owned(),
    ];
    for strategy in STRATEGIES {
        for is_rebalanced in [false, true] {
            let told = year::run(year, &tenants, strategy, is_rebalanced);
            lines.push(format!(
                "| {} | {} | {:.2} | {:.0} % | {:.1} % | {} + {} | {:.2} cells | {:.1} TB |",
                strategy.name(),
                if is_rebalanced { "yes" } else { "no" },
                told.fullest_to_mean,
                told.fullest * 100.0,
                f64::from(told.cell_weeks_over) * 100.0 / f64::from(told.cell_weeks),
                told.moved,
                told.forced,
                told.moved_load,
                told.moved_bytes / 1e12,
            ));
        }
    }
    lines.join("\n")
}

fn largest(tenants: &[Tenant], week: u32) -> String {
    let mut demands: Vec<_> = tenants.iter().map(|tenant| tenant.demand(week)).collect();
    demands.sort_by(|one, other| other.share().total_cmp(&one.share()));
    let all: f64 = demands.iter().map(Demand::share).sum();
    let hundredth: f64 = demands[..demands.len().div_ceil(100)].iter().map(Demand::share).sum();
    let largest: Vec<_> =
        demands.iter().take(5).map(|demand| format!("{:.1} %", demand.share() * 100.0)).collect();
    format!(
        "The largest tenants take {} of a cell; the largest hundredth has {:.0} % of the load.",
        largest.join(", "),
        hundredth * 100.0 / all
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::rebalance::Bounds;

    /// What `make placement` shows if nothing else is asked for.
    #[test]
    fn the_document_shows_what_is_printed() {
        let population = Population { seed: 1, tenants: 10_000, weeks: 52, kept_days: 7.0, total: 8.0 * 0.6 };
        let bounds = Bounds { limit: 0.7, most_moves: 10 };
        let year = Year { seed: 1, weeks: 52, weights: vec![1.0; 8], bounds };
        let printed = report(&population, &year);
        let document = include_str!("../../../docs/scale.md");
        assert!(document.contains(&printed), "docs/scale.md does not show:\n{printed}");
    }
}
