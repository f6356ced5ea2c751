//! The cluster clock: one time for all due times.
//!
//! The clocks of the store decide, by their lower median: every broker reads the same ones,
//! independently of its own host's clock. The host's clock decides only for a store without a clock
//! of its own. While no deciding clock is heard, the monotonic clock carries the estimate on. It
//! counts suspensions of the host: the shell adds them. One that the host cannot tell looks like a
//! step of all other clocks.
//!
//! A reading says that the clock showed a time at some moment between the request and the answer,
//! so it bounds the clock's distance from the monotonic clock from both sides. A slow answer gives
//! wide bounds and changes little. The estimate is the lower bound: the least that the deciding
//! clock can show, so that no timer is early by it.
//!
//! The estimate follows that bound at once, in both directions. Time that was handed out never
//! steps back: while the estimate is behind it, it stands still. Nothing becomes due meanwhile that
//! the deciding clock has not reached.
//!
//! Everything is counted in microseconds and rounded down to a millisecond where it is handed out:
//! clocks that are read in whole milliseconds differ by one for nothing, and every timer would be
//! late by that.
//!
//! Not in here: reading clocks, logging.

use mtimer_types::Time;

/// How much a clock may gain or lose against the monotonic clock, µs per second: two crystals
/// without a time service differ by less. Bounds from earlier readings widen by it.
const DRIFT_US: u64 = 200;
/// The estimate is not moved forward for less, µs: about the variation of a fast answer's round
/// trip.
const DEAD_BAND_US: i64 = 50;
/// How long a clock of the store that is not heard still counts by its last reading, µs. One lost
/// answer must not change the median.
const COUNTS_US: u64 = 10_000_000;
/// A difference that is worth an alarm, ms. A correction beyond it is a step.
pub const ALARM_MS: u64 = 250;
/// How long the estimate may be carried on by the monotonic clock alone before that is worth an
/// alarm, ms.
pub const SILENCE_MS: u64 = 60_000;

/// A clock's reading at some moment between two monotonic times, all in µs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockSample {
    /// Its reading, since the Unix epoch.
    pub shown_us: u64,
    /// When the request left.
    pub sent_us: u64,
    /// When the answer arrived.
    pub received_us: u64,
}

/// One clock of the store, and its reading in this round, if it answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreReading {
    /// Which clock: the same name in every round.
    pub clock: String,
    /// Its reading; `None` if it did not answer in time.
    pub reading: Option<ClockSample>,
}

/// The clock that has moved the estimate, or would.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decider {
    /// The median of the store's clocks.
    Store,
    /// The host's clock: no clock of the store was ever heard.
    Host,
    /// The monotonic clock alone: fewer than half of the store's clocks are heard.
    Monotonic,
}

/// The result of a round of readings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Observation {
    /// The deciding clock.
    pub decider: Decider,
    /// By how much the estimate was moved against the monotonic clock, µs.
    pub moved_us: i64,
    /// By how much handed-out time is ahead of the estimate: so long it stands still, µs.
    pub ahead_us: u64,
    /// Clocks of the store that are more than [`ALARM_MS`] away from the estimate.
    pub outliers: usize,
    /// By how much the store's clocks differ from each other at least, µs.
    pub spread_us: u64,
    /// By how much the host's clock is ahead of the estimate, µs; negative if it is behind.
    pub host_us: i64,
    /// How old the latest reading is that has decided, µs.
    pub silent_us: u64,
}

/// Why a broker does not know the time well enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// The deciding clock has stepped back: time stands still for so long, ms.
    Ahead(u64),
    /// Clocks of the store differ by so much, ms.
    Disagreement(u64),
    /// Fewer than half of the store's clocks have been heard for so long, ms.
    Silence(u64),
}

impl Observation {
    /// Whether the estimate was moved by more than [`ALARM_MS`].
    pub const fn is_step(&self) -> bool {
        self.moved_us.unsigned_abs() > ALARM_MS * 1_000
    }

    /// Why the time is not known well enough, if it is not; the gravest reason.
    pub const fn doubt(&self) -> Option<Doubt> {
        let (ahead, spread, silent) = (self.ahead_us / 1_000, self.spread_us / 1_000, self.silent_us / 1_000);
        if ahead > ALARM_MS {
            Some(Doubt::Ahead(ahead))
        } else if silent > SILENCE_MS {
            Some(Doubt::Silence(silent))
        } else if spread > ALARM_MS {
            Some(Doubt::Disagreement(spread))
        } else {
            None
        }
    }
}

/// Time stands still: the deciding clock was set back, and has to catch up with the time that was
/// handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Standstill {
    /// For how long it has stood still, ms.
    pub for_ms: u64,
    /// How long it goes on, ms.
    pub left_ms: u64,
}

impl Standstill {
    /// How long it lasts from beginning to end, ms.
    pub const fn total_ms(&self) -> u64 {
        self.for_ms.saturating_add(self.left_ms)
    }
}

/// The estimator of the cluster clock.
#[derive(Clone, Debug)]
pub struct ClusterClock {
    /// Estimate minus monotonic clock, µs.
    offset: i64,
    /// The latest time handed out.
    latest: Time,
    /// The store's clocks that were listed in the last round and have been heard.
    sources: Vec<(String, Bounds)>,
    /// Whether a clock of the store was ever heard: then the host decides nothing any more.
    heard: bool,
    /// When the last reading arrived that has decided, monotonic µs.
    decided: u64,
    /// Since when it has been seen that time stands still for more than [`ALARM_MS`], monotonic µs.
    still_since: Option<u64>,
}

/// Bounds of a clock's distance from the monotonic clock, µs.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    low: i64,
    high: i64,
    /// When the last answer arrived, monotonic µs.
    heard: u64,
}

impl ClusterClock {
    /// Starts from a first round of readings. `store` lists every clock of the store, and is empty
    /// if it has none.
    pub fn new(mono_us: u64, host: ClockSample, store: &[StoreReading]) -> Self {
        let offset = Bounds::of(host).low;
        let mut new = Self {
            offset,
            latest: Time::ZERO,
            sources: Vec::new(),
            heard: false,
            decided: mono_us,
            still_since: None,
        };
        new.observe(mono_us, host, store);
        new
    }

    /// The cluster clock at monotonic time `mono_us`; never less than before.
    pub fn now(&mut self, mono_us: u64) -> Time {
        let time = Time::from_ms(self.estimate(mono_us) / 1_000);
        self.latest = self.latest.max(time);
        self.latest
    }

    /// Takes a round of readings at monotonic time `mono_us`: of the host's clock, and of every
    /// clock of the store. A clock that is listed no more is forgotten.
    pub fn observe(&mut self, mono_us: u64, host: ClockSample, store: &[StoreReading]) -> Observation {
        self.take(store);
        let deciding = self.deciding(mono_us, store.len());
        let (decider, target) = if !self.heard {
            (Decider::Host, Some(Bounds::of(host).low))
        } else if deciding.is_empty() {
            (Decider::Monotonic, None)
        } else {
            (Decider::Store, Some(lower_median(&deciding)))
        };
        let before = self.offset;
        if let Some(target) = target {
            self.decided = deciding.iter().map(|b| b.heard).max().unwrap_or(mono_us);
            // A lower bound is followed exactly: the estimate must not be ahead of it.
            if target < self.offset || target > self.offset.saturating_add(DEAD_BAND_US) {
                self.offset = target;
            }
        }
        let ahead_us = self.ahead_us(mono_us);
        self.still_since = (ahead_us > ALARM_MS * 1_000).then(|| self.still_since.unwrap_or(mono_us));
        let far = |b: &Bounds| b.distance(self.offset).unsigned_abs() > ALARM_MS * 1_000;
        Observation {
            decider,
            moved_us: self.offset.saturating_sub(before),
            ahead_us,
            outliers: deciding.iter().filter(|b| far(b)).count(),
            spread_us: spread(&deciding),
            host_us: Bounds::of(host).distance(self.offset),
            silent_us: mono_us.saturating_sub(self.decided),
        }
    }

    /// Whether time stands still for more than [`ALARM_MS`] because the deciding clock was set
    /// back.
    pub fn standstill(&self, mono_us: u64) -> Option<Standstill> {
        let since = self.still_since?;
        let left_ms = self.ahead_us(mono_us) / 1_000;
        (left_ms > 0).then(|| Standstill { for_ms: mono_us.saturating_sub(since) / 1_000, left_ms })
    }

    /// By how much handed-out time is ahead of the estimate, µs.
    fn ahead_us(&self, mono_us: u64) -> u64 {
        (self.latest.as_ms() * 1_000).saturating_sub(self.estimate(mono_us))
    }

    /// How many monotonic µs until the cluster clock reads `time`; 0 if it does already.
    pub fn mono_until(&self, mono_us: u64, time: Time) -> u64 {
        if time <= self.latest {
            return 0;
        }
        (time.as_ms() * 1_000).saturating_sub(self.estimate(mono_us))
    }

    /// Cluster time minus monotonic time, µs. When it has changed, instants that somebody waits
    /// for have to be converted to monotonic time again.
    pub const fn offset_us(&self) -> i64 {
        self.offset
    }

    /// Enters the readings, and forgets the clocks that are not listed.
    fn take(&mut self, store: &[StoreReading]) {
        self.sources.retain(|(name, _)| store.iter().any(|s| s.clock == *name));
        for StoreReading { clock, reading } in store {
            let Some(reading) = *reading else { continue };
            self.heard = true;
            match self.sources.iter_mut().find(|(name, _)| name == clock) {
                Some((_, bounds)) => bounds.narrow(reading),
                None => self.sources.push((clock.clone(), Bounds::of(reading))),
            }
        }
    }

    /// The bounds of the store's clocks that were heard lately; none if they are fewer than half of
    /// those `listed`.
    fn deciding(&self, mono_us: u64, listed: usize) -> Vec<Bounds> {
        let counts = |b: &Bounds| mono_us.saturating_sub(b.heard) <= COUNTS_US;
        let bounds: Vec<Bounds> = self.sources.iter().map(|(_, b)| *b).filter(counts).collect();
        if bounds.len() * 2 < listed { Vec::new() } else { bounds }
    }

    fn estimate(&self, mono_us: u64) -> u64 {
        signed(mono_us).saturating_add(self.offset).max(0).unsigned_abs()
    }
}

impl Bounds {
    fn of(reading: ClockSample) -> Self {
        // Times end at 2^48 ms, so that something can always be added.
        let shown = signed(reading.shown_us.min(Time::MAX.as_ms() * 1_000));
        let (sent, received) = (reading.sent_us.min(reading.received_us), reading.received_us);
        Self {
            low: shown.saturating_sub(signed(received)),
            high: shown.saturating_sub(signed(sent)),
            heard: received,
        }
    }

    /// Takes in another reading. The bounds from earlier ones count if the two agree; otherwise the
    /// clock has stepped.
    fn narrow(&mut self, reading: ClockSample) {
        let new = Self::of(reading);
        let elapsed = new.heard.saturating_sub(self.heard);
        let drift = signed(elapsed.saturating_mul(DRIFT_US) / 1_000_000);
        let (low, high) = (self.low.saturating_sub(drift), self.high.saturating_add(drift));
        *self = if new.high < low || new.low > high {
            new
        } else {
            Self { low: low.max(new.low), high: high.min(new.high), heard: new.heard }
        };
    }

    /// By how much these bounds are above (or, negative, below) an offset; 0 if it is within them.
    const fn distance(&self, offset: i64) -> i64 {
        if offset < self.low {
            self.low.saturating_sub(offset)
        } else if offset > self.high {
            self.high.saturating_sub(offset)
        } else {
            0
        }
    }
}

/// The lower of the two in the middle if their number is even: rather late than early.
fn lower_median(bounds: &[Bounds]) -> i64 {
    let mut lows: Vec<i64> = bounds.iter().map(|b| b.low).collect();
    lows.sort_unstable();
    lows.get(lows.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

/// The smallest spread of the clocks that their bounds allow, µs.
fn spread(bounds: &[Bounds]) -> u64 {
    let low = bounds.iter().map(|b| b.low).max().unwrap_or_default();
    let high = bounds.iter().map(|b| b.high).min().unwrap_or_default();
    low.saturating_sub(high).max(0).unsigned_abs()
}

/// Monotonic µs are far below the limit: 292,000 years.
fn signed(us: u64) -> i64 {
    i64::try_from(us).unwrap_or(i64::MAX / 2)
}

#[cfg(test)]
mod tests;
