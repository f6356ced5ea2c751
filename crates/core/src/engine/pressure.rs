//! How much of the memory budget is used.

/// The memory that timers use, against its budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pressure {
    /// At most half of the budget is used.
    Free,
    /// More than half of it: timers that nobody takes are parked without delay.
    Pressed,
    /// All of it.
    Full,
}

impl Pressure {
    /// The pressure while `used` bytes of a budget of `budget` bytes are in use.
    pub(super) fn of(used: u64, budget: u64) -> Self {
        match used {
            _ if used >= budget => Self::Full,
            _ if used > budget / 2 => Self::Pressed,
            _ => Self::Free,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_pressed_beyond_half_of_the_budget_and_full_at_all_of_it() {
        let of = [0, 50, 51, 99, 100, 101].map(|used| Pressure::of(used, 100));
        use Pressure::{Free, Full, Pressed};
        assert_eq!(of, [Free, Free, Pressed, Pressed, Full, Full]);
    }
}
