//! The clocks of the simulated hosts and stores, and the time that a broker derives from them.
//!
//! Reference time is the simulation's own: microseconds since [`START_US`]. No part of a broker
//! ever sees it.

use mtimer_core::clock::{ClockSample, StoreReading};
use mtimer_core::{ClusterClock, Now};
use mtimer_store::conformance::SeededRandom;
use mtimer_types::Time;

use super::{START, Sabotage};

/// The beginning of reference time, µs since the Unix epoch.
const START_US: i64 = START as i64 * 1_000;
/// A monotonic clock's time at the beginning, µs: a host that has been up for a week.
const UPTIME_US: i64 = 7 * 86_400 * 1_000_000;

/// By how much a clock is wrong.
#[derive(Clone, Copy, Debug, Default)]
struct Wall {
    offset_us: i64,
    drift_ppm: i64,
}

impl Wall {
    fn at(self, us: i64) -> i64 {
        START_US + us + self.offset_us + us / 1_000 * self.drift_ppm / 1_000
    }
}

/// How a host's clocks behave while it is suspended. Its wall clock and the store's go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Suspension {
    /// They go on: only the process stands still.
    Pause,
    /// `CLOCK_MONOTONIC` stands still, `CLOCK_BOOTTIME` goes on: a broker counts it.
    Seen,
    /// Both stand still, as in a virtual machine that its hypervisor pauses.
    Unseen,
}

/// A host's two clocks: the wall clock, and the monotonic one that counts suspensions.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    wall: Wall,
    /// Rate error of the monotonic clock.
    mono_ppm: i64,
    suspension: Suspension,
    /// The broker reads `CLOCK_MONOTONIC`.
    misses_suspensions: bool,
    /// For how long the monotonic clock has stood still so far, µs.
    stood_us: i64,
    /// Up to when it stands still, by reference time, µs.
    stands_until_us: i64,
}

impl Host {
    /// A host that is always right.
    pub(crate) fn exact() -> Self {
        Self {
            wall: Wall::default(),
            mono_ppm: 0,
            suspension: Suspension::Pause,
            misses_suspensions: false,
            stood_us: 0,
            stands_until_us: 0,
        }
    }

    /// `disciplined`: its wall clock is within 20 ms; otherwise anything goes.
    pub(crate) fn draw(rng: &mut SeededRandom, disciplined: bool, sabotage: Option<Sabotage>) -> Self {
        let most = if disciplined { 20_000 } else { rng.log_between(1_000, 40_000_000_000) as i64 };
        let offset_us = rng.between(0, 2 * most as u64) as i64 - most;
        let drift_ppm = if disciplined { 0 } else { rng.between(0, 400) as i64 - 200 };
        Self {
            wall: Wall { offset_us, drift_ppm },
            mono_ppm: rng.between(0, 400) as i64 - 200,
            suspension: match rng.below(100) {
                0..25 => Suspension::Unseen,
                25..50 => Suspension::Seen,
                _ => Suspension::Pause,
            },
            misses_suspensions: sabotage == Some(Sabotage::ClockMissesSuspensions),
            stood_us: 0,
            stands_until_us: 0,
        }
    }

    /// The monotonic clock at reference time `us`, µs.
    pub(crate) fn mono_us(&self, us: i64) -> u64 {
        let ran = us.max(self.stands_until_us) - self.stood_us;
        (UPTIME_US + ran + ran / 1_000 * self.mono_ppm / 1_000) as u64
    }

    /// The reference time at which the monotonic clock will show `mono_us`, to within a
    /// millisecond, not before it.
    fn reference_us(&self, mono_us: u64) -> i64 {
        let ran = mono_us as i64 - UPTIME_US;
        let ran = ran - ran / 1_000 * self.mono_ppm / 1_000;
        ran + self.stood_us
    }

    /// The wall clock at reference time `us`, µs since the Unix epoch.
    fn wall_us(&self, us: i64) -> i64 {
        self.wall.at(us).max(0)
    }

    /// A reading of it takes no time.
    fn read(&self, us: i64) -> ClockSample {
        let mono = self.mono_us(us);
        ClockSample { shown_us: self.wall_us(us) as u64, sent_us: mono, received_us: mono }
    }

    pub(crate) fn step(&mut self, by_us: i64) {
        self.wall.offset_us += by_us;
    }

    /// The host stands still for so long from now on. If it does already, the longer of the two
    /// counts, so that its monotonic clock never goes back. Returns whether it can tell.
    pub(crate) fn suspend(&mut self, us: i64, for_us: i64) -> bool {
        let unseen = self.suspension == Suspension::Unseen;
        if unseen || (self.suspension == Suspension::Seen && self.misses_suspensions) {
            let until_us = self.stands_until_us.max(us + for_us);
            self.stood_us += until_us - us.max(self.stands_until_us);
            self.stands_until_us = until_us;
        }
        !unseen
    }
}

/// The clocks of the store's masters.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreClocks {
    all: Vec<StoreClock>,
    /// One of them is silent or wrong.
    pub(crate) disturbed: bool,
}

#[derive(Clone, Debug)]
struct StoreClock {
    wall: Wall,
    /// It does not answer.
    hangs: bool,
}

impl StoreClocks {
    /// Within 20 ms of the reference, all but a minority.
    pub(crate) fn draw(rng: &mut SeededRandom, count: usize) -> Self {
        let one = |rng: &mut SeededRandom| {
            let offset_us = rng.between(0, 40_000) as i64 - 20_000;
            StoreClock { wall: Wall { offset_us, drift_ppm: 0 }, hangs: false }
        };
        Self { all: (0..count).map(|_| one(rng)).collect(), disturbed: false }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// A round of readings: sent at `sent_us` and received now, as the host's monotonic clock
    /// shows.
    fn read(&self, us: i64, back_us: i64, sent_us: u64, received_us: u64) -> Vec<StoreReading> {
        let read = |(n, c): (usize, &StoreClock)| StoreReading {
            clock: format!("store {n}"),
            reading: (!c.hangs).then(|| ClockSample {
                shown_us: c.wall.at(us - back_us).max(0) as u64,
                sent_us,
                received_us,
            }),
        };
        self.all.iter().enumerate().map(read).collect()
    }

    /// The median of all clocks, whether they answer or not.
    fn median(&self, us: i64) -> Option<i64> {
        let mut all: Vec<i64> = self.all.iter().map(|c| c.wall.at(us)).collect();
        all.sort_unstable();
        all.get(all.len().saturating_sub(1) / 2).copied()
    }

    /// Whether fewer than half of them tell the time.
    pub(crate) fn are_silent(&self) -> bool {
        2 * self.all.iter().filter(|c| c.hangs).count() > self.all.len()
    }

    pub(crate) fn hang(&mut self, n: usize, hangs: bool) {
        if let Some(clock) = self.all.get_mut(n) {
            clock.hangs = hangs;
        }
    }

    /// Steps one clock; all others stay.
    pub(crate) fn step(&mut self, n: usize, by_us: i64) {
        if let Some(clock) = self.all.get_mut(n) {
            clock.wall.offset_us += by_us;
        }
    }
}

/// The cluster clock of one broker process.
pub(crate) struct BrokerClock {
    cluster: ClusterClock,
    naive: Option<Naive>,
    last: Option<Now>,
}

/// The sabotaged replacement of the cluster clock: it follows its first reading.
#[derive(Clone, Copy)]
struct Naive {
    /// Estimate minus monotonic clock, µs.
    offset: i64,
    at_us: i64,
    sabotage: Sabotage,
}

impl BrokerClock {
    /// Starts from a round of readings, as a broker does.
    pub(crate) fn start(us: i64, host: &Host, stores: &StoreClocks, sabotage: Option<Sabotage>) -> Self {
        let mono = host.mono_us(us);
        let first = deciding_us(us, host, stores);
        let naive = sabotage.filter(|s| s.is_of_the_clock()).map(|sabotage| Naive {
            offset: first - mono as i64,
            at_us: us,
            sabotage,
        });
        let cluster = ClusterClock::new(mono, host.read(us), &stores.read(us, 0, mono, mono));
        Self { cluster, naive, last: None }
    }

    /// Takes a round of readings. The requests took `there_us`, the answers `back_us`.
    pub(crate) fn observe(
        &mut self,
        us: i64,
        (there_us, back_us): (i64, i64),
        host: &Host,
        stores: &StoreClocks,
    ) {
        let mono = host.mono_us(us);
        if let Some(naive) = &mut self.naive {
            naive.observe(us, deciding_us(us, host, stores) - mono as i64);
        }
        let sent = mono - (there_us + back_us) as u64;
        self.cluster.observe(mono, host.read(us), &stores.read(us, back_us, sent, mono));
    }

    /// The present by both clocks.
    pub(crate) fn now(&mut self, us: i64, host: &Host) -> Now {
        let mono = host.mono_us(us);
        let time = match &self.naive {
            Some(naive) => Time::from_ms(((mono as i64 + naive.now()) / 1_000).max(0) as u64),
            None => self.cluster.now(mono),
        };
        Now { time, mono_ms: mono / 1_000 }
    }

    /// When, in reference ms, this broker's clock will show `time`.
    pub(crate) fn reaches(&self, us: i64, host: &Host, time: Time) -> u64 {
        let mono = host.mono_us(us);
        let at = match &self.naive {
            Some(naive) => (time.as_ms() as i64 * 1_000 - naive.now()).max(0) as u64,
            None => mono.saturating_add(self.cluster.mono_until(mono, time)),
        };
        ceil_ms(host.reference_us(at))
    }

    /// When, in reference ms, this host's monotonic clock will show `mono_ms`.
    pub(crate) fn reaches_mono(&self, host: &Host, mono_ms: u64) -> u64 {
        ceil_ms(host.reference_us(mono_ms * 1_000))
    }

    /// Remembers the present, and says by how much the broker's time has gone on since it was last
    /// remembered, ms.
    pub(crate) fn advance(&mut self, now: Now) -> Option<i64> {
        let before = self.last.replace(now)?;
        Some(now.time.as_ms() as i64 - before.time.as_ms() as i64)
    }
}

impl Naive {
    fn observe(&mut self, us: i64, truth: i64) {
        let difference = truth - self.offset;
        let passed = us - self.at_us;
        self.offset += match self.sabotage {
            Sabotage::ClockFollowsSlowly => difference.clamp(-passed / 20, passed / 20),
            Sabotage::ClockIgnoresStores => 0,
            _ => difference,
        };
        self.at_us = us;
    }

    fn now(&self) -> i64 {
        let ahead = if self.sabotage == Sabotage::ClockRunsAhead { 400_000 } else { 0 };
        self.offset + ahead
    }
}

/// The clock that decides for a broker: the stores' median, or the host's where there is none. µs
/// since the Unix epoch.
pub(crate) fn deciding_us(us: i64, host: &Host, stores: &StoreClocks) -> i64 {
    stores.median(us).unwrap_or_else(|| host.wall_us(us))
}

fn ceil_ms(us: i64) -> u64 {
    us.max(0).div_euclid(1_000) as u64 + u64::from(us.rem_euclid(1_000) > 0)
}
