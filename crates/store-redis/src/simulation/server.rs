//! A simulated server, and the connections to it.
//!
//! Everything that goes wrong comes from one seed. A frame of a lost connection may arrive later,
//! behind other writes: but not at a server that has lost writes, which is another process.
//!
//! The replacement of a master is in [`super::replaced`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mtimer_store::conformance::SeededRandom;
use parking_lot::{Mutex, MutexGuard};
use redis::{Arg, Cmd, Pipeline, Value};

use super::data::{Data, Fuel};
use super::{Broken, broken};
use crate::wire::{Confirmed, Lost, Network, OwnerQuery, RedisNode, Replicas, Script, Wanted};

/// One `WAIT` in so many finds that the replica has everything.
const FOLLOWS_ONE_IN: u64 = 3;
/// Snapshots that are kept: a server loses as many writes at most.
const PAST: usize = 24;
/// Calls for which a full, or read-only, server stays so, at most.
const LASTING: u64 = 6;
/// Error replies of a server that passes, to whole pipelines.
const PASSING: [&str; 6] = [
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "LOADING Redis is loading the dataset in memory",
    "CLUSTERDOWN The cluster is down",
    "MOVED 1 sim:2",
    "ASK 1 sim:3",
    "READONLY You can't write against a read only replica.",
];
const NO_SCRIPT: &str = "NOSCRIPT No matching script.";
/// As Redis 7.0 says it.
const CUT_OFF: &str =
    "ERR Script attempted to access a non local key in a cluster node script: 0, on @user_script:1.";
const FULL: &str = "OOM command not allowed when used memory > 'maxmemory'.";
const READ_ONLY: &str =
    "MISCONF Redis is configured to save RDB snapshots, but it's unable to persist to disk.";

/// Faults of a call, by the number that is drawn.
const FAULTS: [&str; 13] = [
    "call arrives late or never",
    "call lost",
    "answer lost, call arrives again",
    "pipeline cut",
    "script cut off and answer lost",
    "script cut off",
    "script cut off",
    "store full",
    "store read-only",
    "error to all commands",
    "scripts flushed",
    "writes lost at a failover",
    "master replaced, and it serves on",
];
/// Addresses of masters, in turn.
const MASTERS: [&str; 2] = ["sim:1", "sim:4"];

thread_local! {
    static COUNTS: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
}

fn count_fault(kind: &'static str) {
    COUNTS.with_borrow_mut(|counts| *counts.entry(kind).or_default() += 1);
}

/// How often each fault has happened in this thread.
pub(super) fn faults_by_kind() -> String {
    let of = |(kind, count): (&&str, &u64)| format!("{kind} {count}");
    COUNTS.with_borrow(|counts| counts.iter().map(of).collect::<Vec<_>>().join(", "))
}

/// Counts of the faults so far.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Happened {
    /// Connections lost, and scripts cut off.
    pub(super) doubts: u64,
    /// Writes refused for want of memory, or because the server takes none.
    pub(super) refusals: u64,
    pub(super) rollbacks: u64,
    pub(super) late: u64,
    pub(super) tears: u64,
}

/// The server.
pub(super) struct State {
    pub(super) data: Data,
    /// How many writes the replication stream has had.
    pub(super) offset: u64,
    /// As it was after each write since the acquisition, with its offset.
    pub(super) past: Vec<(u64, Data)>,
    /// A replica that follows, and lags. `None`: there is none.
    pub(super) follower: Option<Follower>,
    /// Data of the replica: everything, when it is asked. `None`: it never confirms.
    pub(super) replica: Option<Data>,
    /// Data that a replica got as it connected; it has nothing newer and is not named yet.
    pub(super) snapshot: Option<Data>,
    /// It has no replica.
    pub(super) is_alone: bool,
    /// A replica that Sentinels have promoted, and for how many calls more they do not say so.
    pub(super) promoted: Option<(Data, u64)>,
    /// The master that was replaced last.
    pub(super) former: Option<Data>,
    /// How many masters were replaced.
    pub(super) term: usize,
    /// Frames of lost connections that may yet arrive.
    pub(super) late: Vec<Pipeline>,
    /// See [`Self::delay_next_write`]: the data that the server falls back to, then the write.
    falls_back_to: Option<Data>,
    delayed: Option<Pipeline>,
    /// Lost connections have lower numbers.
    connection: u64,
    /// `SCRIPT FLUSH` makes it false. Who connects loads them.
    has_scripts: bool,
    random: SeededRandom,
    /// One call in so many goes wrong; 0: none.
    pub(super) one_in: u64,
    /// The next script is cut off after so many steps, and then every call gets lost: the owner is
    /// dying.
    pub(super) last_steps: Option<usize>,
    is_dead: bool,
    full: u64,
    read_only: u64,
    /// The clock, ms.
    pub(super) now: u64,
    /// The server stands still for so long before it carries out the next call.
    pub(super) stands_still: Duration,
    pub(super) happened: Happened,
}

/// A replica that follows. A failover loses nothing that it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Follower {
    /// Up to where it has the stream.
    has: u64,
    /// Since Redis 7.2: `WAIT` counts who has the last write of its own connection. Before: who has
    /// everything up to the last command of it.
    counts_own_writes: bool,
    /// The last write of the connection that waits.
    own: u64,
}

/// The way to the server.
#[derive(Clone)]
pub(super) struct Simulated(Arc<Mutex<State>>);

struct Connection {
    server: Simulated,
    address: &'static str,
    /// [`State::term`] of the master that it leads to.
    term: usize,
    number: u64,
}

impl Simulated {
    pub(super) fn new(seed: u64, now: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            data: Data::default(),
            offset: 0,
            past: Vec::new(),
            follower: None,
            replica: None,
            snapshot: None,
            is_alone: false,
            promoted: None,
            former: None,
            term: 0,
            late: Vec::new(),
            falls_back_to: None,
            delayed: None,
            connection: 0,
            has_scripts: true,
            random: SeededRandom::new(seed),
            one_in: 0,
            last_steps: None,
            is_dead: false,
            full: 0,
            read_only: 0,
            now,
            stands_still: Duration::ZERO,
            happened: Happened::default(),
        })))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    fn connect(&self, address: Option<&'static str>) -> Arc<dyn RedisNode> {
        let state = self.state();
        let (term, number) = (state.term, state.connection);
        let address = address.unwrap_or(state.master());
        Arc::new(Connection { server: self.clone(), address, term, number })
    }
}

impl RedisNode for Connection {
    fn address(&self) -> &str {
        self.address
    }

    fn call(&self, commands: Pipeline) -> BoxFuture<'static, Result<Vec<Value>, Lost>> {
        let mut state = self.server.state();
        let stands_still = std::mem::take(&mut state.stands_still);
        state.now += stands_still.as_millis() as u64;
        let answer = state.call_master(self.term, self.number, &commands);
        async move {
            tokio::task::yield_now().await;
            tokio::time::sleep(stands_still).await;
            answer
        }
        .boxed()
    }

    fn is_over(&self) -> bool {
        false
    }
}

impl Network for Simulated {
    fn master(&self, _: u16) -> BoxFuture<'_, Result<Arc<dyn RedisNode>, Lost>> {
        async { Ok(self.connect(None)) }.boxed()
    }

    fn at(&self, _: &str) -> BoxFuture<'_, Result<Arc<dyn RedisNode>, Lost>> {
        async { Ok(self.connect(Some("sim:3"))) }.boxed()
    }

    fn leads_to(&self, _: u16, address: &str) -> bool {
        self.state().master() == address
    }

    fn moved(&self, _: u16, _: &str) {}

    fn rediscover<'a>(&'a self, _: Option<&'a str>) -> BoxFuture<'a, Result<(), Lost>> {
        async { Ok(()) }.boxed()
    }

    fn replicas(&self, _: u16) -> Option<u32> {
        let state = self.state();
        let has_left = state.promoted.is_some() && broken(Broken::LeftReplicaForgotten);
        Some(u32::from(state.snapshot.is_none() && !state.is_alone && !has_left))
    }

    fn append_only(&self, _: u16) -> bool {
        false
    }

    fn may_evict(&self, _: u16) -> bool {
        false
    }
}

/// A replica. While it never confirms, the owner keeps its whole log.
impl Replicas for Simulated {
    fn confirm(&self, _: u16, _: Wanted, query: OwnerQuery) -> BoxFuture<'static, Result<Confirmed, Lost>> {
        let server = self.clone();
        async move { server.state().confirm(&query) }.boxed()
    }
}

impl State {
    /// Forgets the past: a partition was acquired just now.
    pub(super) fn acquired(&mut self) {
        self.past = vec![(self.offset, self.data.clone())];
        self.late.clear();
        self.promoted = None;
        (self.is_dead, self.full, self.read_only) = (false, 0, 0);
    }

    /// Nothing more goes wrong. One call in how many did so far.
    pub(super) fn calm(&mut self) -> u64 {
        self.promoted = None;
        std::mem::take(&mut self.one_in)
    }

    fn master(&self) -> &'static str {
        MASTERS[self.term % MASTERS.len()]
    }

    /// Whether the owner could not finish its last write.
    pub(super) const fn is_dead(&self) -> bool {
        self.is_dead
    }

    /// Falls back to an earlier state.
    pub(super) fn roll_back(&mut self, to: Data) {
        self.data = to;
        self.promoted = None;
        self.disconnect();
        // Frames on their way go to the server that has failed.
        self.late.clear();
        self.happened.rollbacks += 1;
    }

    /// Falls back to an earlier state before the next write, of which only a copy arrives: as soon
    /// as it can be applied, and before the answer to the call that made that possible.
    pub(super) fn delay_next_write(&mut self, to: Data) {
        self.falls_back_to = Some(to);
    }

    /// Whether the delayed write was applied just now.
    fn deliver_delayed(&mut self) -> bool {
        let Some(commands) = &self.delayed else { return false };
        let (before, commands) = (self.data.clone(), commands.clone());
        self.run(&commands, usize::MAX, None);
        let is_applied = self.data != before;
        self.delayed.take_if(|_| is_applied);
        is_applied
    }

    /// A server follows that lags from now on, on one of the servers that there are.
    pub(super) fn add_follower(&mut self, counts_own_writes: bool) {
        self.follower = Some(Follower { has: self.offset, counts_own_writes, own: 0 });
    }

    /// Whether the replica that follows has everything.
    pub(super) fn has_followed(&self) -> bool {
        self.follower.is_none_or(|follower| follower.has == self.offset)
    }

    fn confirm(&mut self, query: &OwnerQuery) -> Result<Confirmed, Lost> {
        let confirmed = |read, replicas| Ok(Confirmed { read, replicas, connected: 1, synced: None });
        if self.snapshot.is_some() {
            return confirmed(self.data.run(&words(&query.read)), 0);
        }
        if self.promoted.is_some() || self.is_alone {
            let read = self.data.run(&words(&query.read));
            return Ok(Confirmed { read, replicas: 0, connected: 0, synced: None });
        }
        if let Some(replica) = &mut self.replica {
            replica.clone_from(&self.data);
            return confirmed(self.data.run(&words(&query.read)), 1);
        }
        let Some(mut follower) = self.follower else {
            return Err(Lost("the replica does not confirm".into()));
        };
        let before = self.offset;
        let read = self.command(&words(&query.touch), None);
        if self.offset > before || !follower.counts_own_writes {
            follower.own = self.offset;
        }
        if self.random.one_in(FOLLOWS_ONE_IN) {
            follower.has = self.offset;
        }
        self.follower = Some(follower);
        confirmed(read, u32::from(follower.has >= follower.own))
    }

    /// The replica becomes the master, and has no replica that confirms.
    pub(super) fn promote_replica(&mut self) {
        let data = self.snapshot.take().or_else(|| self.replica.take());
        self.roll_back(data.expect("a replica"));
    }

    fn lose(&mut self) -> Result<Vec<Value>, Lost> {
        self.disconnect();
        Err(Lost("the connection was lost".into()))
    }

    fn disconnect(&mut self) {
        self.connection += 1;
        self.has_scripts = true;
        self.happened.doubts += 1;
    }

    pub(super) fn call(&mut self, connection: u64, commands: &Pipeline) -> Result<Vec<Value>, Lost> {
        if connection != self.connection || self.is_dead {
            return Err(Lost("the connection was lost before".into()));
        }
        self.data.expire(self.now);
        if let Some(steps) = self.last_steps
            && is_write(commands)
        {
            self.last_steps = None;
            count_fault("owner dies within a script");
            self.run(commands, usize::MAX, Some(steps));
            self.is_dead = true;
            return self.lose();
        }
        if is_write(commands)
            && let Some(data) = self.falls_back_to.take()
        {
            self.roll_back(data);
            self.delayed = Some(commands.clone());
            return self.lose();
        }
        self.deliver_late();
        (self.full, self.read_only) = (self.full.saturating_sub(1), self.read_only.saturating_sub(1));
        if !self.random.one_in(self.one_in) {
            let answer = self.run(commands, usize::MAX, None);
            return if self.deliver_delayed() { self.lose() } else { Ok(answer) };
        }
        let tear = self.random.below(12) as usize;
        let fault = self.random.below(FAULTS.len() as u64);
        count_fault(FAULTS[fault as usize]);
        match fault {
            0 => {
                self.late.push(commands.clone());
                self.lose()
            }
            1 => self.lose(),
            2 => {
                self.run(commands, usize::MAX, None);
                self.late.push(commands.clone());
                self.lose()
            }
            3 => {
                let some = self.random.below(commands.len() as u64 + 1) as usize;
                self.run(commands, some, None);
                self.lose()
            }
            4 => {
                self.run(commands, usize::MAX, Some(tear));
                self.lose()
            }
            5 | 6 => Ok(self.run(commands, usize::MAX, Some(tear))),
            7 => {
                self.full = 1 + self.random.below(LASTING);
                Ok(self.run(commands, usize::MAX, None))
            }
            8 => {
                self.read_only = 1 + self.random.below(LASTING);
                Ok(self.run(commands, usize::MAX, None))
            }
            9 => {
                let text = self.random.pick(&PASSING);
                Ok(commands.cmd_iter().map(|_| error(text)).collect())
            }
            10 => {
                self.has_scripts = false;
                Ok(self.run(commands, usize::MAX, None))
            }
            11 => self.fail_over(),
            _ => {
                let at = self.lose_since();
                self.promoted = Some((self.past[at].1.clone(), 1 + self.random.below(LASTING)));
                self.past.truncate(at + 1);
                Ok(self.run(commands, usize::MAX, None))
            }
        }
    }

    /// A moment since the acquisition, no earlier than the data of the replica that follows.
    fn lose_since(&mut self) -> usize {
        let has = self.follower.map_or(0, |follower| follower.has);
        let oldest = self.past.iter().position(|(offset, _)| *offset >= has).unwrap_or(self.past.len() - 1);
        oldest + self.random.below((self.past.len() - oldest) as u64) as usize
    }

    fn fail_over(&mut self) -> Result<Vec<Value>, Lost> {
        let at = self.lose_since();
        self.past.truncate(at + 1);
        self.roll_back(self.past[at].1.clone());
        self.follow_anew();
        self.lose()
    }

    /// Another replica follows the new master, and has everything. Other connections lead there.
    pub(super) fn follow_anew(&mut self) {
        self.offset = self.past.last().map_or(0, |(offset, _)| *offset);
        if let Some(follower) = &mut self.follower {
            (follower.has, follower.own) = (self.offset, 0);
        }
    }

    fn deliver_late(&mut self) {
        let late = std::mem::take(&mut self.late);
        for commands in late {
            if self.random.one_in(3) {
                self.happened.late += 1;
                self.run(&commands, usize::MAX, None);
            } else if !self.random.one_in(8) {
                self.late.push(commands);
            }
        }
    }

    /// Carries out the first `some` commands; scripts with so much fuel.
    pub(super) fn run(&mut self, commands: &Pipeline, some: usize, fuel: Fuel) -> Vec<Value> {
        let commands: Vec<_> = commands.cmd_iter().take(some).map(words).collect();
        commands.iter().map(|command| self.command(command, fuel)).collect()
    }

    fn command(&mut self, command: &[Vec<u8>], fuel: Fuel) -> Value {
        match &command[0][..] {
            b"ASKING" => return Value::Okay,
            b"SCRIPT" => {
                self.has_scripts = true;
                return Value::Okay;
            }
            _ => {}
        }
        let Some(script) = script(command) else { return self.data.run(command) };
        if !self.has_scripts {
            return error(NO_SCRIPT);
        }
        let count: usize = String::from_utf8_lossy(&command[2]).parse().unwrap();
        let (keys, argv) = command[3..].split_at(count);
        if script == Script::Acquire {
            self.offset += 1;
            return self.data.acquire(&keys[0], argv, self.now);
        }
        // A script that writes nothing is no exception.
        if self.read_only > 0 {
            self.happened.refusals += 1;
            return error(READ_ONLY);
        }
        if self.full > 0 && script == Script::Apply {
            self.happened.refusals += 1;
            return error(FULL);
        }
        if script == Script::Touch {
            let (answer, has_written) = self.data.touch(&keys[0], argv);
            if has_written {
                self.note_write();
            }
            return answer;
        }
        let before = self.data.clone();
        let answer = self.data.apply(keys, argv, fuel).unwrap_or_else(|_| {
            self.happened.doubts += 1;
            self.happened.tears += 1;
            error(CUT_OFF)
        });
        if self.data != before {
            self.note_write();
        }
        answer
    }

    fn note_write(&mut self) {
        // Of a master that was replaced nobody gets it.
        if self.promoted.is_some() {
            return;
        }
        self.offset += 1;
        self.past.push((self.offset, self.data.clone()));
        let surplus = self.past.len().saturating_sub(PAST);
        self.past.drain(..surplus);
    }
}

fn words(command: &Cmd) -> Vec<Vec<u8>> {
    let word = |arg| match arg {
        Arg::Simple(bytes) => <[u8]>::to_vec(bytes),
        _ => panic!("no command scans"),
    };
    command.args_iter().map(word).collect()
}

fn script(command: &[Vec<u8>]) -> Option<Script> {
    let is_script = command[0] == b"EVALSHA";
    let named = |script: &&Script| script.sha1().as_bytes() == command[1];
    is_script.then(|| *Script::ALL.iter().find(named).expect("a script of this store"))
}

fn is_write(commands: &Pipeline) -> bool {
    // An apply with commands, not a confirmation.
    commands.cmd_iter().map(words).any(|command| script(&command).is_some() && command.len() > 8)
}

fn error(text: &str) -> Value {
    redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap()
}
