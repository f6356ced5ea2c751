//! The lease of a store that several brokers share, with its terms and the topology published under
//! it. A store without one passes and says so.
//!
//! A lease runs out by a clock of the store's own, so these tests take leases that last for
//! minutes, or for a few milliseconds where they wait until one has run out.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use mtimer_types::{PartitionId, Term};

use super::harness::Fault;
use super::kit::Kit;
use super::values::unique;
use crate::{Campaigned, Candidate, Coordination, Lease, LeaseHolder, StoreError, StoreFuture};

const LONG: u64 = 10 * 60_000;
const SHORT: u64 = 20;

/// A broker that competes for the lease.
#[derive(Clone)]
struct Broker {
    store: Arc<dyn Coordination>,
    address: String,
    incarnation: u64,
}

/// Two brokers with a handle each, on one store; `None`: the store belongs to one process alone.
async fn brokers(kit: &mut Kit) -> Option<(Broker, Broker)> {
    let broker = |store: Arc<dyn Coordination>, address: &str| Broker {
        store,
        address: address.to_owned(),
        incarnation: unique(),
    };
    let first = kit.store().coordination();
    let second = kit.second_handle().await.coordination();
    let both = first.zip(second).map(|(a, b)| (broker(a, "10.0.0.1:7400"), broker(b, "10.0.0.2:7400")));
    if both.is_none() {
        eprintln!("    (this store belongs to one process alone; the rest of this test is left out)");
    }
    both
}

impl Broker {
    /// The same address, another process.
    fn reborn(&self) -> Self {
        Self { incarnation: unique(), ..self.clone() }
    }

    async fn campaign(&self, ttl_ms: u64) -> Campaigned {
        sure(|| self.store.campaign(self.candidate(ttl_ms))).await
    }

    fn candidate(&self, ttl_ms: u64) -> Candidate {
        Candidate {
            address: self.address.clone(),
            incarnation: self.incarnation,
            ttl_ms,
            seen: Term::default(),
        }
    }

    /// Campaigns and must win. Returns the lease and the topology that was published before.
    async fn win_over(&self, ttl_ms: u64) -> (Lease, Option<Bytes>) {
        match self.campaign(ttl_ms).await {
            Campaigned::Won { term, published } => (self.lease(term), published),
            held => panic!("{} does not win: {held:?}", self.address),
        }
    }

    async fn win(&self, ttl_ms: u64) -> Lease {
        self.win_over(ttl_ms).await.0
    }

    /// Campaigns until it wins.
    async fn win_in_time(&self) -> Lease {
        loop {
            if let Campaigned::Won { term, .. } = self.campaign(LONG).await {
                return self.lease(term);
            }
            tokio::task::yield_now().await;
        }
    }

    fn lease(&self, term: Term) -> Lease {
        Lease { address: self.address.clone(), incarnation: self.incarnation, term }
    }

    /// Campaigns and must not win. How long the lease lasts.
    async fn lose_to(&self, holder: &Lease) -> u64 {
        match self.campaign(LONG).await {
            Campaigned::Held(LeaseHolder { address, term, remaining_ms }) => {
                assert_eq!((address.as_str(), term), (holder.address.as_str(), holder.term));
                remaining_ms.expect("a lease that mtimer has written runs out")
            }
            won => panic!("{} is not the holder: {won:?}", self.address),
        }
    }

    async fn look(&self) -> Option<LeaseHolder> {
        sure(|| self.store.holder()).await
    }

    async fn publish(&self, lease: &Lease, topology: &'static [u8]) -> bool {
        sure(|| self.store.publish(lease.clone(), Bytes::from_static(topology))).await
    }

    async fn renew(&self, lease: &Lease, ttl_ms: u64) -> bool {
        sure(|| self.store.renew(lease.clone(), ttl_ms)).await
    }

    async fn resign(&self, lease: &Lease) -> bool {
        sure(|| self.store.resign(lease.clone())).await
    }

    /// Waits until every partition can be reached.
    async fn reaches_all(&self) {
        while self.store.unreachable().await != Ok(vec![]) {
            tokio::task::yield_now().await;
        }
    }
}

/// Asks until there is an answer: a busy machine may be too slow for a store that gives up early.
async fn sure<T>(ask: impl Fn() -> StoreFuture<T>) -> T {
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(StoreError::Unavailable(_)) => tokio::task::yield_now().await,
            Err(error) => panic!("the lease cannot be used: {error}"),
        }
    }
}

/// Leases that look much like this one and are not it.
fn impostors(lease: &Lease) -> [Lease; 4] {
    [
        Lease { address: "10.0.0.1:740".into(), ..lease.clone() },
        Lease { incarnation: lease.incarnation.wrapping_add(1), ..lease.clone() },
        Lease { term: Term(lease.term.0 - 1), ..lease.clone() },
        Lease { term: Term(lease.term.0 + 1), ..lease.clone() },
    ]
}

pub(super) async fn the_first_campaign_wins(mut kit: Kit) {
    let Some((one, _)) = brokers(&mut kit).await else { return };
    let (lease, published) = one.win_over(LONG).await;
    assert!(lease.term > Term(0));
    assert_eq!(published, None);
    one.reaches_all().await;
}

pub(super) async fn somebody_else_sees_who_has_it(mut kit: Kit) {
    let Some((one, two)) = brokers(&mut kit).await else { return };
    let lease = one.win(LONG).await;
    let remaining = two.lose_to(&lease).await;
    assert!((1..=LONG).contains(&remaining), "{remaining} ms are left of {LONG}");
    // Having asked changes nothing.
    two.lose_to(&lease).await;
    assert!(one.renew(&lease, LONG).await);
}

pub(super) async fn a_look_says_who_has_it_and_takes_nothing(mut kit: Kit) {
    let Some((one, two)) = brokers(&mut kit).await else { return };
    assert_eq!(one.look().await, None);
    let lease = two.win(LONG).await;
    for broker in [&one, &two] {
        let LeaseHolder { address, term, remaining_ms } = broker.look().await.expect("it is held");
        assert_eq!((address, term), (lease.address.clone(), lease.term));
        assert!(remaining_ms.is_some_and(|ms| (1..=LONG).contains(&ms)), "{remaining_ms:?} of {LONG} ms");
    }
    assert!(two.resign(&lease).await);
    assert_eq!(two.look().await, None);
    two.win(SHORT).await;
    while one.look().await.is_some() {
        tokio::task::yield_now().await;
    }
    one.win(LONG).await;
}

pub(super) async fn a_repeated_campaign_keeps_its_term(mut kit: Kit) {
    let Some((one, two)) = brokers(&mut kit).await else { return };
    let lease = one.win(LONG).await;
    assert_eq!(one.win(3 * LONG).await, lease);
    assert!(two.lose_to(&lease).await > LONG, "and it was renewed");
}

pub(super) async fn another_life_of_the_holder_wins_at_once(mut kit: Kit) {
    let Some((one, two)) = brokers(&mut kit).await else { return };
    let old = one.win(LONG).await;
    assert!(one.publish(&old, b"seen").await);
    let (new, published) = one.reborn().win_over(LONG).await;
    assert!(new.term > old.term, "{new:?} after {old:?}");
    assert_eq!(published.as_deref(), Some(&b"seen"[..]));
    two.lose_to(&new).await;
    // The earlier run has nothing left to say.
    assert!(!one.renew(&old, LONG).await);
    assert!(!one.publish(&old, b"late").await);
    assert!(!one.resign(&old).await);
    two.lose_to(&new).await;
}

pub(super) async fn of_many_candidates_one_wins(mut kit: Kit) {
    let Some((one, two)) = brokers(&mut kit).await else { return };
    let mut term = Term(0);
    for _ in 0..5 {
        let candidates: Vec<_> = (0..20)
            .map(|n| {
                let either = if n % 2 == 0 { &one } else { &two };
                Broker { address: format!("10.0.1.{n}:7400"), ..either.reborn() }
            })
            .collect();
        let campaigns = join_all(candidates.iter().map(|c| c.campaign(LONG))).await;
        let won: Vec<_> = candidates
            .iter()
            .zip(&campaigns)
            .filter_map(|(c, answer)| match answer {
                Campaigned::Won { term, .. } => Some(c.lease(*term)),
                Campaigned::Held(_) => None,
            })
            .collect();
        let [lease] = &won[..] else { panic!("{} have won", won.len()) };
        assert!(lease.term > term);
        term = lease.term;
        assert!(one.resign(lease).await);
    }
}

pub(super) async fn it_runs_out_by_itself(mut kit: Kit) {
    let Some((one, two)) = brokers(&mut kit).await else { return };
    let old = one.win(SHORT).await;
    let new = two.win_in_time().await;
    assert!(new.term > old.term);
    assert!(!one.renew(&old, LONG).await, "it is too late");
    one.lose_to(&new).await;
}

pub(super) async fn a_renewed_one_lasts_as_long_as_it_is_renewed_for(mut kit: Kit) {
    let Some((one, two)) = brokers(&mut kit).await else { return };
    let lease = one.win(LONG).await;
    assert!(one.renew(&lease, 3 * LONG).await);
    assert!(two.lose_to(&lease).await > LONG);
    assert!(one.renew(&lease, LONG).await);
    assert!(two.lose_to(&lease).await <= LONG);
    assert!(one.renew(&lease, SHORT).await);
    assert!(two.win_in_time().await.term > lease.term);
}

pub(super) async fn only_the_holder_renews(mut kit: Kit) {
    let Some((one, two)) = brokers(&mut kit).await else { return };
    assert!(!one.renew(&one.lease(Term(1)), LONG).await, "there is nothing to renew");
    let lease = one.win(LONG).await;
    for other in impostors(&lease) {
        assert!(!two.renew(&other, 3 * LONG).await, "{other:?}");
    }
    assert!(two.lose_to(&lease).await <= LONG);
    assert!(one.renew(&lease, LONG).await);
}

pub(super) async fn a_resigned_one_is_free(mut kit: Kit) {
    let Some((one, two)) = brokers(&mut kit).await else { return };
    let old = one.win(LONG).await;
    assert!(one.resign(&old).await);
    let new = two.win(LONG).await;
    assert!(new.term > old.term);
    one.lose_to(&new).await;
    assert!(!one.resign(&old).await);
    assert!(two.resign(&new).await);
    assert!(one.win(LONG).await.term > new.term, "the same process leads again, under a new term");
}

pub(super) async fn only_the_holder_resigns(mut kit: Kit) {
    let Some((one, two)) = brokers(&mut kit).await else { return };
    assert!(!one.resign(&one.lease(Term(1))).await, "there is nothing to resign");
    let lease = one.win(LONG).await;
    for other in impostors(&lease) {
        assert!(!two.resign(&other).await, "{other:?}");
    }
    two.lose_to(&lease).await;
}

pub(super) async fn the_next_winner_gets_what_was_published_last(mut kit: Kit) {
    let Some((one, two)) = brokers(&mut kit).await else { return };
    let lease = one.win(LONG).await;
    assert!(one.publish(&lease, b"first").await);
    assert!(one.publish(&lease, b"\0\xff\r\n second").await);
    assert_eq!(one.win_over(LONG).await.1.as_deref(), Some(&b"\0\xff\r\n second"[..]));
    assert!(one.resign(&lease).await);
    let (lease, published) = two.win_over(LONG).await;
    assert_eq!(published.as_deref(), Some(&b"\0\xff\r\n second"[..]));
    assert!(two.publish(&lease, b"").await);
    assert!(two.resign(&lease).await);
    assert_eq!(one.win_over(LONG).await.1.as_deref(), Some(&b""[..]));
}

pub(super) async fn only_the_holder_publishes(mut kit: Kit) {
    let Some((one, two)) = brokers(&mut kit).await else { return };
    assert!(!one.publish(&one.lease(Term(1)), b"nobody's").await, "nobody leads");
    let lease = one.win(LONG).await;
    assert!(one.publish(&lease, b"the holder's").await);
    for other in impostors(&lease) {
        assert!(!two.publish(&other, b"an impostor's").await, "{other:?}");
    }
    assert_eq!(one.win_over(LONG).await.1.as_deref(), Some(&b"the holder's"[..]));
}

pub(super) async fn its_terms_and_raised_terms_rise_together(mut kit: Kit) {
    let Some((one, two)) = brokers(&mut kit).await else { return };
    let first = one.win(LONG).await.term;
    let second = kit.store().raise_term().await.unwrap();
    assert!(second > first);
    assert!(one.resign(&one.lease(first)).await);
    let third = two.win(LONG).await.term;
    assert!(third > second);
    assert!(kit.store().raise_term().await.unwrap() > third);
}

/// A store that has forgotten a term, or whose clock is behind the one that made it, does not go
/// back.
pub(super) async fn a_term_is_above_what_the_candidate_has_seen(mut kit: Kit) {
    let Some((one, two)) = brokers(&mut kit).await else { return };
    let first = one.win(LONG).await.term;
    assert!(one.resign(&one.lease(first)).await);
    let seen = Term(first.0 + 1_000_000_000);
    let ahead = Candidate { seen, ..two.candidate(LONG) };
    let won = sure(|| two.store.campaign(ahead.clone())).await;
    let Campaigned::Won { term, .. } = won else { panic!("{won:?}") };
    assert!(term > seen, "{term:?} after {seen:?}");
    assert!(kit.store().raise_term().await.unwrap() > term);
}

pub(super) async fn terms_rise_over_a_restart(mut kit: Kit) {
    let Some((one, two)) = brokers(&mut kit).await else { return };
    let lease = one.win(SHORT).await;
    drop((one, two));
    kit.reopen().await;
    let Some((_, two)) = brokers(&mut kit).await else { return };
    assert!(two.win_in_time().await.term > lease.term);
}

pub(super) async fn in_a_full_store_it_goes_on(mut kit: Kit) {
    let Some((one, two)) = brokers(&mut kit).await else { return };
    let old = one.win(LONG).await;
    if !kit.fault(Fault::OutOfMemory(true)).await {
        return;
    }
    assert!(one.renew(&old, LONG).await);
    assert!(one.publish(&old, b"full").await);
    assert!(one.resign(&old).await);
    assert_eq!(two.win_over(LONG).await.1.as_deref(), Some(&b"full"[..]));
    kit.fault(Fault::OutOfMemory(false)).await;
}

pub(super) async fn a_lost_answer_changes_nothing(mut kit: Kit) {
    let Some((one, two)) = brokers(&mut kit).await else { return };
    let lease = one.win(LONG).await;
    for _ in 0..10 {
        // The connection is cut while a campaign is under way.
        let under_way = tokio::spawn(one.store.campaign(one.candidate(LONG)));
        if !kit.fault(Fault::GoDown).await {
            return;
        }
        kit.fault(Fault::ComeUp).await;
        let won = Campaigned::Won { term: lease.term, published: None };
        let answer = under_way.await.unwrap();
        assert!(matches!(&answer, Err(StoreError::Unavailable(_))) || answer == Ok(won), "{answer:?}");
    }
    assert!(one.renew(&lease, LONG).await);
    two.lose_to(&lease).await;
}

pub(super) async fn while_the_store_is_away_nothing_is_answered(mut kit: Kit) {
    let Some((one, two)) = brokers(&mut kit).await else { return };
    let lease = one.win(LONG).await;
    let all: Vec<_> = (0..kit.store().info().partitions).map(PartitionId).collect();
    if !kit.fault(Fault::GoDown).await {
        return;
    }
    let away = |answer: Option<StoreError>| assert!(matches!(answer, Some(StoreError::Unavailable(_))));
    away(two.store.campaign(two.candidate(LONG)).await.err());
    away(two.store.holder().await.err());
    away(one.store.renew(lease.clone(), LONG).await.err());
    away(one.store.resign(lease.clone()).await.err());
    away(one.store.publish(lease.clone(), Bytes::from_static(b"lost")).await.err());
    assert_eq!(one.store.unreachable().await, Ok(all));
    kit.fault(Fault::ComeUp).await;
    // Nothing of that has happened, and nothing has to be opened again.
    assert!(one.renew(&lease, LONG).await);
    two.reaches_all().await;
    two.lose_to(&lease).await;
    assert_eq!(one.win_over(LONG).await.1, None);
}
