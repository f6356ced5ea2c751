//! What one connection sees, in the order in which it comes: after `Cancelled`, and after a
//! schedule that has replaced a timer, the timer is not delivered.
//!
//! Timers come due in crowds, and are replaced and cancelled within milliseconds of that, so that
//! the answers cross the claims, the takes and the deliveries. A single connection has no
//! tolerance.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mtimer_client::{Destination, Key, KeyPolicy, Mode, PartitionId, Target, Time, Timer, TimerId};
use mtimer_protocol::ops::{Cancel, CancelReply, Schedule, ScheduleReply};
use mtimer_protocol::{
    ClientMessage, Delivery, OpReply, Query, QueryAnswer, Request, RequestOp, ServerMessage, Settlement,
};
use mtimer_tests::{Launch, Server, ServerOptions, Wire, host_ms, long, seed, wait_for};
use mtimer_types::HandlerOutcome;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;

/// Timers that come due together, each under a key of its own.
const CROWD: u64 = 20;
/// From one crowd to the next, ms.
const EVERY_MS: u64 = 25;
/// How long the end may take: a loaded machine is slow.
const TIMEOUT: Duration = Duration::from_secs(60);
const REGISTRATION: u32 = 1;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sent_after_its_end_was_answered_on_the_embedded_store() {
    let folder = TempDir::with_prefix("mtimer-order-").unwrap();
    run("order, embedded", Launch::embedded(folder.path()).flags(["--durability", "embedded-fast"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sent_after_its_end_was_answered_on_redis() {
    let redis = Server::start_with(ServerOptions::default());
    run("order, redis", Launch::redis(&redis.url())).await;
}

async fn run(name: &str, launch: Launch) {
    let rounds = if long() { 2_000 } else { 300 };
    let mut rng = StdRng::seed_from_u64(seed(name));
    let broker = launch.flags(["--partitions", "1"]).start();
    let mut session = Session::open(&broker.address()).await;
    for round in 0..rounds {
        session.round(&mut rng, round).await;
    }
    // Every timer has ended when nothing is left, and what was sent of it comes before the answer.
    wait_for("the end of all timers", TIMEOUT, async || session.is_empty().await).await;
    println!("{name}: {rounds} rounds: {:?}", session.seen);
    assert!(
        session.wrong.is_empty(),
        "{} were sent after their end: {:?}",
        session.wrong.len(),
        session.wrong
    );
    assert!(session.seen.values().all(|n| *n > 0), "not everything has happened: {:?}", session.seen);
}

/// A connection that schedules and takes callbacks.
struct Session {
    wire: Wire,
    dest: Destination,
    corr: u64,
    /// By key: the timer that has it, as far as is known.
    live: BTreeMap<u64, TimerId>,
    /// How the end of a timer was answered.
    ended: HashMap<TimerId, &'static str>,
    seen: BTreeMap<&'static str, u64>,
    wrong: Vec<String>,
}

impl Session {
    async fn open(address: &str) -> Self {
        let mut wire = Wire::open(address).await;
        let dest = Destination::new("order", "crowd").unwrap();
        let credit = 1_000;
        let register = ClientMessage::Register { registration: REGISTRATION, dest: dest.clone(), credit };
        wire.send(&register).await;
        let kinds = ["delivered", "replaced", "cancelled", "too late"];
        Self {
            wire,
            dest,
            corr: 0,
            live: BTreeMap::new(),
            ended: HashMap::new(),
            seen: kinds.map(|kind| (kind, 0)).into(),
            wrong: Vec::new(),
        }
    }

    /// Waits until the crowd is due, give or take, and replaces or cancels each of it.
    async fn round(&mut self, rng: &mut StdRng, round: u64) {
        let due = self.live.values().next().map_or(0, |id| id.birth_due().as_ms());
        let at = (due + rng.random_range(0..6)).saturating_sub(3);
        tokio::time::sleep(Duration::from_millis(at.saturating_sub(host_ms()))).await;
        let next = host_ms() + EVERY_MS;
        let mut ops = Vec::new();
        for key in 0..CROWD {
            let live = self.live.get(&key).copied();
            ops.push(match live.filter(|_| rng.random_range(0..3) == 0) {
                Some(id) => RequestOp::Cancel(Cancel { target: Target::Id(id), request: rng.random() }),
                None => self.schedule(rng, key, next, round),
            });
        }
        self.request(ops).await;
    }

    fn schedule(&self, rng: &mut StdRng, key: u64, due: u64, round: u64) -> RequestOp {
        let due = Time::from_ms(due);
        let partition = PartitionId(0);
        let timer = Timer {
            key: Some(Key::new(&format!("k{key}")).unwrap()),
            mode: if rng.random() { Mode::AtMostOnce } else { Mode::AtLeastOnce },
            payload: Bytes::from(format!("{round}")),
            ..Timer::new(
                TimerId::new(due, Time::from_ms(host_ms()), partition, rng.random()),
                self.dest.clone(),
                due,
            )
        };
        RequestOp::Schedule(Schedule { timer: Arc::new(timer), policy: KeyPolicy::Replace })
    }

    /// Sends a request and reads up to its reply.
    async fn request(&mut self, ops: Vec<RequestOp>) {
        self.corr += 1;
        let request = Request { corr: self.corr, first_sent: Time::from_ms(host_ms()), ops: ops.clone() };
        self.wire.send(&ClientMessage::Request(request)).await;
        let replies = loop {
            match self.wire.next_word().await.expect("an open connection") {
                ServerMessage::Reply { corr, replies } if corr == self.corr => break replies,
                other => self.take(other).await,
            }
        };
        for (op, reply) in ops.into_iter().zip(replies) {
            self.answered(op, reply);
        }
    }

    fn answered(&mut self, op: RequestOp, reply: OpReply) {
        match (op, reply) {
            (
                RequestOp::Schedule(Schedule { timer, .. }),
                OpReply::Schedule(ScheduleReply::Scheduled { replaced, .. }),
            ) => {
                if let Some(old) = replaced {
                    self.end(old, "replaced");
                }
                let key = timer.key.as_ref().unwrap().as_str()[1..].parse().unwrap();
                self.live.insert(key, timer.id);
            }
            (RequestOp::Cancel(_), OpReply::Cancel(CancelReply::Cancelled(id))) => self.end(id, "cancelled"),
            (RequestOp::Cancel(_), OpReply::Cancel(CancelReply::TooLate(_))) => self.count("too late"),
            (RequestOp::Cancel(_), OpReply::Cancel(CancelReply::NotFound)) => {}
            (op, reply) => panic!("{op:?} is answered {reply:?}"),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn end(&mut self, id: TimerId, how: &'static str) {
        self.count(how);
        self.ended.insert(id, how);
    }

    /// Takes in what comes between a request and its reply.
    async fn take(&mut self, message: ServerMessage) {
        let ServerMessage::Deliver { deliveries, .. } = message else { return };
        let mut settlements = Vec::new();
        for Delivery { id, epoch, attempt, mode, .. } in deliveries {
            self.count("delivered");
            if let Some(how) = self.ended.get(&id) {
                self.wrong.push(format!("{id}, {mode:?}, attempt {attempt}, was {how}"));
            }
            settlements.push(Settlement { id, epoch, attempt, outcome: HandlerOutcome::Ok });
        }
        self.wire.send(&ClientMessage::Settle(settlements)).await;
    }

    /// Whether the broker has no timer any more; takes in what comes meanwhile.
    async fn is_empty(&mut self) -> bool {
        self.corr += 1;
        let corr = self.corr;
        self.wire.send(&ClientMessage::Query { corr, query: Query::Status }).await;
        loop {
            match self.wire.next_word().await.expect("an open connection") {
                ServerMessage::Answer { corr: to, answer: QueryAnswer::Status(s) } if to == corr => {
                    return s.pending + s.retrying + s.parked + s.in_flight + s.loaded + s.taken == 0;
                }
                other => self.take(other).await,
            }
        }
    }
}
