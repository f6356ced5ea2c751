//! The lane: one owner's ordered stream of scripts for one partition.
//!
//! Purpose: sends scripts in order with their numbers, several under way at a time; takes their answers in order; when
//! anything goes wrong, waits until nothing is under way any more and starts again at the first one that was not applied.
//!
//! Invariants: a script is applied only as the one behind its predecessor (`seq`), so behind one that was refused all
//! fail and none is out of order. The window is in the order of `seq`, and what was sent is in front of what was not: so
//! what was applied and is not answered yet is at its front, and no more than the owner record keeps answers of. A claim
//! that too few replicas have is therefore made again behind everything that was sent, and nothing is sent behind it until they have it.
//! Loads and listings run alone: nothing is under way before them, nothing is sent behind them until they are done. A
//! script is laid out when it is sent, so what it declares is up to date.
//!
//! Not in here: the caller's side ([`crate::handle`]), lost answers ([`crate::recovery`]), loads and listings.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use mtimer_store::{Answer, Batch, Health, LaneError, Op, Refusal};
use mtimer_types::{PartitionId, Time, TimerId};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::answer::{self, Nonsense, Said};
use crate::backoff::Backoff;
use crate::conn::{Answered, Conn, Lost, Pool};
use crate::cut::{Cut, Weight, cut};
use crate::dests::Destinations;
use crate::hints::Hints;
use crate::keys::SlotKey;
use crate::ledger::MOST_PRINTS;
use crate::mirror::Mirror;
use crate::plan::{Facts, Placed, Plan, Planner, TRIM_STEP};
use crate::resp::{Args, Reply};
use crate::script::Script;
use crate::topology::Topology;
use crate::unreadable::Unreadable;
use crate::window::{Alone, Item, Run, Sent, Work};

/// Scripts under way at a time; the owner record keeps as many answers.
pub(crate) const WINDOW: usize = 32;

/// Slots whose ids one script tells: it takes a fraction of a millisecond.
const LEARN_STEP: usize = 32;

/// Why a lane is down whose writes work.
const UNCONFIRMED: &str = "too few replicas have confirmed";

/// What all lanes of a store share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pool: Pool,
    pub(crate) topology: Topology,
}

/// A call to apply a batch that waits for its answers.
#[derive(Debug)]
struct Applying {
    no: u64,
    /// Items in the window that are part of it.
    items: usize,
    /// By the operations' places in the batch.
    answers: Vec<Option<Answer>>,
    to: oneshot::Sender<Result<Vec<Answer>, LaneError>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) partition: PartitionId,
    pub(crate) facts: Facts,
    pub(crate) hash_slot: u16,
    pub(crate) mirror: Mirror,
    pub(crate) hints: Hints,
    pub(crate) dests: Destinations,
    /// Whether a timer with an application key was seen.
    pub(crate) keyed: bool,
    pub(crate) unreadable: Unreadable,
    pub(crate) window: VecDeque<Item>,
    calls: VecDeque<Applying>,
    /// The number of the next item, or call.
    next_no: u64,
    /// The number of the last script that was sent.
    pub(crate) seq: u64,
    /// The highest number whose answer is known.
    pub(crate) acked: u64,
    pub(crate) conn: Option<Conn>,
    pub(crate) run_id: Arc<str>,
    /// During a migration: the node to send to, with ASKING.
    pub(crate) asking: Option<Conn>,
    pub(crate) alone: Option<Vec<Reply>>,
    pub(crate) health: watch::Sender<Health>,
    pub(crate) backoff: Backoff,
    /// Cancelled when the handle was dropped: no call follows.
    pub(crate) left: CancellationToken,
}

/// Why the script at the front was not applied.
enum Trouble {
    Lost(Lost),
    Said(Said),
}

impl Engine {
    #[expect(clippy::too_many_arguments, reason = "called once, by the acquisition")]
    pub(crate) fn new(
        shared: Arc<Shared>,
        partition: PartitionId,
        facts: Facts,
        hash_slot: u16,
        seq: u64,
        conn: Conn,
        health: watch::Sender<Health>,
        jitter: u64,
    ) -> Self {
        let run_id = conn.run_id.clone();
        Self {
            shared,
            partition,
            facts,
            hash_slot,
            mirror: Mirror::default(),
            hints: Hints::default(),
            dests: Destinations::default(),
            keyed: false,
            unreadable: Unreadable::default(),
            window: VecDeque::new(),
            calls: VecDeque::new(),
            next_no: 1,
            seq,
            acked: seq,
            conn: Some(conn),
            run_id,
            asking: None,
            alone: None,
            health,
            backoff: Backoff::new(jitter),
            left: CancellationToken::new(),
        }
    }

    /// Whether another call to apply may be admitted.
    pub(crate) fn has_room(&self) -> bool {
        self.window.len() < WINDOW
    }

    /// Takes a batch into the window.
    pub(crate) fn admit(&mut self, batch: Batch, to: oneshot::Sender<Result<Vec<Answer>, LaneError>>) {
        let Batch { now, mut claim, ops } = batch;
        let call = self.next_no;
        self.next_no += 1;
        let mut items = 0;
        let mut answers = vec![None; ops.len()];
        let evicting = self.is_evicting();
        self.learn(ops.iter().filter_map(Op::id), self.window.len());
        for Cut { ops, places } in cut(ops, |op| Weight::of_op(op, &self.mirror, &self.hints)) {
            // The operations of a cut are of one kind. Without any that is left the store is asked all the same, below.
            if evicting && ops.iter().all(Op::adds) {
                for place in places {
                    answers[place as usize] = Some(Answer::Refused(Refusal::MayEvict));
                }
                continue;
            }
            self.push(Some(call), Work::Ops(Run { ops, places, now, claim: claim.take(), trimmed: 0 }));
            items += 1;
        }
        if claim.is_some() || items == 0 {
            // An empty batch, too, is answered by the store: it tells whether we are still the owner.
            self.push(Some(call), Work::Claim { until: claim.unwrap_or(Time::ZERO), held: false });
            items += 1;
        }
        self.calls.push_back(Applying { no: call, items, answers, to });
    }

    /// Whether the partition's node may evict keys.
    fn is_evicting(&self) -> bool {
        let evicting = &self.shared.pool.evicting;
        match &self.conn {
            Some(conn) => evicting.has(&conn.address),
            None => self.shared.topology.master(self.hash_slot).is_some_and(|at| evicting.has(&at)),
        }
    }

    fn push(&mut self, call: Option<u64>, work: Work) {
        let no = self.next_no;
        self.next_no += 1;
        self.window.push_back(Item::new(no, call, work));
    }

    /// Asks for what has to be known before timers are looked for, in the window before what stands `at`: nothing of that was sent.
    pub(crate) fn learn(&mut self, ids: impl Iterator<Item = TimerId>, at: usize) {
        let strange: Vec<SlotKey> = ids.flat_map(|id| self.mirror.strange(id)).collect();
        let no = self.window.get(at).map_or(self.next_no, |next| next.no);
        for (place, slots) in (at..).zip(strange.chunks(LEARN_STEP)) {
            self.window.insert(place, Item::new(no, None, Work::Learn(slots.to_vec())));
        }
    }

    /// Runs a script alone and returns what follows its OK.
    pub(crate) async fn run_alone(&mut self, alone: Alone) -> Result<Vec<Reply>, LaneError> {
        self.alone_with(Work::Alone(alone)).await
    }

    /// Does some work alone and returns what follows its OK.
    pub(crate) async fn alone_with(&mut self, work: Work) -> Result<Vec<Reply>, LaneError> {
        self.push(None, work);
        self.drain().await?;
        self.alone.take().ok_or_else(|| LaneError::Broken("a script went unanswered".into()))
    }

    /// Works until nothing is under way.
    pub(crate) async fn drain(&mut self) -> Result<(), LaneError> {
        while !self.window.is_empty() {
            self.send().await?;
            let answered = self.front().await;
            self.handle(answered).await?;
        }
        Ok(())
    }

    /// Sends what may be sent.
    pub(crate) async fn send(&mut self) -> Result<(), LaneError> {
        self.resolve().await;
        for at in 0..self.window.len().min(WINDOW) {
            if self.window[at].sent.is_some() {
                continue;
            }
            if at > 0 && self.window[at - 1].work.blocks(&self.window[at].work) {
                break;
            }
            let conn = match (&self.asking, &self.conn) {
                (Some(conn), _) | (None, Some(conn)) => conn.clone(),
                (None, None) => return self.recover("not connected").await,
            };
            let plan = self.plan(at);
            let seq = self.seq + u64::from(plan.script.writes());
            let command = self.command(&plan, seq);
            let waiting = conn.send(command, self.asking.is_some(), plan.script.writes()).await;
            self.seq = seq;
            let Plan { script, slots, dests, .. } = plan;
            self.window[at].sent = Some(Sent { seq, script, slots, dests, waiting });
        }
        Ok(())
    }

    fn plan(&mut self, at: usize) -> Plan {
        let item = &mut self.window[at];
        let (mirror, placed) = (&mut self.mirror, &mut item.placed);
        let (hints, keyed) = (&mut self.hints, &mut self.keyed);
        hints.endings.turn(Instant::now());
        let planner = Planner::new(&self.facts, mirror, hints, &mut self.dests, keyed, item.no, placed);
        match &mut item.work {
            Work::Ops(run) => {
                if let [Op::Trim { of, before, keep, limit }] = run.ops[..] {
                    // It finds the oldest by itself. Behind a larger one nothing is laid out until it is known whether it found any.
                    if limit <= TRIM_STEP {
                        planner.hints.endings.lose(Instant::now());
                    }
                    let limit = limit.saturating_sub(run.trimmed).min(TRIM_STEP);
                    return planner.ops(
                        &[Op::Trim { of, before, keep, limit }],
                        &item.needs,
                        run.now,
                        run.claim,
                    );
                }
                planner.ops(&run.ops, &item.needs, run.now, run.claim)
            }
            Work::Claim { until, .. } => {
                let mut args = Args::new();
                args.number(until.as_ms());
                Plan::new(Script::Claim, vec![self.facts.keys.owner()], args)
            }
            Work::Get(target) => planner.get(target, &item.needs),
            Work::Learn(slots) => {
                let mut keys = vec![self.facts.keys.owner()];
                keys.extend(slots.iter().map(|slot| self.facts.keys.slot(*slot)));
                let mut args = Args::new();
                args.number(u64::from(MOST_PRINTS));
                Plan::new(Script::Ids, keys, args)
            }
            Work::Alone(alone) => alone.plan.clone(),
        }
    }

    fn command(&self, plan: &Plan, seq: u64) -> Vec<u8> {
        let mut command = Args::of(["EVALSHA", plan.script.sha()]);
        command.number(plan.keys.len() as u64);
        plan.keys.iter().for_each(|key| {
            command.push(key);
        });
        // The owner record as text: what is stored is compared byte by byte.
        command.number(self.facts.epoch.0).number(self.facts.nonce.0).number(seq);
        command.append(&plan.args);
        command.command()
    }

    /// Waits for the answer at the front. Cancel safe.
    pub(crate) async fn front(&mut self) -> Result<Answered, Lost> {
        match self.window.front_mut().and_then(|item| item.sent.as_mut()) {
            Some(sent) => sent.waiting.answer().await,
            // Recovered: nothing is under way.
            None => Ok(Answered { reply: Reply::Nil, confirmed: true }),
        }
    }

    /// Deals with the answer at the front.
    pub(crate) async fn handle(&mut self, answered: Result<Answered, Lost>) -> Result<(), LaneError> {
        // What a recovery has left is sent again first.
        let Some(sent) = self.window.front().and_then(|front| front.sent.as_ref()) else { return Ok(()) };
        let (script, seq) = (sent.script, sent.seq);
        let (said, confirmed) = match answered {
            Err(lost) => return self.start_again(Trouble::Lost(lost)).await,
            Ok(Answered { reply, confirmed }) => {
                (answer::envelope(script.name(), reply).map_err(broken)?, confirmed)
            }
        };
        match said {
            Said::Ok(rest) => {
                self.up();
                if script.writes() {
                    self.acked = seq;
                }
                self.complete(rest, confirmed)
            }
            said => {
                if script == Script::Ack && matches!(said, Said::Need(_)) {
                    self.hints.acks_were_uncommon();
                }
                self.start_again(Trouble::Said(said)).await
            }
        }
    }

    /// The script at the front is applied.
    pub(crate) fn complete(&mut self, rest: Vec<Reply>, confirmed: bool) -> Result<(), LaneError> {
        let bytes = |i: usize| rest.get(i).and_then(Reply::bytes).cloned().unwrap_or_default();
        let (answers, lengths) = (bytes(0), bytes(1));
        let Some(mut item) = self.window.pop_front() else { return Ok(()) };
        let sent = item.sent.take();
        self.dests.note_stored(sent.as_ref().map_or(0, |s| s.dests));
        match &mut item.work {
            Work::Ops(run) => {
                let slots = sent.as_ref().map_or(&[][..], |s| &s.slots[..]);
                let lengths = answer::lengths(lengths).into_iter();
                let written =
                    lengths.filter_map(|(n, length)| Some((*slots.get(n.wrapping_sub(1))?, length)));
                take_note(&mut self.mirror, item.no, &mut item.placed, written.collect());
                for (number, ids) in answer::ids(rest.get(2)) {
                    let slot = slots.get(number.wrapping_sub(1));
                    slot.into_iter().for_each(|slot| self.mirror.ids(*slot, ids.iter().copied(), item.no));
                }
                let name = sent.map_or("", |s| s.script.name());
                let mut answers = answer::answers(name, answers, run.ops.len()).map_err(broken)?;
                if matches!(answers[..], [Answer::Trimmed { removed: 1.., .. }]) {
                    self.hints.endings.lose(Instant::now());
                }
                if let Some(answer) = run.next_trim(&answers) {
                    let Some(answer) = answer else {
                        self.window.push_front(item);
                        return Ok(());
                    };
                    answers = vec![answer];
                }
                if !confirmed {
                    refuse_unconfirmed(&run.ops, &mut answers);
                }
                let claim = run.claim.filter(|_| !confirmed);
                self.answered(item.call, &run.places, answers);
                match claim {
                    Some(until) => self.hold_claim(item, until),
                    None => self.done(item.call),
                }
            }
            Work::Claim { .. } if confirmed => self.done(item.call),
            Work::Claim { until, .. } => {
                let until = *until;
                self.down(UNCONFIRMED);
                self.hold_claim(item, until);
            }
            Work::Alone(alone) if confirmed || !alone.confirm => self.alone = Some(rest),
            Work::Get(_) => self.alone = Some(rest),
            Work::Learn(slots) => {
                for (slot, ids) in slots.iter().zip(&rest) {
                    // If they are too many for that they are looked for one by one.
                    let Some(ids) = answer::ids_of(ids) else { continue };
                    self.mirror.ids(*slot, ids.iter().copied(), item.no);
                    if let Some(length) = u32::try_from(ids.len()).ok().filter(|length| *length > 0) {
                        self.mirror.length(*slot, length, item.no);
                    }
                }
            }
            Work::Alone(_) => {
                // It is repeated until enough replicas have it.
                self.down(UNCONFIRMED);
                self.window.push_front(item);
            }
        }
        Ok(())
    }

    /// Makes an item's claim again, behind what was sent, until enough replicas have it.
    fn hold_claim(&mut self, mut item: Item, until: Time) {
        item.work = Work::Claim { until, held: true };
        let sent = self.window.iter().take_while(|item| item.sent.is_some()).count();
        self.window.insert(sent, item);
    }

    /// The item was refused as a whole: it has filed nothing.
    pub(crate) fn filed_nothing(&mut self, item: &mut Item) {
        take_note(&mut self.mirror, item.no, &mut item.placed, HashMap::new());
    }

    /// Answers to operations of a call, by their places in it.
    pub(crate) fn answered(&mut self, call: Option<u64>, places: &[u32], answers: Vec<Answer>) {
        if let Some(call) = self.calls.iter_mut().find(|c| Some(c.no) == call) {
            for (place, answer) in places.iter().zip(answers) {
                call.answers[*place as usize] = Some(answer);
            }
        }
    }

    /// An item of a call is done. A call is answered when all of them are, and so are the calls before it.
    pub(crate) fn done(&mut self, call: Option<u64>) {
        if let Some(call) = self.calls.iter_mut().find(|c| Some(c.no) == call) {
            call.items -= 1;
        }
        self.answer_calls();
    }

    fn answer_calls(&mut self) {
        while self.calls.front().is_some_and(|call| call.items == 0) {
            if let Some(call) = self.calls.pop_front() {
                // The caller may have dropped its future.
                let _ = call.to.send(Ok(call.answers.into_iter().flatten().collect()));
            }
        }
    }

    /// The front was not applied, nor was anything behind it: lets what is under way run out, mends, and leaves
    /// everything to be sent again.
    async fn start_again(&mut self, mut trouble: Trouble) -> Result<(), LaneError> {
        for item in self.window.iter_mut().skip(1) {
            if let Some(sent) = item.sent.as_mut()
                && let Err(lost) = sent.waiting.answer().await
            {
                trouble = Trouble::Lost(lost);
            }
        }
        let said = match trouble {
            Trouble::Lost(lost) => return self.recover(&lost.0).await,
            Trouble::Said(said) => said,
        };
        self.nothing_is_under_way();
        self.seq = self.acked;
        match said {
            Said::Ok(_) => Ok(()),
            Said::Fenced(stored) => self.fenced(stored).await,
            Said::Seq(stored) if stored < self.acked => Err(LaneError::RolledBack(self.partition)),
            Said::Seq(_) => self.recover("the store counts otherwise").await,
            Said::Need(wanted) => {
                if self.window.front_mut().is_none_or(|item| item.needs.add(&wanted)) {
                    return Ok(());
                }
                Err(LaneError::Broken(format!("a script of partition {} finds no end", self.partition)))
            }
            Said::Error(error) => self.mend(&error).await,
        }
    }

    /// Everything that is left is to be sent again.
    pub(crate) fn nothing_is_under_way(&mut self) {
        self.window.iter_mut().for_each(|item| item.sent = None);
        self.dests.forget_unstored();
    }

    /// Something works again.
    pub(crate) fn up(&mut self) {
        self.backoff.reset();
        if *self.health.borrow() != Health::Up {
            tracing::info!(partition = self.partition.0, "the store answers again");
            self.health.send_replace(Health::Up);
        }
    }

    /// Something does not work for now.
    pub(crate) fn down(&mut self, why: &str) {
        if *self.health.borrow() == Health::Up {
            tracing::warn!(partition = self.partition.0, why, "the store does not answer");
            self.health.send_replace(Health::Down(why.to_owned()));
        }
    }

    /// Whether nobody waits for an answer of this lane.
    pub(crate) fn nobody_waits(&self) -> bool {
        self.calls.iter().all(|call| call.to.is_closed())
    }

    /// The lane ends: everybody who waits is told why.
    pub(crate) fn end(&mut self, why: &LaneError) {
        self.window.clear();
        for call in self.calls.drain(..) {
            let _ = call.to.send(Err(why.clone()));
        }
    }
}

/// Enters what the script `no` has written, with the lengths of slots; and what it was to file and has not. A slot it
/// has filed something in is among the written ones: an answer that was lost is kept with its lengths for as long as
/// its script is in the window.
fn take_note(mirror: &mut Mirror, no: u64, placed: &mut Vec<Placed>, written: HashMap<SlotKey, u32>) {
    for (slot, length) in &written {
        mirror.length(*slot, *length, no);
    }
    for p in placed.drain(..).filter(|p| !written.contains_key(&p.slot)) {
        mirror.withdraw(p.slot, p.size, no);
    }
}

/// What adds, claims, takes or cancels is refused if too few replicas have it.
fn refuse_unconfirmed(ops: &[Op], answers: &mut [Answer]) {
    for (op, answer) in ops.iter().zip(answers) {
        if op.adds() || matches!(op, Op::Cancel { .. } | Op::Take { .. }) {
            *answer = Answer::Refused(Refusal::NotReplicated);
        }
    }
}

pub(crate) fn broken(nonsense: Nonsense) -> LaneError {
    LaneError::Broken(nonsense.to_string())
}
