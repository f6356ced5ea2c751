//! How late deliveries were.

use std::fmt;

use hdrhistogram::Histogram;

/// A distribution of milliseconds.
#[derive(Clone, Debug)]
pub struct Spread(Histogram<u64>);

impl Spread {
    /// Of these values.
    pub fn of(values: impl IntoIterator<Item = u64>) -> Self {
        let mut histogram = Histogram::new(3).expect("a valid precision");
        // It grows as it has to; saturating would clip what is long.
        values.into_iter().for_each(|ms| histogram.record(ms).expect("it grows"));
        Self(histogram)
    }

    /// The value that this share of them does not exceed.
    pub fn at(&self, quantile: f64) -> u64 {
        self.0.value_at_quantile(quantile)
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.len()
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p50, p90, p99) = (self.at(0.5), self.at(0.9), self.at(0.99));
        write!(f, "n {}, p50 {p50} ms, p90 {p90} ms, p99 {p99} ms, max {} ms", self.0.len(), self.0.max())
    }
}
