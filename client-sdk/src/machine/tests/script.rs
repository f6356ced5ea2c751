//! The lines of a scenario that are read: its header and the inputs.
//!
//! docs/client.md describes the format.

use std::collections::VecDeque;

use mtimer_types::{Destination, HandlerOutcome, Key, KeyPolicy, Mode, Target, TimerId};
use serde::Deserialize;
use serde_json::Value;

use crate::machine::random::Random;

/// The random numbers that a scenario has chosen, a queue for each purpose.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Queues {
    pub(super) client: VecDeque<String>,
    pub(super) id: VecDeque<String>,
    pub(super) request: VecDeque<String>,
    pub(super) jitter: VecDeque<f64>,
    pub(super) spread: VecDeque<u16>,
}

impl Queues {
    pub(super) fn number<N: std::str::FromStr>(queue: &mut VecDeque<String>, purpose: &str) -> N {
        let text = queue.pop_front().unwrap_or_else(|| panic!("no random number left: {purpose}"));
        text.parse().unwrap_or_else(|_| panic!("{text} is no random number: {purpose}"))
    }
}

impl Random for Queues {
    fn client(&mut self) -> u128 {
        Self::number(&mut self.client, "client")
    }

    fn jitter(&mut self) -> u64 {
        let part = self.jitter.pop_front().expect("a jitter is left");
        // As many bits as a float has, at the top.
        ((part * (1_u64 << 53) as f64) as u64) << 11
    }
}

/// The first line of a scenario.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    pub(super) scenario: String,
    pub(super) version: u32,
    #[serde(default)]
    pub(super) settings: Settings,
    #[serde(default)]
    pub(super) random: Queues,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Settings {
    pub(super) seeds: Vec<String>,
    pub(super) one_broker: bool,
    pub(super) software: String,
    pub(super) token: String,
    pub(super) connect_timeout_ms: u64,
    pub(super) request_timeout_ms: u64,
    pub(super) answer_timeout_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seeds: vec!["a:7400".to_owned()],
            one_broker: false,
            software: "scenario/1".to_owned(),
            token: String::new(),
            connect_timeout_ms: 5_000,
            request_timeout_ms: 10_000,
            answer_timeout_ms: 30_000,
        }
    }
}

/// An input, by a line of a scenario.
#[derive(Deserialize)]
#[serde(tag = "in", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Happening {
    Connected {
        at: u64,
        conn: u64,
    },
    Failed {
        at: u64,
        conn: u64,
    },
    Frame {
        at: u64,
        conn: u64,
        hex: Option<String>,
        msg: Value,
    },
    Closed {
        at: u64,
        conn: u64,
    },
    Call {
        at: u64,
        call: u64,
        r#do: Vec<Asked>,
    },
    Abandon {
        at: u64,
        call: u64,
    },
    Register {
        at: u64,
        registration: u32,
        dest: Destination,
        concurrency: u32,
    },
    Unregister {
        at: u64,
        registration: u32,
    },
    End {
        at: u64,
        callback: u64,
        outcome: HandlerOutcome,
    },
    Extend {
        at: u64,
        callback: u64,
        by_ms: u32,
    },
    Suspended {
        at: u64,
        ms: u64,
    },
    Clock {
        at: u64,
    },
    Close {
        at: u64,
    },
    /// Time passes.
    Nothing {
        at: u64,
    },
}

impl Happening {
    pub(super) const fn at(&self) -> u64 {
        match self {
            Self::Connected { at, .. }
            | Self::Failed { at, .. }
            | Self::Frame { at, .. }
            | Self::Closed { at, .. }
            | Self::Call { at, .. }
            | Self::Abandon { at, .. }
            | Self::Register { at, .. }
            | Self::Unregister { at, .. }
            | Self::End { at, .. }
            | Self::Extend { at, .. }
            | Self::Suspended { at, .. }
            | Self::Clock { at }
            | Self::Close { at }
            | Self::Nothing { at } => *at,
        }
    }
}

/// A request of an application.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Asked {
    Schedule {
        dest: Destination,
        key: Option<Key>,
        after_ms: u64,
        payload: String,
        #[serde(default)]
        policy: KeyPolicy,
        #[serde(default)]
        mode: Mode,
    },
    Cancel(Target),
    Reschedule {
        target: Target,
        after_ms: u64,
    },
    Replay(TimerId),
    Purge(TimerId),
    Get(Target),
}
