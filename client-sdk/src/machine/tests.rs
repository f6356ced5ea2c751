//! Helpers that the tests of the machine share.

mod ends;
mod json;
mod player;
mod scenarios;
mod script;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use mtimer_protocol::{Role, Welcome};
use mtimer_types::Time;
use mtimer_types::limits::{HEARTBEAT_MS, MAX_BATCH, MAX_FRAME};

use super::caller::{Callbacks, Waiting};
use super::closing::Closing;
use super::inbox::Inbox;
use super::random::Random;
use super::settling::OutgoingOutcome;
use super::*;
use crate::ConnectError;
use crate::error::LinkError;

/// Shortens a pause by half of its jitter.
#[derive(Debug)]
pub(crate) struct Half;

impl Random for Half {
    fn client(&mut self) -> u128 {
        7
    }

    fn jitter(&mut self) -> u64 {
        1 << 63
    }
}

/// Who waits for an answer: a number.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    pub(crate) number: u64,
    pub(crate) abandoned: Rc<Cell<bool>>,
}

impl Ticket {
    pub(crate) fn new(number: u64) -> Self {
        Self { number, abandoned: Rc::new(Cell::new(false)) }
    }
}

impl Waiting for Ticket {
    fn is_abandoned(&self) -> bool {
        self.abandoned.get()
    }
}

/// An inbox that only one thread sees.
#[derive(Clone, Debug)]
pub(crate) struct Local(pub(crate) Rc<RefCell<Inbox>>);

impl Callbacks for Local {
    fn with<R>(&self, work: impl FnOnce(&mut Inbox) -> R) -> R {
        work(&mut self.0.borrow_mut())
    }
}

impl Local {
    pub(crate) fn new(dest: mtimer_types::Destination, credit: u32) -> Self {
        Self(Rc::new(RefCell::new(Inbox::new(dest, credit))))
    }
}

pub(crate) fn settings(seeds: &[&str]) -> MachineSettings {
    MachineSettings {
        seeds: seeds.iter().map(|seed| (*seed).to_owned()).collect(),
        one_broker: false,
        software: "test/1".to_owned(),
        token: String::new(),
        role: Role::Client,
        connect_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_secs(10),
        answer_timeout: Duration::from_secs(30),
    }
}

pub(crate) fn welcome() -> Welcome {
    Welcome {
        version: mtimer_protocol::VERSION,
        session: 7,
        cluster: "test".into(),
        software: "fake/1".into(),
        store: "none".into(),
        durability: "none".into(),
        partitions: 1,
        now: Time::from_ms(1_000_000),
        heartbeat_ms: HEARTBEAT_MS,
        max_frame: MAX_FRAME as u32,
        max_batch: MAX_BATCH as u32,
        broker: None,
    }
}
