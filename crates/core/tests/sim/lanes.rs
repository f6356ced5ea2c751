//! The ways between brokers and the store: in order, each call with a time to get there and one to
//! come back.
//!
//! The store itself is always there: only the way to it is down, cut, stuck or slow. So every
//! operation is applied at a known moment, and its effect on its timer can be looked at.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use futures_util::FutureExt;
use mtimer_core::{Call, CallAnswer, Input};
use mtimer_store::conformance::properties;
use mtimer_store::ops::Subject;
use mtimer_store::{
    Answer, Batch, Census, CountsPage, Forecast, Health, Lane, LaneError, Listed, Listing, Load, Loaded, Op,
    PendingPage, Refusal, Settings, Store,
};
use mtimer_types::{Epoch, PartitionId, Target, Time};

use super::history::By;
use super::operations::touched;
use super::{Event, Sabotage, World};

/// How long a claim takes at least that replicas do not confirm, ms.
const UNCONFIRMED_TAKES_MS: u64 = 100;

/// How the way to a partition of the store is, for all brokers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum State {
    #[default]
    Up,
    /// Nothing gets there.
    Down,
    /// Calls get there, answers do not come back.
    Cut,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Link {
    pub(super) state: State,
    /// Until then calls take up to some seconds, ms.
    pub(super) slow_until: u64,
    /// Until then writes are applied and not confirmed, ms.
    pub(super) unconfirmed_until: u64,
}

/// A call on its way.
struct SentCall {
    /// When it is there, ms.
    arrives: u64,
    call: Call,
    /// The owner's time was far behind when it sent this.
    is_behind: bool,
}

/// One owner's lane, and the calls and answers on their way.
pub(super) struct LaneLink {
    pub(super) lane: Arc<dyn Lane>,
    pub(super) broker: usize,
    pub(super) inc: u64,
    pub(super) at: PartitionId,
    calls: VecDeque<SentCall>,
    answers: VecDeque<(u64, Result<CallAnswer, LaneError>)>,
    /// When the last call is there, and the last answer back, ms.
    there: u64,
    back: u64,
    /// Nothing passes before, ms: the broker has lost its way to the store and does not know.
    pub(super) stuck_until: u64,
    /// Nobody waits for answers any more; calls under way still get there.
    abandoned: bool,
}

#[derive(Default)]
pub(super) struct Lanes {
    lanes: BTreeMap<u64, LaneLink>,
    last: u64,
}

impl Lanes {
    pub(super) fn add(&mut self, lane: Arc<dyn Lane>, broker: usize, inc: u64, at: PartitionId) -> u64 {
        self.last += 1;
        let (calls, answers) = (VecDeque::new(), VecDeque::new());
        let link = LaneLink {
            lane,
            broker,
            inc,
            at,
            calls,
            answers,
            there: 0,
            back: 0,
            stuck_until: 0,
            abandoned: false,
        };
        self.lanes.insert(self.last, link);
        self.last
    }

    pub(super) fn get(&self, lane: u64) -> Option<&LaneLink> {
        self.lanes.get(&lane)
    }

    pub(super) fn of_mut(&mut self, at: PartitionId) -> impl Iterator<Item = (u64, &mut LaneLink)> {
        self.lanes.iter_mut().filter(move |(_, l)| l.at == at).map(|(n, l)| (*n, l))
    }

    pub(super) fn abandon(&mut self, lane: u64) {
        let Some(l) = self.lanes.get_mut(&lane) else { return };
        l.abandoned = true;
        l.answers.clear();
        if l.calls.is_empty() {
            self.lanes.remove(&lane);
        }
    }

    /// Replaces the answers on their way with this error.
    pub(super) fn lose(&mut self, lane: u64, error: &LaneError) {
        if let Some(l) = self.lanes.get_mut(&lane) {
            l.answers.iter_mut().for_each(|(_, answer)| *answer = Err(error.clone()));
        }
    }
}

impl World {
    /// How long one way to the store takes, ms.
    fn way_ms(&mut self, at: PartitionId) -> u64 {
        let slow = self.links[usize::from(at.0)].slow_until > self.ms;
        if slow { self.rng.log_between(1, 4_000) } else { self.rng.below(self.plan.store_ms + 1) }
    }

    pub(super) fn send_to_store(&mut self, lane: u64, mut call: Call) {
        let Some(at) = self.lanes.get(lane).map(|l| l.at) else { return };
        if let Some(sabotage) = self.plan.sabotage {
            sabotage.alter(&mut call);
            if sabotage == Sabotage::NoFenceWindow && self.answer_alone(lane, &call) {
                return;
            }
        }
        let way = self.way_ms(at);
        let (ms, broker) = (self.ms, self.lanes.get(lane).map(|l| l.broker));
        let time = if let Call::Apply(batch) = &call { Some(batch.now) } else { None };
        let is_behind = broker.zip(time).is_some_and(|(b, time)| self.is_far_behind(b, time));
        let Some(l) = self.lanes.lanes.get_mut(&lane) else { return };
        l.there = (ms + way).max(l.there).max(l.stuck_until);
        l.calls.push_back(SentCall { arrives: l.there, call, is_behind });
        let after = l.there - ms;
        self.at(after, Event::Reach(lane));
    }

    /// Sabotage: a broker that has lost its way to the store goes on as if it had not. False if it
    /// has to wait.
    fn answer_alone(&mut self, lane: u64, call: &Call) -> bool {
        let ms = self.ms;
        let Some(l) = self.lanes.lanes.get_mut(&lane) else { return false };
        if l.stuck_until <= ms || !l.calls.is_empty() || l.answers.back().is_some_and(|(t, _)| *t > ms + 1) {
            return false;
        }
        let answer = match call {
            Call::Apply(batch) => CallAnswer::Apply(Sabotage::answer_alone(&batch.ops)),
            Call::Load(load) => {
                let (timers, horizon) = (Vec::new(), load.until);
                CallAnswer::Load(Loaded { timers, horizon, is_claim_unconfirmed: false })
            }
            Call::Get(_) => CallAnswer::Get(None),
            Call::List(Listing { of: of @ Listed::Parked(_), .. }) => CallAnswer::List(of.page([], None)),
            Call::Unload(_) => CallAnswer::Unload,
            Call::Pending(_) => CallAnswer::Pending(PendingPage { rows: Vec::new(), next: None }),
            Call::Counts(_) => CallAnswer::Counts(CountsPage::default()),
            Call::Forecast(_) => CallAnswer::Forecast(Forecast::default()),
            Call::Controls => CallAnswer::Controls(Box::default()),
            Call::Census => CallAnswer::Census(Census::default()),
            _ => return false,
        };
        l.answers.push_back((ms + 1, Ok(answer)));
        self.at(1, Event::Answered(lane));
        true
    }

    /// Carries out the calls that have arrived at the store.
    pub(super) fn reach(&mut self, lane: u64) {
        let ms = self.ms;
        loop {
            let Some(l) = self.lanes.lanes.get_mut(&lane) else { return };
            let at = l.at;
            if self.links[usize::from(at.0)].state == State::Down
                || l.calls.front().is_none_or(|sent| sent.arrives > ms)
            {
                break;
            }
            let Some(sent) = l.calls.pop_front() else { break };
            let handle = l.lane.clone();
            let claims = matches!(
                &sent.call,
                Call::Apply(Batch { claim: Some(_), .. }) | Call::Load(Load { claim: Some(_), .. })
            );
            // It is asked for again at once.
            let waited = if claims && self.is_unconfirmed(at) { UNCONFIRMED_TAKES_MS } else { 0 };
            let answer = self.carry_out_call(&*handle, at, sent);
            let way = self.way_ms(at) + waited;
            let alone = self.plan.sabotage == Some(Sabotage::NoFenceWindow);
            let Some(l) = self.lanes.lanes.get_mut(&lane) else { return };
            if !l.abandoned {
                let stuck_until = if alone { 0 } else { l.stuck_until };
                l.back = (ms + way).max(l.back).max(stuck_until);
                l.answers.push_back((l.back, answer));
                let after = l.back - ms;
                self.at(after, Event::Answered(lane));
            }
        }
        if self.lanes.get(lane).is_some_and(|l| l.abandoned && l.calls.is_empty()) {
            self.lanes.lanes.remove(&lane);
        }
    }

    /// Answers that are back go to the broker.
    pub(super) fn take_answers(&mut self, lane: u64) {
        let ms = self.ms;
        while let Some(l) = self.lanes.lanes.get_mut(&lane) {
            let cut = self.links[usize::from(l.at.0)].state == State::Cut;
            if cut || l.abandoned || l.answers.front().is_none_or(|(t, _)| *t > ms) {
                return;
            }
            let Some((_, answer)) = l.answers.pop_front() else { return };
            let (b, inc, partition, epoch) = (l.broker, l.inc, l.at, l.lane.epoch());
            self.arrive(b, inc, Input::Answered { partition, epoch, answer });
        }
    }

    /// The way to a partition is open again: everything that waited goes on.
    pub(super) fn reopen(&mut self, at: PartitionId) {
        let cut = self.links[usize::from(at.0)].state == State::Cut;
        self.links[usize::from(at.0)].state = State::Up;
        let owner = self.owner_epoch(at);
        let lanes: Vec<(u64, Epoch)> = self.lanes.of_mut(at).map(|(n, l)| (n, l.lane.epoch())).collect();
        for (lane, epoch) in lanes {
            if cut && epoch != owner {
                // The outcome of its calls can no longer be found out.
                let error = LaneError::Fenced { partition: at, stored: owner, ours: epoch };
                self.lanes.lose(lane, &error);
            }
            self.at(0, Event::Reach(lane));
            self.at(0, Event::Answered(lane));
        }
    }

    /// Brokers notice how the way to a partition is.
    pub(super) fn notice(&mut self, p: u16) {
        let partition = PartitionId(p);
        let health = match self.links[usize::from(p)].state {
            State::Up => Health::Up,
            State::Down | State::Cut => Health::Down("simulated".into()),
        };
        for b in 0..self.brokers.len() {
            let Some(process) = &self.brokers[b].process else { continue };
            let (inc, lane) = (process.inc, process.lanes[usize::from(p)]);
            if lane.is_some() {
                self.arrive(b, inc, Input::Health { partition, health: health.clone() });
            }
        }
    }

    pub(super) fn owner_epoch(&self, at: PartitionId) -> Epoch {
        self.store.owner(at).now_or_never().and_then(Result::ok).map_or(Epoch::default(), |o| o.epoch)
    }

    /// The time up to which a partition is claimed; `None` where sabotage leaves nothing to
    /// compare.
    pub(super) fn claimed(&self, at: PartitionId) -> Option<Time> {
        let owner = self.store.owner(at).now_or_never()?.ok()?;
        (self.plan.sabotage != Some(Sabotage::NoFenceWindow)).then_some(owner.claimed_until)
    }

    /// Whether replicas do not confirm writes now.
    fn is_unconfirmed(&self, at: PartitionId) -> bool {
        self.links[usize::from(at.0)].unconfirmed_until > self.ms
    }

    fn carry_out_call(
        &mut self,
        lane: &dyn Lane,
        at: PartitionId,
        SentCall { call, is_behind, .. }: SentCall,
    ) -> Result<CallAnswer, LaneError> {
        if let Call::Apply(batch) = call {
            return self.apply(lane, at, batch, is_behind).map(CallAnswer::Apply);
        }
        if self.plan.sabotage == Some(Sabotage::NoLook) && matches!(call, Call::Get(Target::Key(..))) {
            return Ok(CallAnswer::Get(None));
        }
        let claims = matches!(call, Call::Load(Load { claim: Some(_), .. }));
        // The memory store answers at once.
        let answer = lane.call(call).now_or_never();
        let mut answer = answer.unwrap_or_else(|| Err(LaneError::Broken("no answer".into())))?;
        if let CallAnswer::Pending(page) = &mut answer
            && self.plan.sabotage == Some(Sabotage::BulkSkips)
        {
            page.rows.retain(|row| row.record.timer.id.random() % 3 != 0);
        }
        if let CallAnswer::Pending(page) = &mut answer
            && self.plan.sabotage == Some(Sabotage::ReleaseSkips)
        {
            page.rows.retain(|row| !row.fire.is_staged() || row.record.timer.id.random() % 3 != 0);
        }
        if let CallAnswer::Controls(controls) = &mut answer {
            self.history.compare_bulks(self.ms, at, controls.bulks.all());
            if self.plan.sabotage == Some(Sabotage::PauseForgotten) {
                controls.settings = Settings::default();
            }
        }
        if let CallAnswer::Load(loaded) = &mut answer {
            loaded.is_claim_unconfirmed = claims && self.is_unconfirmed(at);
            if self.plan.sabotage == Some(Sabotage::LoseLoaded) {
                loaded.timers.retain(|t| t.record.timer.id.random() % 10 != 0);
            }
        }
        Ok(answer)
    }

    /// Applies a batch operation by operation, and looks at the effect of each.
    fn apply(
        &mut self,
        lane: &dyn Lane,
        at: PartitionId,
        batch: Batch,
        is_behind: bool,
    ) -> Result<Vec<Answer>, LaneError> {
        let Batch { now, mut claim, ops } = batch;
        let unconfirmed_claim =
            (claim.is_some() && self.is_unconfirmed(at)).then_some(Answer::Refused(Refusal::NotReplicated));
        let mut one = |ops: Vec<Op>| {
            let batch = Batch { now, claim: claim.take(), ops };
            let answers = lane.apply(batch).now_or_never();
            answers.unwrap_or_else(|| Err(LaneError::Broken("no answer".into())))
        };
        if ops.is_empty() {
            return one(ops).map(|_| unconfirmed_claim.into_iter().collect());
        }
        let mut answers = Vec::with_capacity(ops.len());
        for op in ops {
            if let Some(fake) = self.plan.sabotage.and_then(|s| s.swallow(&op)) {
                one(Vec::new())?;
                answers.push(fake);
                continue;
            }
            // A master that has too few replicas refuses writes; so the owner sends them again.
            if matches!(op, Op::Settle(_)) && self.is_unconfirmed(at) && self.ms.is_multiple_of(2) {
                one(Vec::new())?;
                answers.push(Answer::Refused(Refusal::ReadOnly));
                continue;
            }
            let answer = one(vec![op.clone()])?.pop().ok_or_else(|| LaneError::Broken("no answer".into()))?;
            let before = op.id().and_then(|id| self.history.lives.get(&id)?.place);
            for id in touched(&op, &answer) {
                let after = lane.get(Target::Id(id)).now_or_never().and_then(Result::ok).flatten();
                let by = By { ms: self.ms, now, is_behind, epoch: lane.epoch() };
                self.history.applied(by, id, &op, &answer, after);
            }
            self.history.watch_bulk(self.ms, at, &op, before, &answer);
            touched(&op, &answer).into_iter().for_each(|id| self.history.watch_place(id));
            if let Subject::Named { request, .. } = op.subject()
                // A refused operation is not applied: a repeat may be.
                && !matches!(answer, Answer::Refused(_))
            {
                self.history.applied.entry(request.0).or_insert(self.history.seq);
            }
            let unconfirmed = properties::waits(&op) && self.is_unconfirmed(at);
            answers.push(if unconfirmed { Answer::Refused(Refusal::NotReplicated) } else { answer });
        }
        answers.extend(unconfirmed_claim);
        Ok(answers)
    }
}
