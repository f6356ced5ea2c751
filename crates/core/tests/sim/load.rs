//! The clients' requests: timers of every kind, edits of them, listings; and the repeats of
//! unanswered ones.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::iter::repeat_n;
use std::sync::Arc;

use mtimer_core::{SessionEvent, SessionId};
use mtimer_protocol::ops::{Reschedule, Schedule};
use mtimer_protocol::sample::{self, Source};
use mtimer_protocol::{ErrorCode, OpReply, Query, Request, RequestOp};
use mtimer_types::{
    Bulk, BulkAction, BulkId, Destination, DestinationSettings, Filter, Headers, Key, KeyPolicy, Mode,
    PartitionId, Priority, RetryTiers, SettingsVersion, Target, Time, Timer, TimerId,
};

use super::import::Imports;
use super::owners::index;
use super::{Event, PARTITIONS, World, pause};

/// Requests are given up after this, ms, with an outcome that nobody knows.
const GIVE_UP_MS: u64 = 25_000;

/// A request that was not answered yet.
struct Ask {
    op: RequestOp,
    first_sent: Option<Time>,
    asked: u64,
    /// Where it is sent next; `None`: to the owner that the topology names.
    to: Option<usize>,
}

#[derive(Default)]
pub(super) struct Load {
    asks: BTreeMap<u64, Ask>,
    last_ask: u64,
    /// Every time that a request was sent: which request that was, and its operation.
    sent: HashMap<u64, (u64, RequestOp)>,
    last_corr: u64,
    scheduled: u64,
    ids: Vec<TimerId>,
    /// Edits of these are the delicate ones: they were delivered a moment ago, or are about to be.
    latest: VecDeque<TimerId>,
    pub(super) names: BTreeSet<(Destination, Key)>,
    /// Bulk jobs that were begun, or are to be.
    bulks: Vec<(PartitionId, BulkId, Bulk)>,
    pub(super) imports: Imports,
}

impl Load {
    pub(super) fn op_of(&self, corr: u64) -> Option<RequestOp> {
        self.sent.get(&corr).map(|(_, op)| op.clone())
    }

    pub(super) fn is_open(&self) -> bool {
        !self.asks.is_empty()
    }

    pub(super) fn delivered(&mut self, id: TimerId) {
        self.latest.push_back(id);
        if self.latest.len() > 6 {
            self.latest.pop_front();
        }
    }
}

pub(super) fn dest(n: u64) -> Destination {
    Destination::new("sim", &format!("app{n}")).expect("a valid name")
}

pub(super) fn partition_of(op: &RequestOp) -> PartitionId {
    op.subject().partition(PARTITIONS)
}

/// How often clients ask for an operation on a timer that they have scheduled, beside the others.
fn weight(name: &str) -> usize {
    match name {
        // See `schedule_one`.
        "Schedule" => 0,
        "Cancel" => 50,
        "Reschedule" => 30,
        "Replay" => 13,
        "Purge" => 7,
        // A new one is asked for, too.
        _ => 20,
    }
}

/// The parts of an operation on a timer.
struct Drawn<'a> {
    world: &'a mut World,
    target: Target,
    /// If no timer is dead or unconfirmed.
    id: TimerId,
    request: u64,
}

impl Source for Drawn<'_> {
    fn timer(&mut self) -> (Arc<Timer>, KeyPolicy) {
        self.world.new_timer()
    }

    fn target(&mut self) -> Target {
        self.target.clone()
    }

    fn retained(&mut self) -> TimerId {
        let kept = self.world.history.kept();
        if kept.is_empty() { self.id } else { self.world.rng.pick(&kept) }
    }

    fn time(&mut self) -> Time {
        let now = self.world.client_time();
        now + self.world.rng.log_between(1, self.world.plan.due_ms)
    }

    fn request(&mut self) -> u64 {
        self.request
    }

    fn bulk(&mut self) -> (PartitionId, BulkId, Bulk) {
        let world = &mut *self.world;
        if let Some(begun) = world.load.bulks.last().cloned().filter(|_| world.rng.chance(30)) {
            return begun;
        }
        let at = PartitionId(world.rng.below(u64::from(PARTITIONS)) as u16);
        let imports = world.load.imports.all();
        if !imports.is_empty() && world.rng.chance(35) {
            let import = world.rng.pick(&imports);
            let action = match world.rng.chance(80) {
                true => BulkAction::Release { import },
                false => BulkAction::Withdraw { import },
            };
            let begun = (at, BulkId(u128::from(self.request)), Bulk::new(action, Filter::default()));
            world.load.bulks.push(begun.clone());
            return begun;
        }
        let far = world.rng.log_between(1, world.plan.due_ms) as i64;
        let due = world.client_time() + world.rng.log_between(1, world.plan.due_ms);
        let action = world.rng.pick(&[
            BulkAction::Cancel,
            BulkAction::Cancel,
            BulkAction::Shift { ms: far },
            BulkAction::Shift { ms: -far },
            BulkAction::MoveTo { due },
            BulkAction::Replay,
            BulkAction::Purge,
        ]);
        let mut filter = Filter::from(dest(world.rng.pick(&[0, 1, 9, 7])));
        if world.rng.chance(30) {
            filter = Filter { key_prefix: Some("k".into()), ..Filter::default() };
        }
        let bulk = Bulk { dry_run: world.rng.chance(15), ..Bulk::new(action, filter) };
        let begun = (at, BulkId(u128::from(self.request)), bulk);
        world.load.bulks.push(begun.clone());
        begun
    }

    fn settings(&mut self) -> (PartitionId, Destination, DestinationSettings, SettingsVersion) {
        let world = &mut *self.world;
        let at = PartitionId(world.rng.below(u64::from(PARTITIONS)) as u16);
        let version = SettingsVersion::Given(world.history.pauses.next_version());
        let lasts_ms = world.rng.chance(75).then(|| world.rng.log_between(50, 8_000));
        let settings = pause::settings(world.client_time(), lasts_ms);
        (at, dest(world.rng.pick(&[0, 0, 1, 9, 9])), settings, version)
    }
}

/// Whether a client repeats the request.
fn is_temporary(code: ErrorCode) -> bool {
    use ErrorCode::{NotOwner, NotReplicated, Overloaded, Stopping, StoreFull, Unavailable, Unknown};
    matches!(code, NotOwner | NotReplicated | Overloaded | Stopping | StoreFull | Unavailable | Unknown)
}

impl World {
    /// The clients ask for one thing, and will ask for the next.
    pub(super) fn ask_something(&mut self) {
        let loading = self.ms < self.plan.load_ms;
        if !loading && self.ms >= self.faulty_until {
            return;
        }
        if self.load.scheduled < self.plan.timers && self.rng.chance(70) {
            self.schedule_one();
        } else if self.rng.chance(85) {
            self.edit_one();
        } else {
            self.query_one();
        }
        let after = match loading {
            true => self.rng.below(2 * self.plan.load_ms / self.plan.timers),
            false => self.rng.log_between(10, self.plan.far_ms / 4),
        };
        self.at(after, Event::Load);
    }

    fn schedule_one(&mut self) {
        self.load.scheduled += 1;
        let (timer, policy) = self.new_timer();
        self.ask(RequestOp::Schedule(Schedule { timer, policy }));
    }

    fn new_timer(&mut self) -> (Arc<Timer>, KeyPolicy) {
        let d = dest(self.rng.pick(&[0, 0, 1, 2, 9, 9, 9, 7]));
        let now = self.client_time();
        let due = match self.rng.below(10) {
            0 => now - self.rng.log_between(1, 100_000),
            1..=5 => now + self.rng.below(3_000),
            _ => now + self.rng.log_between(100, self.plan.due_ms),
        };
        let (often, names) = if self.plan.newer_policies > 0 { (55, 2) } else { (35, 6) };
        let key = self
            .rng
            .chance(often)
            .then(|| Key::new(&format!("k{}", self.rng.below(names))).expect("a valid key"));
        let policy =
            self.rng.pick(&[KeyPolicy::Create, KeyPolicy::Replace, KeyPolicy::Replace, KeyPolicy::Keep]);
        let policy = self.newer_policy().unwrap_or(policy);
        let mut timer = self.timer(d, due, now, key);
        timer.mode = if self.rng.chance(30) { Mode::AtMostOnce } else { Mode::AtLeastOnce };
        timer.deadline = self.rng.chance(25).then(|| due + self.rng.log_between(10, 30_000));
        timer.retry = self.rng.chance(30).then(|| {
            RetryTiers(
                self.rng
                    .pick(&[&[][..], &[50], &[50, 5_000], &[3_600_000], &[10, 90_000, 86_400_000]])
                    .to_vec(),
            )
        });
        timer.callback_timeout_ms = (self.plan.has_faults() && self.rng.chance(10)).then_some(500);
        timer.payload = vec![7; self.rng.below(300) as usize].into();
        if timer.id.random().is_multiple_of(4) {
            timer.headers = Headers::new([("tenant", "acme")]).expect("they are valid");
            timer.extensions = sample::extensions();
        }
        if self.plan.priorities {
            let priority = Priority::ALL[timer.id.random() as usize / 4 % Priority::COUNT];
            timer.extensions = timer.extensions.with_priority(priority).expect("there is space for it");
        }
        (timer.into(), policy)
    }

    /// A policy that came later, if clients know any.
    fn newer_policy(&mut self) -> Option<KeyPolicy> {
        if self.plan.newer_policies == 0 || self.rng.chance(30) {
            return None;
        }
        let quiet_ms = self.rng.pick(&[20, 500, 2_000]);
        let max_ms = quiet_ms + self.rng.pick(&[0, 100, 1_000]);
        let newer = [KeyPolicy::Latest, KeyPolicy::Earliest, KeyPolicy::Debounce { quiet_ms, max_ms }];
        Some(self.rng.pick(&newer[..newer.len().min(self.plan.newer_policies as usize)]))
    }

    /// A plain timer.
    pub(super) fn timer(&mut self, dest: Destination, due: Time, now: Time, key: Option<Key>) -> Timer {
        let partition = match &key {
            Some(key) => PartitionId::of_key(&dest, key, PARTITIONS),
            None => PartitionId(self.rng.below(u64::from(PARTITIONS)) as u16),
        };
        let id = TimerId::new(due, now, partition, self.rng.next_u64());
        self.load.ids.push(id);
        if let Some(key) = &key {
            self.load.names.insert((dest.clone(), key.clone()));
        }
        Timer { key, ..Timer::new(id, dest, due) }
    }

    fn edit_one(&mut self) {
        if self.load.ids.is_empty() {
            return;
        }
        let pick = self.rng.below(self.load.ids.len() as u64) as usize;
        let late = self.rng.chance(60);
        let first = self.history.upcoming.first().map(|(_, id)| *id);
        let hot = if self.rng.chance(50) { self.load.latest.back().copied() } else { first };
        let id = hot.filter(|_| late).unwrap_or(self.load.ids[pick]);
        let name = self.rng.below(self.load.names.len().max(1) as u64) as usize;
        let name = self.load.names.iter().nth(name).cloned().filter(|_| self.rng.chance(25));
        let target = name.map_or(Target::Id(id), |(dest, key)| Target::Key(dest, key));
        let request = self.rng.next_u64();
        let often = |(nth, name)| repeat_n(nth, weight(name));
        let names = RequestOp::NAMES.into_iter().take(self.plan.operations);
        let choices: Vec<usize> = names.enumerate().flat_map(often).collect();
        let nth = self.rng.pick(&choices);
        let mut op = RequestOp::arbitrary(nth, &mut Drawn { world: self, target, id, request });
        if let RequestOp::Import(op) = &mut op {
            op.staging.import = self.load.imports.next();
        }
        self.ask(op);
    }

    /// Some timers of a partition are moved nearer, by their keys.
    pub(super) fn bring_forward(&mut self, at: PartitionId) {
        let is_of = |(dest, key): &&(Destination, Key)| PartitionId::of_key(dest, key, PARTITIONS) == at;
        let names: Vec<_> = self.load.names.iter().filter(is_of).take(3).cloned().collect();
        for (dest, key) in names {
            let (target, request) = (Target::Key(dest, key), self.rng.next_u64());
            let due = self.client_time() + self.rng.log_between(1, 1_000);
            self.ask(RequestOp::Reschedule(Reschedule { target, due, request }));
        }
    }

    fn query_one(&mut self) {
        let id = self.load.latest.back().or(self.load.ids.last()).copied();
        let at = self.rng.below(u64::from(PARTITIONS)) as u16;
        let query = match (self.rng.below(self.plan.questions), id) {
            (0, Some(id)) if at % 2 == 1 => Query::Story(Target::Id(id)),
            (0, Some(id)) => Query::Get(Target::Id(id)),
            (1, _) if at % 2 == 1 => Query::Taken { cursor: Some((at, 0)), limit: 5 },
            (1, _) => Query::Dead { group: None, app: None, cursor: Some((at, 0)), limit: 5 },
            (2, _) => Query::Unconfirmed { cursor: Some((at, 0)), limit: 5 },
            (3, _) => Query::Broker,
            (5, _) => Query::Pending(sample::all_pending(at).into()),
            (6, _) if at % 2 == 1 => Query::Forecast(sample::all_forecast(at)),
            (6, _) => Query::Counts(sample::all_counts(at)),
            (7, _) if at % 2 == 1 => Query::Settings { partition: at },
            (7, _) => Query::Bulks { partition: at },
            _ => Query::Status,
        };
        if let Some(session) = self.any_session() {
            self.load.last_corr += 1;
            let corr = self.load.last_corr;
            self.send_up(session, SessionEvent::Query { corr, query });
        }
    }

    fn any_session(&mut self) -> Option<SessionId> {
        let all: Vec<SessionId> =
            self.clients.iter().flat_map(|c| c.links.iter().flatten()).copied().collect();
        (!all.is_empty()).then(|| self.rng.pick(&all))
    }

    pub(super) fn ask(&mut self, op: RequestOp) {
        self.history.edit_asked(self.ms, &op);
        self.history.asked(&op);
        self.load.last_ask += 1;
        let ask = self.load.last_ask;
        self.load.asks.insert(ask, Ask { op, first_sent: None, asked: self.ms, to: None });
        self.repeat(ask);
    }

    /// Sends a request, and will send it again unless it is answered.
    pub(super) fn repeat(&mut self, ask: u64) {
        let now = self.client_time();
        let Some(a) = self.load.asks.get_mut(&ask) else { return };
        if self.ms - a.asked > GIVE_UP_MS {
            self.load.asks.remove(&ask);
            return;
        }
        let first_sent = *a.first_sent.get_or_insert(now);
        // Impatient clients flood a broker that is slow to answer. In the end they do not: their
        // removals then have to be answered in time.
        let least = if self.ms < self.faulty_until { 0 } else { 2_000 };
        let repeat_after = 1 + self.plan.repeat_after_ms.max(least);
        let (mut op, to) = (a.op.clone(), a.to.take());
        let owner = self.topology.owner(partition_of(&op)).and_then(index);
        let somewhere = self.rng.chance(5);
        let b =
            to.or(owner).filter(|_| !somewhere).unwrap_or(self.rng.below(self.brokers.len() as u64) as usize);
        let links: Vec<SessionId> = self.clients.iter().filter_map(|c| c.links[b]).collect();
        self.at(repeat_after, Event::Repeat(ask));
        if links.is_empty() {
            return;
        }
        let session = self.rng.pick(&links);
        self.load.last_corr += 1;
        let corr = self.load.last_corr;
        self.load.sent.insert(corr, (ask, op.clone()));
        if let Some(sabotage) = self.plan.sabotage {
            sabotage.mishear(&mut op);
        }
        self.send_up(session, SessionEvent::Request(Request { corr, first_sent, ops: vec![op] }));
    }

    /// A client is answered.
    pub(super) fn replied(&mut self, corr: u64, reply: OpReply) {
        let Some((ask, _)) = self.load.sent.get(&corr) else { return };
        let ask = *ask;
        match reply {
            // Some do not ask again what is stored and not confirmed.
            OpReply::Failed { code: ErrorCode::NotReplicated, .. }
                if corr.is_multiple_of(4) && self.ms < self.faulty_until =>
            {
                self.load.asks.remove(&ask);
            }
            // The next time it is sent comes by itself.
            OpReply::Failed { code, .. } if is_temporary(code) => {}
            OpReply::Moved { owner } => {
                if let Some(a) = self.load.asks.get_mut(&ask) {
                    a.to = index(&owner);
                }
            }
            _ => _ = self.load.asks.remove(&ask),
        }
    }
}
