//! Brokers, a leader that lends, and handlers, in time steps of a ms: whatever is lost, late,
//! killed or stopped, the limits hold; and if nothing is, they are used.

use std::collections::BTreeMap;

use super::*;
use crate::cluster::Lender;
use crate::rng::Rng;

const TIMEOUT_MS: u64 = 2_000;

/// What goes wrong.
#[derive(Clone, Copy, PartialEq)]
enum Faults {
    None,
    All,
}

/// What is broken on purpose.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Sabotage {
    /// Brokers use their shares beyond the end.
    SharesNeverEnd,
    /// A new leader lends at once what another may have lent.
    LeaderLendsAtOnce,
    /// What was given out before a broker stood still leaves afterwards.
    NothingIsWithdrawn,
    /// Handlers of lost sessions do not count.
    LostSessionsAreForgotten,
}

/// A broker, by its own `Limit`.
struct Broker {
    limit: Limit,
    incarnation: u64,
    /// It stands still until then.
    stopped_until: u64,
    /// It has so many timers to deliver.
    waiting: u64,
    /// Given out, and not sent: when the frame leaves.
    outbox: Vec<u64>,
    /// Its deliveries: when the handler answers, and when the callback timeout ends.
    running: Vec<(u64, u64)>,
}

enum Message {
    Ask(usize, u64, ShareRequest),
    Lent(usize, u64, Share),
}

/// The truth, which no broker knows.
struct Truth {
    concurrency: Option<u32>,
    rate: Option<DeliveryRate>,
    /// Ends of the handlers that run, or of their timeouts.
    running: Vec<u64>,
    level: u64,
    at: u64,
    starts: u64,
}

impl Truth {
    fn start(&mut self, now: u64, until: u64) -> Result<(), String> {
        self.starts += 1;
        self.running.retain(|end| *end > now);
        self.running.push(until);
        if self.concurrency.is_some_and(|n| self.running.len() > n as usize) {
            return Err(format!("at {now} ms {} run at the same time", self.running.len()));
        }
        let Some(rate) = self.rate else { return Ok(()) };
        let (token, most) = (u64::from(rate.per_ms), u64::from(rate.burst) * u64::from(rate.per_ms));
        self.level = (self.level + (now - self.at) * u64::from(rate.starts)).min(most);
        self.at = now;
        self.level = self.level.checked_sub(token).ok_or(format!("at {now} ms there is no token"))?;
        Ok(())
    }
}

struct Scene {
    rng: Rng,
    faults: Faults,
    sabotage: Option<Sabotage>,
    limits: DeliveryLimits,
    lender: Lender,
    /// Nobody leads until then.
    leaderless_until: u64,
    brokers: Vec<Broker>,
    wire: BTreeMap<(u64, u64), Message>,
    sent: u64,
    truth: Truth,
    dest: Destination,
}

impl Scene {
    fn new(seed: u64, brokers: usize, limits: DeliveryLimits, faults: Faults) -> Self {
        let broker = |n: usize| {
            let mut limit = Limit::default();
            limit.set(1, limits);
            limit.note_timeout(TIMEOUT_MS as u32);
            let (outbox, running) = (Vec::new(), Vec::new());
            Broker { limit, incarnation: n as u64, stopped_until: 0, waiting: 0, outbox, running }
        };
        let level = limits.rate.map_or(0, |rate| u64::from(rate.burst) * u64::from(rate.per_ms));
        Self {
            rng: Rng::new(seed),
            faults,
            sabotage: None,
            limits,
            lender: Lender::new(0),
            leaderless_until: 0,
            brokers: (0..brokers).map(broker).collect(),
            wire: BTreeMap::new(),
            sent: 0,
            truth: Truth {
                concurrency: limits.concurrency,
                rate: limits.rate,
                running: Vec::new(),
                level,
                at: 0,
                starts: 0,
            },
            dest: Destination::new("test", "a").unwrap(),
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng.next() % n
    }

    fn post(&mut self, now: u64, message: Message) {
        let slow = self.faults == Faults::All && self.below(20) == 0;
        let delay = if slow { self.below(1_500) } else { 1 + self.below(3) };
        self.sent += 1;
        if self.faults == Faults::None || self.below(50) > 0 {
            self.wire.insert((now + delay, self.sent), message);
        }
    }

    fn deliver_messages(&mut self, now: u64) {
        while let Some(first) = self.wire.first_entry().filter(|first| first.key().0 <= now) {
            match first.remove() {
                Message::Ask(..) if now < self.leaderless_until => {}
                Message::Ask(from, incarnation, ask) => {
                    if let Some(share) = self.lender.lend(now, incarnation, &ask) {
                        self.post(now, Message::Lent(from, incarnation, share));
                    }
                }
                Message::Lent(to, incarnation, share) => {
                    let broker = &mut self.brokers[to];
                    if broker.stopped_until > now {
                        self.sent += 1;
                        let at = (broker.stopped_until, self.sent);
                        self.wire.insert(at, Message::Lent(to, incarnation, share));
                    } else if broker.incarnation == incarnation {
                        broker.limit.answered(now, &share, broker.waiting);
                        if self.sabotage == Some(Sabotage::SharesNeverEnd) {
                            broker.limit.share.ends = u64::MAX;
                        }
                    }
                }
            }
        }
    }

    fn break_something(&mut self, now: u64) {
        if self.faults == Faults::None {
            return;
        }
        let at = self.below(self.brokers.len() as u64) as usize;
        match self.below(6_000) {
            // It is killed, and another begins in its place; its handlers go on.
            0..2 => {
                let mut limit = Limit::default();
                limit.set(1, self.limits);
                limit.note_timeout(TIMEOUT_MS as u32);
                let (outbox, running) = (Vec::new(), Vec::new());
                let incarnation = 1_000 + now;
                let waiting = 5;
                self.brokers[at] = Broker { limit, incarnation, stopped_until: 0, waiting, outbox, running };
            }
            2..5 => self.brokers[at].stopped_until = now + self.below(3_000),
            // Another leads, at once or later; all that it can know is what it is told.
            5..7 => {
                self.leaderless_until = now + self.below(2_000);
                let hasty = self.sabotage == Some(Sabotage::LeaderLendsAtOnce);
                let since = if hasty { 0 } else { self.leaderless_until };
                self.lender = Lender::new(since);
            }
            // Sessions are lost: the broker knows of no handler any more.
            7..10 => {
                let broker = &mut self.brokers[at];
                for (_, until) in broker.running.drain(..) {
                    broker.limit.finish();
                    if self.sabotage != Some(Sabotage::LostSessionsAreForgotten) {
                        broker.limit.linger(until);
                    }
                }
            }
            10..30 => self.brokers[at].waiting = self.below(400),
            // It stands still just when deliveries are about to leave.
            30..130 if !self.brokers[at].outbox.is_empty() => {
                self.brokers[at].stopped_until = now + self.below(3_000);
            }
            _ => {}
        }
    }

    fn step(&mut self, now: u64) -> Result<(), String> {
        self.deliver_messages(now);
        self.break_something(now);
        for at in 0..self.brokers.len() {
            if self.brokers[at].stopped_until > now {
                continue;
            }
            self.write(now, at)?;
            self.turn(now, at);
        }
        Ok(())
    }

    /// Frames leave for the socket, or are withdrawn.
    fn write(&mut self, now: u64, at: usize) -> Result<(), String> {
        let broker = &mut self.brokers[at];
        for by in std::mem::take(&mut broker.outbox) {
            if now > by && self.sabotage != Some(Sabotage::NothingIsWithdrawn) {
                broker.limit.take_back();
                broker.limit.unreserve();
                broker.waiting += 1;
                continue;
            }
            let lasts = [1, 10, 100, 1_000, TIMEOUT_MS + 500][(self.rng.next() % 5) as usize];
            let (answers, until) = (now + lasts, now + TIMEOUT_MS);
            broker.running.push((answers, until));
            self.truth.start(now, answers.min(until))?;
        }
        Ok(())
    }

    fn turn(&mut self, now: u64, at: usize) {
        let dest = self.dest.clone();
        let broker = &mut self.brokers[at];
        let before = broker.running.len();
        broker.running.retain(|(answers, until)| *answers.min(until) > now);
        (broker.running.len()..before).for_each(|_| broker.limit.finish());
        let mut given = 0;
        while broker.waiting > 0 && broker.limit.allowance(now) > 0 {
            broker.waiting -= 1;
            broker.limit.reserve();
            _ = broker.limit.start(now);
            given += 1;
        }
        if let Some(by) = broker.limit.leave_by() {
            broker.outbox.extend((0..given).map(|_| by));
        }
        broker.limit.sent();
        if self.faults == Faults::None {
            // More comes than may go.
            broker.waiting = 500;
        }
        let (waiting, incarnation) = (broker.waiting, broker.incarnation);
        if let Some(ask) = broker.limit.ask(now, &dest, waiting) {
            self.post(now, Message::Ask(at, incarnation, ask));
        }
    }
}

fn limits(concurrency: Option<u32>, rate: Option<(u32, u32, u32)>) -> DeliveryLimits {
    let rate = rate.map(|(starts, per_ms, burst)| DeliveryRate { starts, per_ms, burst });
    DeliveryLimits { concurrency, rate }
}

#[test]
fn whatever_fails_the_limits_hold() {
    let all = [
        limits(Some(50), None),
        limits(Some(1), None),
        limits(Some(2), None),
        limits(None, Some((1_000, 1_000, 100))),
        limits(None, Some((100, 1_000, 1))),
        limits(None, Some((5, 1_000, 2))),
        limits(None, Some((3, 60_000, 4))),
        limits(Some(7), Some((200, 1_000, 20))),
        limits(Some(1), Some((50, 1_000, 1))),
    ];
    let mut starts = 0;
    for seed in 0..45 {
        let limits = all[seed as usize % all.len()];
        let mut scene = Scene::new(seed, 1 + seed as usize % 4, limits, Faults::All);
        for now in 0..20_000 {
            if let Err(wrong) = scene.step(now) {
                panic!("seed {seed}, {limits:?}: {wrong}");
            }
        }
        starts += scene.truth.starts;
    }
    assert!(starts > 10_000, "{starts} deliveries show little");
}

#[test]
fn every_way_to_break_it_is_found() {
    for (sabotage, limits) in [
        (Sabotage::SharesNeverEnd, limits(Some(7), None)),
        (Sabotage::SharesNeverEnd, limits(None, Some((200, 1_000, 20)))),
        (Sabotage::LeaderLendsAtOnce, limits(Some(7), None)),
        (Sabotage::LeaderLendsAtOnce, limits(None, Some((200, 1_000, 20)))),
        (Sabotage::NothingIsWithdrawn, limits(None, Some((200, 1_000, 20)))),
        (Sabotage::LostSessionsAreForgotten, limits(Some(7), None)),
    ] {
        let found = (0..100).find(|seed| {
            let mut scene = Scene::new(*seed, 3, limits, Faults::All);
            scene.sabotage = Some(sabotage);
            (0..20_000).any(|now| scene.step(now).is_err())
        });
        println!("{sabotage:?}, {limits:?}: found at seed {found:?}");
        assert!(found.is_some(), "{sabotage:?} {limits:?}");
    }
}

#[test]
fn without_faults_a_rate_is_used_to_95_percent_and_slots_are_used() {
    for (brokers, starts, burst) in [(1, 1_000, 100), (3, 1_000, 100), (3, 10, 1), (3, 100, 10)] {
        let limits = limits(None, Some((starts, 1_000, burst)));
        let mut scene = Scene::new(7, brokers, limits, Faults::None);
        let mut begun = 0;
        for now in 0..33_000 {
            scene.step(now).unwrap();
            if now == 3_000 {
                begun = scene.truth.starts;
            }
        }
        let used = (scene.truth.starts - begun) as f64 / (30.0 * f64::from(starts));
        println!("{brokers} brokers, {starts}/s, burst {burst}: {:.1} % used", used * 100.0);
        assert!(
            used >= if burst == 1 { 0.85 } else { 0.95 } && used < 1.02,
            "{brokers} {starts} {burst}: {used}"
        );
    }
    for (brokers, slots) in [(3, 1), (3, 2), (3, 50), (1, 4)] {
        let mut scene = Scene::new(9, brokers, limits(Some(slots), None), Faults::None);
        let (mut sum, mut steps) = (0, 0u32);
        for now in 0..24_000 {
            scene.step(now).unwrap();
            if now > 4_000 {
                scene.truth.running.retain(|end| *end > now);
                (sum, steps) = (sum + scene.truth.running.len(), steps + 1);
            }
        }
        let used = sum as f64 / (f64::from(steps) * f64::from(slots));
        println!("{brokers} brokers, {slots} slots: {:.1} % used", used * 100.0);
        assert!(used > 0.85, "{brokers} {slots}: {used}");
    }
}
