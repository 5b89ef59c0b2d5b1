//! What a tenant takes of a cell, and a cell's tenants together. All parts are shares: 1 is all that a cell of ordinary
//! size has.

/// Deliveries per second of a cell: about what one machine of two cores carried in the benchmark, with PostgreSQL, `api` and
/// `worker` all on it (docs/performance.md, docs/scale.md).
pub const CELL_DELIVERIES_PER_SECOND: f64 = 13_000.0;
/// Room for events and history.
pub const CELL_BYTES: f64 = 4e12;
/// Rows and indexes of one event with a key, one delivery and one attempt, without the body (docs/operations.md).
pub const BYTES_PER_DELIVERY: f64 = 930.0;

pub const HOURS: usize = 24;
const SECONDS_PER_DAY: f64 = 86_400.0;
/// How far the busiest hour is above the mean, and the quietest below.
const SWING: f64 = 0.6;

#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Demand {
    /// In each hour of the day.
    rates: [f64; HOURS],
    stored: f64,
}

impl Demand {
    /// Of a tenant with so many deliveries per second over a day, bodies of so many bytes, kept for so many days.
    pub fn of(per_second: f64, peak_hour: u32, body_bytes: f64, kept_days: f64) -> Self {
        let mut rates = [0.0; HOURS];
        for (hour, rate) in (0_u32..).zip(&mut rates) {
            let angle = std::f64::consts::TAU * f64::from(hour.abs_diff(peak_hour)) / 24.0;
            *rate = per_second * SWING.mul_add(angle.cos(), 1.0) / CELL_DELIVERIES_PER_SECOND;
        }
        let bytes = per_second * SECONDS_PER_DAY * kept_days * (BYTES_PER_DELIVERY + body_bytes);
        Self { rates, stored: bytes / CELL_BYTES }
    }

    pub fn scaled(&self, factor: f64) -> Self {
        Self { rates: self.rates.map(|rate| rate * factor), stored: self.stored * factor }
    }

    pub fn plus(&self, other: &Self) -> Self {
        Self {
            rates: std::array::from_fn(|hour| self.rates[hour] + other.rates[hour]),
            stored: self.stored + other.stored,
        }
    }

    pub fn minus(&self, other: &Self) -> Self {
        self.plus(&other.scaled(-1.0))
    }

    pub fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        all.into_iter().fold(Self::default(), |sum, one| sum.plus(one))
    }

    /// How full a cell is that carries this: by its busiest hour or by its disk, whichever is more.
    pub fn share(&self) -> f64 {
        self.rates.iter().copied().fold(self.stored, f64::max)
    }

    /// What has to be copied when it moves.
    pub fn stored_bytes(&self) -> f64 {
        self.stored * CELL_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_as_full_as_its_busiest_hour_or_its_disk() {
        let busy = Demand::of(CELL_DELIVERIES_PER_SECOND / 2.0, 9, 300.0, 0.0);
        assert!(
            (busy.share() - 0.8).abs() < 1e-9,
            "half of it on average, 1.6 times that at nine: {}",
            busy.share()
        );
        let large = Demand::of(1.0, 9, 1e6, 365.0);
        assert!((large.share() * CELL_BYTES - large.stored_bytes()).abs() < 1.0);
        let night = Demand::of(CELL_DELIVERIES_PER_SECOND / 2.0, 21, 300.0, 0.0);
        assert!((busy.plus(&night).share() - 1.0).abs() < 1e-9, "day and night even each other out");
        assert!(busy.plus(&night).minus(&night).minus(&busy).share().abs() < 1e-9);
    }
}
