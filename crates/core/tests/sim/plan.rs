//! The parameters of a run, drawn from its seed.

use mtimer_protocol::RequestOp;
use mtimer_store::conformance::SeededRandom;

use super::Sabotage;

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// In runs whose seed is below 2^32 clients ask for so many operations, the first in
/// [`RequestOp::NAMES`].
const FIRST_OPERATIONS: u64 = 5;

/// The same of clients that know bulk jobs, and no later operation.
const FIRST_BULK: u64 = 8;

/// The same for questions, the first in `query_one`, and how many there are by now.
const FIRST_QUESTIONS: u64 = 5;
const QUESTIONS: u64 = 8;

/// How many policies for keys have come after the first three.
const NEWER_POLICIES: u64 = 3;

/// Bits of the upper half of a seed for what has come beside operations, questions and policies.
const NEWER: u32 = 28;
/// Bit of the upper half of a seed: handlers answer later, too.
const LATER: u64 = 1 << NEWER;
/// Bit of the upper half of a seed: timers have priorities.
const PRIORITIES: u64 = 2 << NEWER;

/// How many operations, questions and policies for keys have come since, and what else has: the
/// upper half of a new seed. So a seed that is recorded keeps its history when another one comes.
pub(crate) fn newer_requests() -> u64 {
    newer_requests_with(RequestOp::NAMES.len() as u64, QUESTIONS) | NEWER_POLICIES << 24 | LATER | PRIORITIES
}

/// The same as it was when each of the newer operations and questions came, the last one first; of
/// operations those without which bulk jobs are missing are left out.
pub(crate) fn newer_requests_so_far() -> impl Iterator<Item = u64> + Clone {
    let all = RequestOp::NAMES.len() as u64;
    let questions = (FIRST_QUESTIONS..=QUESTIONS).rev();
    questions
        .flat_map(move |questions| (FIRST_BULK..=all).rev().map(move |n| newer_requests_with(n, questions)))
}

fn newer_requests_with(operations: u64, questions: u64) -> u64 {
    (operations - FIRST_OPERATIONS) | (questions - FIRST_QUESTIONS) << 16
}

/// The focus of a run. A profile fixes which promises apply; the seed draws everything else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Profile {
    /// Nothing fails and nothing moves: every timer is delivered exactly as often as its handlers
    /// ask for.
    Calm,
    /// Nothing fails, but partitions change hands and brokers stop gracefully.
    Handovers,
    /// Crashes, pauses, a slow or unreachable store, lost connections.
    Faults,
    /// The same with little memory, little credit, and destinations that nobody serves.
    Pressure,
    /// The same with hosts and stores whose clocks are off, drift, step and stand still.
    Clocks,
}

impl Profile {
    /// Also the name of its test.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Calm => "calm",
            Self::Handovers => "handovers",
            Self::Faults => "faults",
            Self::Pressure => "pressure",
            Self::Clocks => "clocks",
        }
    }
}

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) profile: Profile,
    pub(crate) seed: u64,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) brokers: usize,
    /// Whether the brokers know a topology. One broker alone may have none.
    pub(crate) clustered: bool,
    pub(crate) timers: u64,
    /// Clients ask for the first so many operations in [`RequestOp::NAMES`].
    pub(crate) operations: usize,
    /// Clients ask the first so many questions.
    pub(crate) questions: u64,
    /// Clients know so many policies for keys beside the first three.
    pub(crate) newer_policies: u64,
    /// Handlers answer later, too.
    pub(crate) postpones: bool,
    /// Timers have priorities.
    pub(crate) priorities: bool,
    /// How long timers are scheduled in quick succession, ms.
    pub(crate) load_ms: u64,
    /// How long faults and edits go on at long intervals after that, ms.
    pub(crate) far_ms: u64,
    /// The farthest due time, ms from now.
    pub(crate) due_ms: u64,
    pub(crate) memory_bytes: u64,
    /// The credit of a registration is drawn from these.
    pub(crate) credits: &'static [u32],
    pub(crate) batch_ops: usize,
    /// After how long an unanswered request is repeated, ms.
    pub(crate) repeat_after_ms: u64,
    /// The usual time of a way to the store, ms; each call has two.
    pub(crate) store_ms: u64,
    /// Masters that tell their time; none: the host's clock decides.
    pub(crate) store_clocks: usize,
    /// Nothing fails but brokers' ways to the store, and others get their partitions meanwhile.
    pub(crate) only_cuts: bool,
}

impl Plan {
    pub(crate) fn draw(profile: Profile, seed: u64, sabotage: Option<Sabotage>) -> Self {
        let rng = &mut SeededRandom::new(seed ^ 0x706c_616e);
        let far = rng.chance(30) && profile != Profile::Clocks;
        let pressure = profile == Profile::Pressure;
        let store_ms = rng.pick(&[0, 2, 4, 4, 10, 100]);
        let store_clocks = rng.pick(&[0, 1, 3, 3]);
        let most = if profile == Profile::Clocks && store_clocks == 0 { 1 } else { 3 };
        let brokers =
            if profile == Profile::Calm { rng.between(1, 2) } else { rng.between(1, most) } as usize;
        let mut plan = Self {
            profile,
            seed,
            sabotage,
            brokers,
            clustered: brokers > 1 || profile == Profile::Handovers || rng.chance(50),
            timers: rng.between(30, 160),
            operations: (FIRST_OPERATIONS + (seed >> 32 & 0xffff)) as usize,
            questions: FIRST_QUESTIONS + (seed >> 48 & 0xff),
            newer_policies: seed >> 56 & 0xf,
            postpones: seed >> 32 & LATER != 0,
            priorities: seed >> 32 & PRIORITIES != 0,
            load_ms: rng.between(3_000, 12_000),
            far_ms: match (profile, far) {
                (Profile::Clocks, _) => rng.between(10_000, 5 * MINUTE),
                (_, true) => rng.between(MINUTE, 2 * DAY),
                _ => 2_000,
            },
            due_ms: if far { 2 * DAY } else { 10_000 },
            memory_bytes: if pressure { rng.pick(&[5_000, 30_000, 100_000]) } else { 1 << 20 },
            credits: if pressure { &[1, 1, 2, 3] } else { &[1, 3, 20, 100] },
            batch_ops: rng.pick(&[1, 2, 5, 250]),
            repeat_after_ms: rng.pick(&[4, 50, 200, 1_000]),
            store_ms,
            store_clocks,
            only_cuts: false,
        };
        if let Some(sabotage) = sabotage {
            sabotage.shape(&mut plan);
        }
        plan
    }

    /// Nothing fails: brokers stop in good order, if at all.
    pub(crate) fn is_faultless(&self) -> bool {
        matches!(self.profile, Profile::Calm | Profile::Handovers)
    }

    pub(crate) fn has_faults(&self) -> bool {
        matches!(self.profile, Profile::Faults | Profile::Pressure | Profile::Clocks)
    }

    pub(crate) fn has_handovers(&self) -> bool {
        self.profile != Profile::Calm
    }

    pub(crate) fn has_clocks(&self) -> bool {
        self.profile == Profile::Clocks
    }
}
