//! Latencies of many events, kept to three digits.

use hdrhistogram::Histogram;

/// Digits that percentiles are exact to.
const DIGITS: u8 = 3;
const NS_PER_MS: f64 = 1e6;

/// Percentiles in milliseconds.
#[expect(clippy::struct_field_names, reason = "a unit belongs to each name")]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Latency {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
}

impl Latency {
    /// Of all samples; `None` where there is none.
    pub(crate) fn of_ns(samples: impl IntoIterator<Item = u64>) -> anyhow::Result<Option<Self>> {
        let mut histogram = Histogram::<u64>::new(DIGITS)?;
        for sample in samples {
            histogram.record(sample)?;
        }
        #[expect(
            clippy::cast_precision_loss,
            reason = "three digits are kept, and 52 bits of a nanosecond count are 52 days"
        )]
        let ms = |ns: u64| ns as f64 / NS_PER_MS;
        Ok((!histogram.is_empty()).then(|| Self {
            p50_ms: ms(histogram.value_at_quantile(0.50)),
            p99_ms: ms(histogram.value_at_quantile(0.99)),
            max_ms: ms(histogram.max()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_to_three_digits() {
        let latency = Latency::of_ns((1..=1_000).map(|ms| ms * 1_000_000)).unwrap().unwrap();
        for (found, expected) in [(latency.p50_ms, 500.0), (latency.p99_ms, 990.0), (latency.max_ms, 1_000.0)]
        {
            assert!((found - expected).abs() / expected < 0.001, "{latency:?}");
        }
        assert_eq!(Latency::of_ns([]).unwrap(), None);
    }
}
