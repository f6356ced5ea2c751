//! Fuzz targets: functions that take any bytes and must not panic, allocate without bound or run
//! for long.
//!
//! Purpose: everything that reads bytes from outside, and the engine as a state machine. Each
//! target also checks what must hold for every input, such as that an accepted message is written
//! and read back as the same message.
//! Invariant: a target is a pure function of its input, so that a file repeats a failure.
//! Not in here: libFuzzer (`main.rs`), the corpus (`corpus/`), inputs that once failed (`found/`).

mod bounded;
mod config;
mod engine;
mod lines;
// A module of the `mtimer` program, under the path that it has there.
#[allow(dead_code, unreachable_pub)]
#[path = "../../../crates/cli/src/moment.rs"]
mod moment;
mod names;
mod planted;
mod record;
mod wire;

/// A function that takes any bytes and panics if something is wrong.
pub type Target = fn(&[u8]);

/// Every target by name.
pub const TARGETS: &[(&str, Target)] = &[
    ("client_message", wire::client_message),
    ("server_message", wire::server_message),
    ("frames", wire::frames),
    ("hello", wire::hello),
    ("record", record::record),
    ("layout", mtimer_store_embedded::fuzzing::layout),
    ("settings", config::settings),
    ("environment", config::environment),
    ("ndjson", lines::ndjson),
    ("times", lines::times),
    ("names", names::names),
    ("engine", engine::any_answers),
    ("engine_store", engine::model_store),
];

/// The target of this name. `planted` is the fuzzer's own test and in no list.
pub fn target(name: &str) -> Option<Target> {
    let found = TARGETS.iter().find(|(known, _)| *known == name).map(|(_, target)| *target);
    found.or_else(|| (name == "planted").then_some(planted::planted as Target))
}

/// The names of all targets, for people.
pub fn names() -> String {
    TARGETS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}
