//! The engine (being filled in).
use crate::api::{Effect, EngineOptions, Input, Now};

/// A broker's decisions.
pub struct Engine {}

impl Engine {
    /// A new engine that owns nothing yet.
    pub fn new(_options: EngineOptions, _now: Now) -> Self {
        Self {}
    }
    /// Takes one input. Call [`Engine::flush`] after a few of them.
    pub fn handle(&mut self, _now: Now, _input: Input) {}
    /// Sends on what the inputs have brought about: claims, group commits, deliveries. Effects are in order.
    pub fn flush(&mut self, _now: Now, _out: &mut Vec<Effect>) {}
    /// The next monotonic time, ms, at which the engine wants an [`Input::Tick`] for a timeout of its own.
    pub fn next_tick(&self) -> Option<u64> {
        None
    }
    /// Deliveries sent and not settled, and settlements not stored yet: 0 when a drain is complete.
    pub fn unsettled(&self) -> usize {
        0
    }
}
