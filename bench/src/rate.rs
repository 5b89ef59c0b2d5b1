//! Numbers for people.

const NS_PER_S: f64 = 1e9;

/// How many per second, from one moment to another.
pub(crate) fn per_second(count: u64, from_ns: u64, to_ns: u64) -> f64 {
    real(count) / (real(to_ns.saturating_sub(from_ns)) / NS_PER_S)
}

#[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds of a run are far below 2^52")]
pub(crate) const fn real(count: u64) -> f64 {
    count as f64
}

/// The middle value; of an even number of values the mean of the two in the middle. `None` of none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    sorted.get(sorted.len() / 2 - 1).map(|lower| f64::midpoint(*lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_value() {
        for (values, expected) in [
            (vec![], None),
            (vec![3.0], Some(3.0)),
            (vec![9.0, 1.0, 2.0], Some(2.0)),
            (vec![4.0, 1.0, 2.0, 9.0], Some(3.0)),
        ] {
            assert_eq!(median(values.clone()), expected, "{values:?}");
        }
    }

    #[test]
    fn a_rate_is_a_count_by_a_time() {
        assert!((per_second(500, 1_000_000_000, 3_000_000_000) - 250.0).abs() < 1e-9);
    }
}
