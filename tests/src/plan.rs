//! Timers as tests want them.
//!
//! They are told apart by a serial number at the head of their payload, which also the ones have
//! whose id the test does not know (lines of a file with a key).

use bytes::Bytes;
use mtimer_client::{Destination, Headers, Key, Mode, Schedule, Time};

/// A timer as a test wants it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its number in this test.
    pub serial: u64,
    /// Whose it is.
    pub dest: Destination,
    /// Its key.
    pub key: Option<Key>,
    /// When it is due, ms since the epoch.
    pub due: u64,
    /// False: the broker or a tool computes the due time; it is not before `due`.
    pub exact: bool,
    /// How often it may be delivered.
    pub mode: Mode,
    /// Its own deadline.
    pub deadline: Option<u64>,
    /// Attempts before it is a dead letter.
    pub attempts: u32,
    /// How long a handler may take, ms.
    pub timeout_ms: u64,
    /// Whether it replaces what has its key.
    pub replaces: bool,
    /// Whether its destination may be without credit or without clients for seconds.
    pub crowded: bool,
    /// Bytes of its payload behind the serial number.
    pub filler_bytes: usize,
}

impl Plan {
    /// A plain timer, due at `due`, with the attempts and the callback timeout of the broker under
    /// test.
    pub fn new(serial: u64, dest: &Destination, due: u64, attempts: u32, timeout_ms: u64) -> Self {
        Self {
            serial,
            dest: dest.clone(),
            key: None,
            due,
            exact: true,
            mode: Mode::AtLeastOnce,
            deadline: None,
            attempts,
            timeout_ms,
            replaces: false,
            crowded: false,
            filler_bytes: (serial % 100) as usize,
        }
    }

    /// Its payload: the serial number and some bytes.
    pub fn payload(&self) -> Bytes {
        const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz";
        let mut payload = format!("{}:", self.serial);
        let end = payload.len() + self.filler_bytes;
        // Each delivery is compared with it, in a build that is not optimised.
        while payload.len() < end {
            payload.push_str(&LETTERS[..LETTERS.len().min(end - payload.len())]);
        }
        payload.into()
    }

    /// Its headers: every third has some.
    pub fn headers(&self) -> Headers {
        let serial = self.serial.to_string();
        let pairs = [("serial", serial.as_str()), ("tenant", "acme")];
        Headers::new(pairs.into_iter().filter(|_| self.serial.is_multiple_of(3))).unwrap()
    }

    /// As the SDK takes it, without retry tiers and callback timeout.
    pub fn schedule(&self) -> Schedule {
        let mut schedule = Schedule::at(self.dest.clone(), Time::from_ms(self.due));
        if let Some(key) = &self.key {
            schedule = schedule.key(key.clone());
        }
        if let Some(deadline) = self.deadline {
            schedule = schedule.deadline(Time::from_ms(deadline));
        }
        schedule.mode(self.mode).payload(self.payload()).headers(self.headers())
    }
}

/// The serial number in a payload.
pub fn serial_of(payload: &[u8]) -> Option<u64> {
    let head = payload.split(|b| *b == b':').next()?;
    std::str::from_utf8(head).ok()?.parse().ok()
}
