//! The conformance suite notices when a store breaks its contract: each test here puts one flaw
//! between the suite and the in-memory store and names a test that must fail for it.

#![allow(clippy::unwrap_used, reason = "the store between the suite and the model is part of a test")]

mod support;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use mtimer_store::conformance::{self, Fault, Harness, Site, Unsupported};
use mtimer_store::ops::{Cancel, MoveAnswer, Reschedule, Schedule, Settle};
use mtimer_store::{
    Acquire, AcquireError, Acquired, Answer, Batch, Bulks, Call, CallAnswer, Health, Lane, LaneFuture,
    ListPage, Listing, Load, Op, OwnerRecord, Page, RequestId, ScheduleAnswer, Settings, Store, StoreClock,
    StoreFuture, StoreInfo, Verdict,
};
use mtimer_types::{Epoch, PartitionId, Target, Term, Time, TimerId};
use tokio::sync::watch;

/// A flaw of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flaw {
    None,
    /// Writes of a former owner are carried out.
    FenceIgnored,
    /// Loads and reads of a former owner are answered.
    ReadsNotFenced,
    /// A take is answered, but not stored.
    TakeSkipped,
    /// Claims are not stored.
    ClaimForgotten,
    /// Claims of loads are not stored.
    ClaimOfLoadForgotten,
    /// A new owner is not told of its predecessor's claims.
    PriorClaimLost,
    /// Loaded timers are never marked as covered.
    CoveredForgotten,
    /// More is said to be loaded than was.
    HorizonTooHigh,
    /// A load leaves out one of many timers.
    LoadLosesOne,
    /// An unload is answered, but not made.
    UnloadIgnored,
    /// New timers are answered as stored and stored with the next call.
    AnsweredBeforeStored,
    /// A call takes its place when it is polled.
    LateCalls,
    /// Repeats of requests are taken for new ones.
    RequestsForgotten,
    /// Any assignment is new enough.
    AssignmentIgnored,
    /// Any epoch is the expected one.
    ExpectedEpochIgnored,
    /// Deliveries in flight at a release are not kept.
    InFlightLost,
    /// Dead letters have no error.
    ErrorLost,
    /// Stories are not written.
    StoryLost,
    /// Retries are all filed in tier 1.
    TierLost,
    /// Unconfirmed timers are settled as done.
    UnconfirmedAcknowledged,
    /// The census forgets keys.
    KeysNotCounted,
    /// A census of an empty partition shows something left over.
    SomethingLeftOver,
    /// The first of several pages leaves out its last row.
    PagesLeaveOut,
    /// A page of pending timers goes on behind one that was not shown.
    PendingSkipped,
    /// Retries are not listed.
    RetriesNotListed,
    /// A batch stops in the middle, and answers as if it had not.
    HalfBatches,
    /// Each batch is applied once more behind the next one, as by a careless resend.
    AppliedAgain,
    /// The term never rises.
    TermStands,
    /// Bulk jobs are not stopped.
    StopIgnored,
    /// The timers on which a bulk job could not act are not named.
    FailuresNotNamed,
    /// Settings of destinations are answered, but not stored.
    SettingsForgotten,
}

/// Known to all handles of a site.
#[derive(Default)]
struct BrokenState {
    newest: Mutex<HashMap<PartitionId, Arc<dyn Lane>>>,
    seen: Mutex<HashSet<TimerId>>,
    numbers: AtomicU64,
}

struct BrokenHarness(Flaw);

struct BrokenSite {
    inner: support::MemorySite,
    flaw: Flaw,
    shared: Arc<BrokenState>,
}

#[derive(Clone)]
struct BrokenStore {
    inner: Arc<dyn Store>,
    flaw: Flaw,
    shared: Arc<BrokenState>,
}

struct BrokenLane {
    inner: Arc<dyn Lane>,
    partition: PartitionId,
    flaw: Flaw,
    shared: Arc<BrokenState>,
    /// Answered, but not stored (or to be applied once more).
    unstored: Mutex<Vec<Batch>>,
}

impl Harness for BrokenHarness {
    fn fresh(&self, partitions: u16) -> BoxFuture<'_, Box<dyn Site>> {
        let (inner, flaw) = (support::MemorySite::new(partitions), self.0);
        ready(Box::new(BrokenSite { inner, flaw, shared: Arc::default() }) as Box<dyn Site>).boxed()
    }
}

impl Site for BrokenSite {
    fn open(&mut self) -> BoxFuture<'_, Arc<dyn Store>> {
        let (flaw, shared) = (self.flaw, self.shared.clone());
        let inner = self.inner.open();
        async move { Arc::new(BrokenStore { inner: inner.await, flaw, shared }) as Arc<dyn Store> }.boxed()
    }

    fn restart(&mut self) -> BoxFuture<'_, Result<(), Unsupported>> {
        self.shared.newest.lock().unwrap().clear();
        self.inner.restart()
    }

    fn fault(&mut self, fault: Fault) -> BoxFuture<'_, Result<(), Unsupported>> {
        self.inner.fault(fault)
    }
}

impl Store for BrokenStore {
    fn info(&self) -> StoreInfo {
        self.inner.info()
    }

    fn owner(&self, partition: PartitionId) -> StoreFuture<OwnerRecord> {
        self.inner.owner(partition)
    }

    fn acquire(&self, mut acquire: Acquire) -> StoreFuture<Acquired, AcquireError> {
        let this = self.clone();
        async move {
            let stored = this.inner.owner(acquire.partition).await?;
            if this.flaw == Flaw::AssignmentIgnored {
                acquire.version = acquire.version.max(stored.version + 1);
                acquire.term = acquire.term.max(stored.term);
            }
            if this.flaw == Flaw::ExpectedEpochIgnored {
                acquire.expected = stored.epoch;
            }
            let mut acquired = this.inner.acquire(acquire).await?;
            this.shared.newest.lock().unwrap().insert(acquire.partition, acquired.lane.clone());
            if this.flaw == Flaw::PriorClaimLost {
                acquired.prior_claim = Time::ZERO;
            }
            let lane = BrokenLane {
                inner: acquired.lane,
                partition: acquire.partition,
                flaw: this.flaw,
                shared: this.shared,
                unstored: Mutex::default(),
            };
            Ok(Acquired { lane: Arc::new(lane), ..acquired })
        }
        .boxed()
    }

    fn raise_term(&self) -> StoreFuture<Term> {
        if self.flaw == Flaw::TermStands { ready(Ok(Term(1))).boxed() } else { self.inner.raise_term() }
    }

    fn clocks(&self) -> Vec<StoreClock> {
        self.inner.clocks()
    }
}

impl BrokenLane {
    /// The lane that a call goes to, after the batches that were answered and not yet stored.
    fn lane(&self) -> Arc<dyn Lane> {
        let unstored = self.flaw == Flaw::AnsweredBeforeStored;
        for batch in self.unstored.lock().unwrap().drain(..).filter(|_| unstored) {
            drop(self.inner.apply(batch));
        }
        self.inner.clone()
    }

    fn newest(&self) -> Arc<dyn Lane> {
        let newest = self.shared.newest.lock().unwrap();
        newest.get(&self.partition).cloned().unwrap_or_else(|| self.inner.clone())
    }

    fn reader(&self) -> Arc<dyn Lane> {
        if self.flaw == Flaw::ReadsNotFenced { self.newest() } else { self.lane() }
    }

    /// Answers new timers without storing them.
    fn promise(&self, batch: &Batch) -> Option<Vec<Answer>> {
        let mut seen = self.shared.seen.lock().unwrap();
        let new = |op: &Op| match op {
            Op::Schedule(Schedule { timer, .. }) => timer.key.is_none() && !seen.contains(&timer.id),
            _ => false,
        };
        let all_new = batch.claim.is_none() && !batch.ops.is_empty() && batch.ops.iter().all(new);
        let mut answers = Vec::new();
        for op in &batch.ops {
            let id = match op {
                Op::Schedule(Schedule { timer, .. }) => timer.id,
                Op::Cancel(Cancel { target: Target::Id(id), .. })
                | Op::Reschedule(Reschedule { target: Target::Id(id), .. }) => *id,
                _ => continue,
            };
            let new = seen.insert(id);
            answers.push(Answer::Schedule(ScheduleAnswer::Scheduled { new, replaced: None }));
        }
        all_new.then_some(answers)
    }

    fn spoil(&self, op: &mut Op) {
        match (self.flaw, op) {
            (
                Flaw::RequestsForgotten,
                Op::Cancel(Cancel { request, .. }) | Op::Reschedule(Reschedule { request, .. }),
            ) => {
                *request = RequestId(self.shared.numbers.fetch_add(1, Ordering::Relaxed));
            }
            (Flaw::ErrorLost, Op::Settle(Settle { verdict: Verdict::Dead { error, .. }, .. })) => {
                *error = "".into()
            }
            (Flaw::StoryLost, Op::Settle(Settle { attempt, .. })) => *attempt = None,
            (Flaw::StopIgnored, Op::StopBulk(stop)) => stop.id.0 = !stop.id.0,
            (Flaw::TierLost, Op::Settle(Settle { verdict: Verdict::Retry { tier, .. }, .. })) => *tier = 1,
            (Flaw::UnconfirmedAcknowledged, Op::Settle(Settle { verdict, .. }))
                if *verdict == Verdict::Unconfirmed =>
            {
                *verdict = Verdict::Ack;
            }
            _ => {}
        }
    }
}

impl Lane for BrokenLane {
    fn epoch(&self) -> Epoch {
        self.inner.epoch()
    }

    fn call(&self, call: Call) -> LaneFuture<CallAnswer> {
        let flaw = self.flaw;
        let (lane, call) = match call {
            Call::Apply(batch) => {
                let answers = self.apply(batch);
                return async move { answers.await.map(CallAnswer::Apply) }.boxed();
            }
            Call::Unload(_) if flaw == Flaw::UnloadIgnored => {
                let answer = self.inner.apply(Batch { now: Time::ZERO, claim: None, ops: Vec::new() });
                return async move { answer.await.map(|_| CallAnswer::Unload) }.boxed();
            }
            Call::Load(load) if matches!(flaw, Flaw::ClaimForgotten | Flaw::ClaimOfLoadForgotten) => {
                (self.reader(), Call::Load(Load { claim: None, ..load }))
            }
            Call::Release(_) if flaw == Flaw::InFlightLost => (self.lane(), Call::Release(Vec::new())),
            Call::Unload(_) | Call::Release(_) => (self.lane(), call),
            read => (self.reader(), read),
        };
        let is_first_page = matches!(call, Call::List(Listing { cursor: 0, .. }));
        let answer = lane.call(call);
        async move {
            let mut answer = answer.await?;
            spoil_answer(flaw, &mut answer, is_first_page);
            Ok(answer)
        }
        .boxed()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.inner.health()
    }
}

fn spoil_answer(flaw: Flaw, answer: &mut CallAnswer, is_first_page: bool) {
    match (flaw, answer) {
        (Flaw::HorizonTooHigh, CallAnswer::Load(loaded)) => loaded.horizon = loaded.horizon + 1,
        (Flaw::CoveredForgotten, CallAnswer::Load(loaded)) => {
            loaded.timers.iter_mut().for_each(|t| t.covered = false);
        }
        (Flaw::LoadLosesOne, CallAnswer::Load(loaded)) if loaded.timers.len() >= 50 => {
            loaded.timers.pop();
        }
        (Flaw::KeysNotCounted, CallAnswer::Census(census)) => census.keys = 0,
        (Flaw::SomethingLeftOver, CallAnswer::Census(census)) => census.residue += 1,
        (Flaw::PagesLeaveOut, CallAnswer::List(page)) if is_first_page => match page {
            ListPage::Dead(page) => leave_out(page),
            ListPage::Taken(page) => leave_out(page),
            ListPage::Unconfirmed(page) => leave_out(page),
            ListPage::Parked(page) => leave_out(page),
        },
        (Flaw::PendingSkipped, CallAnswer::Pending(page)) if page.next.is_some() => drop(page.rows.pop()),
        (Flaw::FailuresNotNamed, CallAnswer::Controls(controls)) => {
            let mut jobs = controls.bulks.all().to_vec();
            jobs.iter_mut().for_each(|job| job.failures.clear());
            controls.bulks = Bulks::stored(jobs);
        }
        (Flaw::SettingsForgotten, CallAnswer::Controls(controls)) => controls.settings = Settings::default(),
        (Flaw::RetriesNotListed, CallAnswer::Pending(page)) => page.rows.retain(|row| row.tier == 0),
        _ => {}
    }
}

fn leave_out<T>(page: &mut Page<T>) {
    if page.rows.len() > 1 && page.next.is_some() {
        page.rows.pop();
    }
}

impl BrokenLane {
    fn apply(&self, mut batch: Batch) -> LaneFuture<Vec<Answer>> {
        batch.ops.iter_mut().for_each(|op| self.spoil(op));
        match self.flaw {
            Flaw::FenceIgnored => self.newest().apply(batch),
            Flaw::ClaimForgotten => self.inner.apply(Batch { claim: None, ..batch }),
            Flaw::LateCalls => {
                let inner = self.inner.clone();
                async move { inner.apply(batch).await }.boxed()
            }
            Flaw::AnsweredBeforeStored => match self.promise(&batch) {
                Some(answers) => {
                    self.unstored.lock().unwrap().push(batch);
                    ready(Ok(answers)).boxed()
                }
                None => self.lane().apply(batch),
            },
            Flaw::AppliedAgain => {
                let answers = self.inner.apply(batch.clone());
                for before in self.unstored.lock().unwrap().splice(.., [batch]) {
                    drop(self.inner.apply(before));
                }
                answers
            }
            Flaw::TakeSkipped => {
                let takes: Vec<_> = batch.ops.iter().map(|op| matches!(op, Op::Take(_))).collect();
                batch.ops.retain(|op| !matches!(op, Op::Take(_)));
                let answers = self.inner.apply(batch);
                async move {
                    let mut rest = answers.await?.into_iter();
                    let answer =
                        |take: bool| if take { Some(Answer::Take(MoveAnswer::Done)) } else { rest.next() };
                    Ok(takes.into_iter().filter_map(answer).collect())
                }
                .boxed()
            }
            Flaw::HalfBatches if batch.ops.len() > 150 => {
                let count = batch.ops.len();
                batch.ops.truncate(150);
                let answers = self.inner.apply(batch);
                async move {
                    let mut answers = answers.await?;
                    let last = answers[149].clone();
                    answers.resize(count, last);
                    Ok(answers)
                }
                .boxed()
            }
            _ => self.inner.apply(batch),
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// The suite fails on a store with this flaw, among others in these tests.
fn is_noticed(flaw: Flaw, by: &[&str]) {
    runtime().block_on(async {
        let harness = BrokenHarness(flaw);
        for name in by {
            let result = conformance::run(name, &harness).await;
            assert!(result.is_err(), "{name} passes on a store where {flaw:?}");
        }
        // The whole suite says so as well, and names a test.
        let whole = std::panic::AssertUnwindSafe(conformance::run_all(&harness)).catch_unwind().await;
        let panic = whole.expect_err("run_all passes on a broken store");
        let words = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(words.starts_with("conformance test "), "{words}");
        println!("{flaw:?}: {words}");
    });
}

#[test]
fn a_store_without_a_flaw_passes() {
    runtime().block_on(conformance::run_all(&BrokenHarness(Flaw::None)));
}

macro_rules! noticed {
    ($($test:ident: $flaw:ident by $($name:literal),+;)*) => {
        $(#[test]
        fn $test() {
            is_noticed(Flaw::$flaw, &[$($name),+]);
        })*
    };
}

noticed! {
    the_fence_is_ignored: FenceIgnored by
        "fencing::every_operation_is_refused", "fencing::claims_are_refused", "fencing::a_batch_is_refused_whole";
    reads_are_not_fenced: ReadsNotFenced by "fencing::reads_are_refused", "fencing::loads_are_refused";
    the_take_is_skipped: TakeSkipped by
        "once::a_taken_timer_is_not_pending", "once::a_later_epoch_cannot_take_it_again", "matrix::take",
        "random::operations_agree_with_the_reference";
    the_claim_is_forgotten: ClaimForgotten by
        "claims::a_batch_can_carry_one", "claims::a_covered_timer_cannot_be_cancelled",
        "random::operations_agree_with_the_reference";
    the_claim_of_a_load_is_forgotten: ClaimOfLoadForgotten by "claims::a_load_can_carry_one";
    the_prior_claim_is_lost: PriorClaimLost by "claims::the_next_owner_learns_of_it";
    covered_is_forgotten: CoveredForgotten by "claims::the_attempt_rises_by_one_after_a_takeover";
    the_horizon_is_too_high: HorizonTooHigh by
        "loading::a_timer_is_loaded_exactly_for_its_time", "loading::every_width_and_its_boundaries";
    a_load_loses_one: LoadLosesOne by "steps::three_thousand_in_one_second", "drain::it_can_be_filled_again";
    an_unload_is_ignored: UnloadIgnored by "loading::unload_and_load_again";
    the_answer_comes_before_the_store: AnsweredBeforeStored by
        "ownership::what_was_answered_is_stored", "fencing::calls_on_their_way_are_applied_up_to_the_takeover";
    calls_are_made_when_polled: LateCalls by
        "order::an_abandoned_call_is_made_all_the_same", "order::reads_see_what_was_called_before_them";
    requests_are_forgotten: RequestsForgotten by
        "requests::a_repeated_keyed_cancel_spares_the_next_holder",
        "requests::a_repeated_reschedule_does_not_undo_a_later_one";
    the_assignment_is_ignored: AssignmentIgnored by
        "ownership::acquire_with_an_assignment_that_is_not_newer_is_refused";
    the_expected_epoch_is_ignored: ExpectedEpochIgnored by "ownership::acquire_with_another_epoch_is_refused";
    what_is_in_flight_is_lost: InFlightLost by "ownership::release_hands_over_deliveries_under_way";
    errors_are_lost: ErrorLost by "dead::a_letter_is_complete";
    tiers_are_lost: TierLost by "retries::through_all_tiers";
    stories_are_lost: StoryLost by
        "retries::a_story_grows_with_each_attempt", "random::operations_agree_with_the_reference";
    the_unconfirmed_vanish: UnconfirmedAcknowledged by "once::unconfirmed_is_listed_and_stays";
    keys_are_not_counted: KeysNotCounted by "drain::the_census_counts_what_is_there";
    something_is_left_over: SomethingLeftOver by "drain::after_acknowledgements";
    pages_leave_rows_out: PagesLeaveOut by "dead::pages_show_each_letter_once", "parking::pages_show_each_timer_once";
    a_pending_timer_is_passed_over: PendingSkipped by
        "listing::in_the_order_of_fire_times_in_pages", "random::operations_agree_with_the_reference";
    retries_are_not_listed: RetriesNotListed by
        "listing::retries_are_told_apart", "random::operations_agree_with_the_reference";
    batches_are_done_by_half: HalfBatches by "order::a_batch_of_2000";
    batches_are_applied_again: AppliedAgain by "random::operations_agree_with_the_reference";
    terms_do_not_rise: TermStands by "ownership::terms_only_rise";
    stops_are_ignored: StopIgnored by
        "bulk::a_stopped_one_acts_no_more", "random::operations_agree_with_the_reference";
    failures_are_not_named: FailuresNotNamed by
        "bulk::it_is_too_late_for_one_in_flight", "matrix::bulk_act";
    settings_are_forgotten: SettingsForgotten by
        "settings::the_next_owner_finds_them", "random::operations_agree_with_the_reference";
}
