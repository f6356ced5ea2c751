//! The conformance suite notices when a store breaks the contract of its lease: each test here puts
//! one flaw between the suite and the in-memory store and names the tests that must fail for it.

#![allow(clippy::unwrap_used, reason = "the store between the suite and the model is part of a test")]

mod support;

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use mtimer_store::conformance::{self, Fault, Harness, Site, Unsupported};
use mtimer_store::{
    Acquire, AcquireError, Acquired, Campaigned, Candidate, Coordination, Lease, LeaseHolder, MemoryStore,
    OwnerRecord, Store, StoreClock, StoreError, StoreFuture, StoreInfo,
};
use mtimer_types::{PartitionId, Term};

/// A flaw of the lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flaw {
    None,
    /// Every campaign wins.
    EverybodyWins,
    /// An earlier run of the holder keeps another one out.
    AddressIgnored,
    /// A candidate that holds the lease already gets a new term.
    RepeatRaisesTerm,
    /// A new holder gets the term of the one before.
    TermStands,
    /// The term that a candidate has seen is not looked at.
    SeenIgnored,
    /// Terms of leases are counted apart from those that are raised.
    TermsApart,
    /// Renewing is answered and not done.
    RenewSkipped,
    RenewedByAnybody,
    ResignedByAnybody,
    PublishedByAnybody,
    /// Giving up is answered and not done.
    ResignSkipped,
    /// The published topology is not handed to the next winner.
    PublishedLost,
    /// Only the first published topology is kept.
    FirstPublishedStays,
    /// Others are not told the holder's term.
    HolderUnknown,
    /// Every look is answered that the lease is free.
    HolderHidden,
    /// Others are told that the lease never runs out.
    RemainingUnknown,
    /// A store that is away is taken for a lease that is lost.
    AwayIsLost,
    /// Unreachable partitions are not reported.
    UnreachableHidden,
}

struct BrokenHarness(Flaw);

struct BrokenSite(support::MemorySite, Broken);

struct BrokenStore(MemoryStore, Broken);

#[derive(Clone)]
struct Broken {
    flaw: Flaw,
    shared: Arc<Mutex<BrokenState>>,
}

#[derive(Default)]
struct BrokenState {
    /// The lease that was won last.
    won: Option<Lease>,
    published: bool,
    terms: u64,
}

struct BrokenLease {
    inner: Arc<dyn Coordination>,
    broken: Broken,
}

impl Harness for BrokenHarness {
    fn fresh(&self, partitions: u16) -> BoxFuture<'_, Box<dyn Site>> {
        let broken = Broken { flaw: self.0, shared: Arc::default() };
        ready(Box::new(BrokenSite(support::MemorySite::new(partitions), broken)) as Box<dyn Site>).boxed()
    }
}

impl Site for BrokenSite {
    fn open(&mut self) -> BoxFuture<'_, Arc<dyn Store>> {
        ready(Arc::new(BrokenStore(self.0.store.clone(), self.1.clone())) as Arc<dyn Store>).boxed()
    }

    fn fault(&mut self, fault: Fault) -> BoxFuture<'_, Result<(), Unsupported>> {
        self.0.fault(fault)
    }
}

impl Store for BrokenStore {
    fn info(&self) -> StoreInfo {
        self.0.info()
    }

    fn owner(&self, partition: PartitionId) -> StoreFuture<OwnerRecord> {
        self.0.owner(partition)
    }

    fn acquire(&self, acquire: Acquire) -> StoreFuture<Acquired, AcquireError> {
        self.0.acquire(acquire)
    }

    fn raise_term(&self) -> StoreFuture<Term> {
        self.0.raise_term()
    }

    fn clocks(&self) -> Vec<StoreClock> {
        self.0.clocks()
    }

    fn coordination(&self) -> Option<Arc<dyn Coordination>> {
        let inner = self.0.coordination()?;
        Some(Arc::new(BrokenLease { inner, broken: self.1.clone() }))
    }
}

impl BrokenLease {
    fn has(&self, flaw: Flaw) -> bool {
        self.broken.flaw == flaw
    }

    fn shared<T>(&self, act: impl FnOnce(&mut BrokenState) -> T) -> T {
        act(&mut self.broken.shared.lock().unwrap())
    }

    /// The caller's lease; with the flaw, the lease of its present holder.
    fn anybodys(&self, flaw: Flaw, lease: Lease) -> Lease {
        let won = self.shared(|shared| shared.won.clone());
        if self.has(flaw) { won.unwrap_or(lease) } else { lease }
    }

    fn answer(&self, answer: StoreFuture<bool>) -> StoreFuture<bool> {
        let lost = self.has(Flaw::AwayIsLost);
        async move {
            match answer.await {
                Err(StoreError::Unavailable(_)) if lost => Ok(false),
                other => other,
            }
        }
        .boxed()
    }

    /// The memory store answers at once.
    fn now<T>(answer: StoreFuture<T>) -> Result<T, StoreError> {
        answer.now_or_never().unwrap()
    }

    fn resign_for_good(&self, lease: Option<Lease>) {
        if let Some(lease) = lease {
            // Lost or not: the campaign that follows tells.
            let _ = Self::now(self.inner.resign(lease));
        }
    }

    fn before(&self, candidate: &mut Candidate) {
        let won = self.shared(|shared| shared.won.clone());
        let same = won.as_ref().filter(|won| won.address == candidate.address);
        match self.broken.flaw {
            Flaw::EverybodyWins => self.resign_for_good(won),
            Flaw::RepeatRaisesTerm => self.resign_for_good(same.cloned()),
            Flaw::SeenIgnored => candidate.seen = Term::default(),
            Flaw::AddressIgnored if same.is_some_and(|won| won.incarnation != candidate.incarnation) => {
                candidate.address.push('0');
            }
            _ => {}
        }
    }

    fn after(&self, candidate: &Candidate, answer: Campaigned) -> Campaigned {
        match answer {
            Campaigned::Won { mut term, mut published } => {
                let (address, incarnation) = (candidate.address.clone(), candidate.incarnation);
                let lease = Lease { address, incarnation, term };
                self.shared(|shared| {
                    let last = shared.won.replace(lease);
                    match (self.broken.flaw, last) {
                        (Flaw::TermStands, Some(last)) => term = last.term,
                        (Flaw::TermsApart, _) => {
                            shared.terms += 1;
                            term = Term(shared.terms);
                        }
                        _ => {}
                    }
                });
                if self.has(Flaw::PublishedLost) {
                    published = None;
                }
                Campaigned::Won { term, published }
            }
            Campaigned::Held(mut holder) => {
                if self.has(Flaw::HolderUnknown) {
                    holder.term = Term(0);
                }
                if self.has(Flaw::RemainingUnknown) {
                    holder.remaining_ms = None;
                }
                Campaigned::Held(holder)
            }
        }
    }
}

impl Coordination for BrokenLease {
    fn campaign(&self, mut candidate: Candidate) -> StoreFuture<Campaigned> {
        self.before(&mut candidate);
        let answer = Self::now(self.inner.campaign(candidate.clone()));
        ready(answer.map(|answer| self.after(&candidate, answer))).boxed()
    }

    fn holder(&self) -> StoreFuture<Option<LeaseHolder>> {
        let held = Self::now(self.inner.holder());
        let held = held.map(|held| if self.has(Flaw::HolderHidden) { None } else { held });
        ready(held).boxed()
    }

    fn renew(&self, lease: Lease, ttl_ms: u64) -> StoreFuture<bool> {
        let lease = self.anybodys(Flaw::RenewedByAnybody, lease);
        let holds = self.shared(|shared| shared.won.as_ref() == Some(&lease));
        if self.has(Flaw::RenewSkipped) && holds {
            return ready(Ok(true)).boxed();
        }
        self.answer(self.inner.renew(lease, ttl_ms))
    }

    fn resign(&self, lease: Lease) -> StoreFuture<bool> {
        let lease = self.anybodys(Flaw::ResignedByAnybody, lease);
        let holds = self.shared(|shared| shared.won.as_ref() == Some(&lease));
        if self.has(Flaw::ResignSkipped) && holds {
            return ready(Ok(true)).boxed();
        }
        self.answer(self.inner.resign(lease))
    }

    fn publish(&self, lease: Lease, topology: Bytes) -> StoreFuture<bool> {
        let lease = self.anybodys(Flaw::PublishedByAnybody, lease);
        let again = self.shared(|shared| std::mem::replace(&mut shared.published, true));
        if self.has(Flaw::FirstPublishedStays) && again {
            return ready(Ok(true)).boxed();
        }
        self.answer(self.inner.publish(lease, topology))
    }

    fn unreachable(&self) -> StoreFuture<Vec<PartitionId>> {
        if self.has(Flaw::UnreachableHidden) { ready(Ok(vec![])).boxed() } else { self.inner.unreachable() }
    }
}

fn run(name: &str, flaw: Flaw) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(conformance::run(name, &BrokenHarness(flaw)))
}

#[test]
fn a_lease_without_a_flaw_passes() {
    for name in conformance::names().filter(|name| name.starts_with("lease::")) {
        run(name, Flaw::None).unwrap();
    }
}

macro_rules! noticed {
    ($($test:ident: $flaw:ident by $($name:literal),+;)*) => {
        $(#[test]
        fn $test() {
            for name in [$($name),+] {
                let result = run(&format!("lease::{name}"), Flaw::$flaw);
                assert!(result.is_err(), "{name} passes on a store where {:?}", Flaw::$flaw);
            }
        })*
    };
}

noticed! {
    everybody_wins: EverybodyWins by "somebody_else_sees_who_has_it", "of_many_candidates_one_wins";
    the_address_is_ignored: AddressIgnored by "another_life_of_the_holder_wins_at_once";
    a_repeat_raises_the_term: RepeatRaisesTerm by "a_repeated_campaign_keeps_its_term";
    the_term_stands: TermStands by
        "another_life_of_the_holder_wins_at_once", "it_runs_out_by_itself", "a_resigned_one_is_free";
    what_was_seen_is_ignored: SeenIgnored by "a_term_is_above_what_the_candidate_has_seen";
    terms_are_counted_apart: TermsApart by "its_terms_and_raised_terms_rise_together";
    renewing_is_skipped: RenewSkipped by "a_renewed_one_lasts_as_long_as_it_is_renewed_for";
    anybody_renews: RenewedByAnybody by "only_the_holder_renews", "it_runs_out_by_itself";
    anybody_resigns: ResignedByAnybody by "only_the_holder_resigns", "another_life_of_the_holder_wins_at_once";
    anybody_publishes: PublishedByAnybody by "only_the_holder_publishes", "another_life_of_the_holder_wins_at_once";
    resigning_is_skipped: ResignSkipped by "a_resigned_one_is_free";
    what_was_published_is_lost: PublishedLost by "the_next_winner_gets_what_was_published_last";
    what_was_published_first_stays: FirstPublishedStays by "the_next_winner_gets_what_was_published_last";
    the_holder_is_unknown: HolderUnknown by "somebody_else_sees_who_has_it";
    the_holder_is_hidden: HolderHidden by "a_look_says_who_has_it_and_takes_nothing";
    the_rest_of_it_is_unknown: RemainingUnknown by "somebody_else_sees_who_has_it";
    away_is_taken_for_lost: AwayIsLost by "while_the_store_is_away_nothing_is_answered";
    what_cannot_be_reached_is_hidden: UnreachableHidden by "while_the_store_is_away_nothing_is_answered";
}
