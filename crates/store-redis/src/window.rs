//! What stands in a lane's window: work, laid out and sent when its turn comes.
//!
//! Not in here: when that is, and what becomes of the answers ([`crate::lane`]).

use mtimer_store::{Answer, Op};
use mtimer_types::{Target, Time};

use crate::conn::Waiting;
use crate::keys::SlotKey;
use crate::plan::{Needs, Placed, Plan, TRIM_STEP};
use crate::script::Script;

/// A script that runs alone.
#[derive(Debug)]
pub(crate) struct Alone {
    pub(crate) plan: Plan,
    /// Its answer must be confirmed by replicas if that is the durability level.
    pub(crate) confirm: bool,
}

/// What a place in the window is for.
#[derive(Debug)]
pub(crate) enum Work {
    Ops(Run),
    /// A claim by itself.
    Claim {
        until: Time,
        /// It was made, and too few replicas have it: it is made until enough do, and nothing is sent behind it.
        held: bool,
    },
    Get(Target),
    /// Asks for the ids of slots, for the sake of what comes behind it.
    Learn(Vec<SlotKey>),
    Alone(Alone),
}

/// Operations of one kind.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) ops: Vec<Op>,
    /// Their places in the batch.
    pub(crate) places: Vec<u32>,
    pub(crate) now: Time,
    pub(crate) claim: Option<Time>,
    /// Timers trimmed so far, if it is a trim in several steps.
    pub(crate) trimmed: u32,
}

/// A script that was sent.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) seq: u64,
    pub(crate) script: Script,
    pub(crate) slots: Vec<SlotKey>,
    /// The highest number of a destination that it stores, or 0.
    pub(crate) dests: u32,
    pub(crate) waiting: Waiting,
}

/// A place in the window.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) no: u64,
    /// The call to apply that it is part of; `None`: it is no part of any.
    pub(crate) call: Option<u64>,
    pub(crate) work: Work,
    pub(crate) needs: Needs,
    /// Where it files timers.
    pub(crate) placed: Vec<Placed>,
    /// Its keys were looked up.
    pub(crate) looked_up: bool,
    pub(crate) sent: Option<Sent>,
}

impl Item {
    pub(crate) fn new(no: u64, call: Option<u64>, work: Work) -> Self {
        let (needs, placed) = Default::default();
        Self { no, call, work, needs, placed, looked_up: false, sent: None }
    }
}

impl Work {
    /// Whether this may not be sent behind it until it is done: what may take several steps, or teaches what others need.
    pub(crate) fn blocks(&self, next: &Self) -> bool {
        match self {
            Self::Ops(run) => matches!(run.ops[..], [Op::Trim { limit, .. }] if limit > TRIM_STEP),
            Self::Learn(_) => !matches!(next, Self::Learn(_)),
            Self::Get(_) | Self::Alone(_) => true,
            Self::Claim { held, .. } => *held,
        }
    }
}

impl Run {
    /// Of a trim: `Some(None)` if a further step is due, otherwise its whole answer. `None`: it is no trim.
    pub(crate) fn next_trim(&mut self, answers: &[Answer]) -> Option<Option<Answer>> {
        let ([Op::Trim { limit, .. }], [Answer::Trimmed { removed, more }]) = (&self.ops[..], answers) else {
            return None;
        };
        self.trimmed += removed;
        let again = *more && self.trimmed < *limit;
        Some((!again).then_some(Answer::Trimmed { removed: self.trimmed, more: *more }))
    }
}
