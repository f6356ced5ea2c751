//! Points of the caller's monotonic clock. The machine is told them; it cannot ask.

use std::ops::{Add, AddAssign};
use std::time::Duration;

/// A point of a monotonic clock, by its distance from an origin that the caller has chosen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub(crate) struct Moment(Duration);

impl Moment {
    /// The origin.
    pub(crate) const ORIGIN: Self = Self(Duration::ZERO);

    /// So long after the origin.
    pub(crate) const fn after_origin(distance: Duration) -> Self {
        Self(distance)
    }

    /// The distance from the origin.
    pub(crate) const fn since_origin(self) -> Duration {
        self.0
    }

    /// The distance from an earlier moment; zero if that one is later.
    pub(crate) const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, distance: Duration) -> Self {
        Self(self.0.saturating_add(distance))
    }
}

impl AddAssign<Duration> for Moment {
    fn add_assign(&mut self, distance: Duration) {
        *self = *self + distance;
    }
}

/// The earlier of two moments that may not come.
pub(crate) fn earlier(a: Option<Moment>, b: Option<Moment>) -> Option<Moment> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
