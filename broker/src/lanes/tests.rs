use std::sync::Mutex;

use futures_util::FutureExt;
use mtimer_store::{Batch, Census, LaneFuture, MemoryStore, Store};
use mtimer_types::{Term, Time};
use tokio::sync::oneshot;

use super::*;
use crate::acquire::{AcquirePolicy, Superseded};

const P: PartitionId = PartitionId(0);

/// A lane whose censuses are answered by hand, in any order.
struct Fake {
    epoch: Epoch,
    health: watch::Sender<Health>,
    asked: Mutex<Vec<oneshot::Sender<Census>>>,
}

impl Fake {
    fn begin(lanes: &mut Lanes, epoch: u64) -> (Arc<Self>, Vec<Input>) {
        Self::begin_with(lanes, epoch, Health::Up)
    }

    fn begin_with(lanes: &mut Lanes, epoch: u64, health: Health) -> (Arc<Self>, Vec<Input>) {
        let (health, _) = watch::channel(health);
        let lane = Arc::new(Self { epoch: Epoch(epoch), health, asked: Mutex::default() });
        let acquired = Acquired {
            lane: lane.clone(),
            epoch: lane.epoch,
            prior_claim: Time::ZERO,
            in_flight: Vec::new(),
        };
        let inputs = lanes.begin(P, acquired);
        (lane, inputs)
    }

    fn answer(&self, place: usize, pending: u64) {
        let asked = self.asked.lock().unwrap().remove(place);
        // The caller may have gone.
        let _ = asked.send(Census { pending, ..Census::default() });
    }
}

impl Lane for Fake {
    fn epoch(&self) -> Epoch {
        self.epoch
    }
    fn call(&self, call: Call) -> LaneFuture<CallAnswer> {
        match call {
            Call::Apply(_) => Box::pin(async { Err(LaneError::Closed) }),
            Call::Census => {
                let (answer, asked) = oneshot::channel();
                self.asked.lock().unwrap().push(answer);
                Box::pin(async { asked.await.map(CallAnswer::Census).map_err(|_| LaneError::Closed) })
            }
            _ => Box::pin(std::future::pending()),
        }
    }
    fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }
}

fn lanes() -> Lanes {
    assigned_lanes().0
}

/// And the store whose partitions are assigned.
fn assigned_lanes() -> (Lanes, MemoryStore) {
    let store = MemoryStore::new(1);
    let (_, topology) = watch::channel(None);
    let shared = Arc::new(store.clone());
    let policy =
        AcquirePolicy { handover_timeout: Duration::from_secs(1), at_once: 8, superseded: Superseded::Wait };
    let acquirer =
        Acquirer::new(shared, "a:1", topology, policy, Arc::default(), Arc::default(), Arc::default());
    (Lanes::new(Arc::new(acquirer)), store)
}

async fn acquired(lanes: &mut Lanes) -> Acquired {
    match lanes.next().await {
        LaneEvent::Acquired(P, acquired) => acquired,
        _ => panic!("not acquired"),
    }
}

/// Everything that is in order by now: the `pending` of each census.
fn answers(lanes: &mut Lanes) -> Vec<u64> {
    while let Some(event) = lanes.next().now_or_never() {
        assert!(matches!(event, LaneEvent::Answered));
    }
    std::iter::from_fn(|| lanes.next_answer())
        .map(|input| match input {
            Input::Answered { answer: Ok(CallAnswer::Census(census)), .. } => census.pending,
            other => panic!("{other:?}"),
        })
        .collect()
}

#[tokio::test]
async fn answers_are_given_out_in_the_order_of_the_calls() {
    let mut lanes = lanes();
    let (lane, inputs) = Fake::begin(&mut lanes, 1);
    assert!(matches!(inputs[..], [Input::Acquired { epoch: Epoch(1), .. }]));
    (0..4).for_each(|_| lanes.call(P, Call::Census));
    assert_eq!(lane.asked.lock().unwrap().len(), 4, "made, not only queued");
    lane.answer(3, 3);
    lane.answer(1, 1);
    assert_eq!(answers(&mut lanes), []);
    lane.answer(0, 0);
    assert_eq!(answers(&mut lanes), [0, 1]);
    lane.answer(0, 2);
    assert_eq!(answers(&mut lanes), [2, 3]);
}

#[tokio::test]
async fn answers_of_an_earlier_ownership_have_nobody_left() {
    let mut lanes = lanes();
    let (first, _) = Fake::begin(&mut lanes, 1);
    lanes.call(P, Call::Census);
    lanes.end(P, &LaneError::Closed, true);
    lanes.call(P, Call::Census);
    assert_eq!(first.asked.lock().unwrap().len(), 1, "not owned, no call");
    let (second, _) = Fake::begin(&mut lanes, 2);
    lanes.call(P, Call::Census);
    first.answer(0, 7);
    assert_eq!(answers(&mut lanes), []);
    second.answer(0, 8);
    assert_eq!(answers(&mut lanes), [8]);
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_closed_by_itself_is_acquired_when_it_is_assigned_again() {
    let mut lanes = lanes();
    lanes.own(P, (Term(1), 1));
    let first = acquired(&mut lanes).await;
    let ours = first.epoch;
    lanes.begin(P, first);
    lanes.end(P, &LaneError::Closed, false);
    assert!(!lanes.owns(P) && lanes.is_wanted(P));
    lanes.own(P, (Term(1), 1));
    assert!(acquired(&mut lanes).await.epoch > ours);
}

#[tokio::test]
async fn an_ended_lane_says_so_in_place_of_an_answer() {
    let mut lanes = lanes();
    let (_lane, _) = Fake::begin(&mut lanes, 1);
    lanes.call(P, Call::Apply(Batch { now: Time::ZERO, claim: None, ops: Vec::new() }));
    assert!(matches!(lanes.next().await, LaneEvent::Answered));
    let Some(Input::Answered { answer: Err(LaneError::Closed), .. }) = lanes.next_answer() else {
        panic!("not ended")
    };
}

#[tokio::test]
async fn the_end_of_a_lane_is_told_behind_the_answers_to_its_calls() {
    let mut lanes = lanes();
    let (lane, _) = Fake::begin(&mut lanes, 1);
    (0..2).for_each(|_| lanes.call(P, Call::Census));
    lane.health.send_replace(Health::Ended(LaneError::Closed));
    assert!(lanes.next().now_or_never().is_none(), "no call is answered yet");
    (0..2).for_each(|n| lane.answer(0, n));
    while lanes.next().now_or_never().is_some() {}
    let told: Vec<Input> = std::iter::from_fn(|| lanes.next_answer()).collect();
    assert!(
        matches!(
            told[..],
            [
                Input::Answered { answer: Ok(CallAnswer::Census(_)), .. },
                Input::Answered { answer: Ok(CallAnswer::Census(_)), .. },
                Input::Health { partition: P, health: Health::Ended(LaneError::Closed) },
            ]
        ),
        "{told:?}"
    );
}

#[tokio::test]
async fn health_is_told_as_it_changes() {
    let mut lanes = lanes();
    let (lane, _) = Fake::begin(&mut lanes, 1);
    for health in [Health::Down("no route".into()), Health::Up, Health::Ended(LaneError::Closed)] {
        lane.health.send_replace(health.clone());
        let LaneEvent::Health(P, told) = lanes.next().await else { panic!("no health") };
        assert_eq!(told, health);
    }
    assert!(lanes.next().now_or_never().is_none());
}

#[tokio::test]
async fn a_store_that_is_away_from_the_beginning_is_told() {
    let mut lanes = lanes();
    let away = Health::Down("no route".into());
    let (_lane, inputs) = Fake::begin_with(&mut lanes, 1, away.clone());
    let [Input::Acquired { .. }, Input::Health { partition: P, health }] = &inputs[..] else {
        panic!("{inputs:?}")
    };
    assert_eq!(*health, away);
}

#[tokio::test]
async fn a_lane_whose_task_is_gone_without_a_word_has_ended() {
    let mut lanes = lanes();
    let (health, receiver) = watch::channel(Health::Up);
    Fake::begin(&mut lanes, 2);
    // Of the present ownership, and of one that is over.
    for epoch in [2, 1] {
        lanes.watch(P, Epoch(epoch), receiver.clone());
    }
    drop(health);
    let LaneEvent::Health(P, Health::Ended(LaneError::Broken(_))) = lanes.next().await else {
        panic!("no end")
    };
    assert!(lanes.next().now_or_never().is_none());
}

/// Longer than anything pauses.
const LONG: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn an_assigned_partition_is_acquired_once_however_often_it_is_assigned() {
    let (mut lanes, _) = assigned_lanes();
    assert!(!lanes.is_wanted(P) && !lanes.owns(P));
    (1..4).for_each(|version| lanes.own(P, (Term(1), version)));
    assert_eq!(lanes.acquisitions.under_way(), 1);
    let acquired = acquired(&mut lanes).await;
    assert!(lanes.is_wanted(P));
    lanes.begin(P, acquired);
    assert!(lanes.owns(P));
    lanes.own(P, (Term(1), 4));
    assert!(lanes.acquisitions.under_way() == 0, "it is owned already");
}

#[tokio::test(start_paused = true)]
async fn an_assignment_that_is_withdrawn_in_time_acquires_nothing() {
    let (mut lanes, store) = assigned_lanes();
    lanes.own(P, (Term(1), 1));
    assert!(!lanes.withdraw(P), "it is not owned");
    assert!(lanes.next().now_or_never().is_none() && !lanes.is_wanted(P));
    let next = tokio::time::timeout(LONG, lanes.next()).await;
    assert!(next.is_err() && lanes.acquisitions.is_empty());
    assert_eq!(store.owner(P).await.unwrap().epoch, Epoch(0));
}

#[tokio::test(start_paused = true)]
async fn an_assignment_that_comes_back_while_it_is_withdrawn_is_acquired() {
    let (mut lanes, _) = assigned_lanes();
    lanes.own(P, (Term(1), 1));
    lanes.withdraw(P);
    // The task looks, sees no assignment and ends; nobody has taken note of that yet.
    tokio::task::yield_now().await;
    lanes.own(P, (Term(1), 2));
    assert_eq!(lanes.acquisitions.under_way(), 1);
    acquired(&mut lanes).await;
    assert!(lanes.is_wanted(P));
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_that_may_have_been_carried_out_is_seen_to_its_end() {
    let (mut lanes, store) = assigned_lanes();
    store.faults().lose_acquisition(P);
    lanes.own(P, (Term(1), 1));
    let met = || async {
        while store.faults().met() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = met() => {}
        _ = lanes.next() => panic!("the answer was lost"),
    }
    assert!(!lanes.withdraw(P));
    let acquired = acquired(&mut lanes).await;
    assert!(!lanes.is_wanted(P), "it is to be given up gracefully");
    lanes.begin(P, acquired);
    assert!(lanes.withdraw(P), "it is owned");
    assert!(lanes.acquisitions.is_empty());
}

#[tokio::test(start_paused = true)]
async fn in_a_cluster_the_leader_decides_what_follows_an_ownership() {
    let (mut lanes, _) = assigned_lanes();
    lanes.own(P, (Term(1), 1));
    let acquired = acquired(&mut lanes).await;
    let ours = acquired.epoch;
    lanes.begin(P, acquired);
    let fenced = LaneError::Fenced { partition: P, stored: Epoch(9), ours };
    lanes.end(P, &fenced, false);
    assert!(!lanes.owns(P) && lanes.acquisitions.under_way() == 0);
    lanes.own(P, (Term(1), 2));
    assert_eq!(lanes.acquisitions.under_way(), 1);
}

#[tokio::test(start_paused = true)]
async fn stores_that_go_away_together_have_one_line_and_another_master_has_its_own() {
    let mut lanes = lanes();
    let mut line_of = async |partition, after_s| {
        tokio::time::advance(Duration::from_secs(after_s)).await;
        lanes.note_down(PartitionId(partition))
    };
    assert!(line_of(0, 0).await);
    assert!(!line_of(1, 1).await, "with the first");
    assert!(!line_of(1, 20).await, "known, for another reason");
    assert!(line_of(2, 0).await, "another master");
    assert!(!line_of(3, 1).await, "with the other");
    assert_eq!(lanes.reach(), (0, 4));
    (0..4).for_each(|partition| lanes.note_up(PartitionId(partition), true));
    assert!(lanes.note_down(P), "away again, soon after it was back");
}
