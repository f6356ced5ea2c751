//! What handlers do with a delivery: well, ask for a retry, fail for good, or be too slow. It
//! depends on the timer's number and the attempt alone, so that a run can be repeated.

use std::time::Duration;

use mtimer_client::{Callback, Outcome};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::history::Handled;
use crate::plan::Plan;
use crate::recorder::Recorder;

/// What a handler does with one delivery.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// How long it takes.
    pub takes: Duration,
    /// What it says then.
    pub says: Handled,
}

impl Behaviour {
    /// It does well at once.
    pub const GOOD: Self = Self { takes: Duration::ZERO, says: Handled::Ok };

    /// One of many things: half of the time it does well at once.
    pub fn flaky(seed: u64, plan: &Plan, attempt: u32) -> Self {
        let mut rng = StdRng::seed_from_u64(seed ^ (plan.serial << 8) ^ u64::from(attempt));
        let too_long = Duration::from_millis(plan.timeout_ms * 3 / 2);
        let (takes, says) = match rng.random_range(0..100) {
            0..50 => (Duration::ZERO, Handled::Ok),
            50..60 => (Duration::from_millis(rng.random_range(1..100)), Handled::Ok),
            60..80 => (Duration::ZERO, Handled::Retry),
            80..85 => (Duration::ZERO, Handled::Fail),
            85..93 => (too_long, Handled::Ok),
            _ => (too_long, Handled::Retry),
        };
        Self { takes, says }
    }

    /// Does it, and records what it says.
    pub async fn carry_out(self, recorder: &Recorder, plan: &Plan, callback: &Callback) -> Outcome {
        if !self.takes.is_zero() {
            tokio::time::sleep(self.takes).await;
        }
        recorder.settled(plan.serial, callback, self.says);
        match self.says {
            Handled::Ok => Outcome::ok(),
            Handled::Retry => Outcome::retry("again, please"),
            Handled::Fail => Outcome::fail("never"),
        }
    }
}
