//! Bulk jobs: filed in every partition, added up, stopped.

#![allow(clippy::unwrap_used)]

mod fake;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fake::{Broker, Cluster, Peer, START, dest};
use mtimer_client::{
    Bulk, BulkAction, BulkError, BulkFailure, BulkId, BulkObstacle, BulkProgress, BulkState, Client,
    ErrorCode, Filter, PartitionId, RequestError, TimerId,
};
use mtimer_protocol::ops::{BeginBulk, BeginBulkReply, StopBulk, StopBulkReply};
use mtimer_protocol::{BulkView, ClientMessage, OpReply, Query, QueryAnswer, RequestOp, ServerMessage};

/// Of the fake brokers' cluster.
const PARTITIONS: u16 = 8;

const ID: BulkId = BulkId(7);

fn cancel() -> Bulk {
    Bulk::new(BulkAction::Cancel, dest())
}

/// A job that has begun at `partition` ms after the start.
fn view(id: BulkId, partition: u16, state: BulkState) -> BulkView {
    let ended = matches!(state, BulkState::Done | BulkState::Stopped);
    BulkView {
        id,
        bulk: cancel(),
        state,
        begun: START + u64::from(partition),
        ended: ended.then_some(START + 1_000 + u64::from(partition)),
        done: 10,
        not_done: 0,
        failures: vec![],
    }
}

/// The jobs of all partitions, and every operation that came.
#[derive(Clone, Default)]
struct Jobs(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    jobs: BTreeMap<u16, Vec<BulkView>>,
    ops: Vec<RequestOp>,
}

impl Jobs {
    /// Partitions with these jobs.
    fn of(views: impl Fn(u16) -> Vec<BulkView>) -> Self {
        let jobs = (0..PARTITIONS).map(|partition| (partition, views(partition))).collect();
        Self(Arc::new(Mutex::new(Known { jobs, ops: vec![] })))
    }

    /// The partitions that have a job of this id.
    fn partitions(&self, id: BulkId) -> Vec<u16> {
        let known = self.0.lock().unwrap();
        let has = |views: &[BulkView]| views.iter().any(|view| view.id == id);
        known.jobs.iter().filter(|(_, views)| has(views)).map(|(partition, _)| *partition).collect()
    }

    fn ops(&self) -> Vec<RequestOp> {
        self.0.lock().unwrap().ops.clone()
    }

    fn apply(&self, op: &RequestOp) -> OpReply {
        let mut known = self.0.lock().unwrap();
        known.ops.push(op.clone());
        match op {
            RequestOp::BeginBulk(BeginBulk { partition, id, bulk }) => {
                let jobs = known.jobs.entry(partition.0).or_default();
                if jobs.iter().all(|view| view.id != *id) {
                    jobs.push(BulkView {
                        bulk: (**bulk).clone(),
                        ..view(*id, partition.0, BulkState::Working)
                    });
                }
                BeginBulkReply::Begun.into()
            }
            RequestOp::StopBulk(StopBulk { partition, id, group, app }) => {
                let jobs = known.jobs.entry(partition.0).or_default();
                let is_it = |view: &&mut BulkView| {
                    let filter = &view.bulk.filter;
                    view.id == *id && filter.group == *group && filter.app == *app
                };
                match jobs.iter_mut().find(is_it) {
                    None => StopBulkReply::NotFound,
                    Some(view) if view.state == BulkState::Done => StopBulkReply::Done,
                    Some(view) => {
                        (view.state, view.ended) = (BulkState::Stopped, Some(START + 2_000));
                        StopBulkReply::Stopped
                    }
                }
                .into()
            }
            other => panic!("not about a bulk job: {other:?}"),
        }
    }

    /// Answers everything, operations of the partitions that `refuse` knows by what it says.
    fn serve(&self, mut peer: Peer, refuse: impl Fn(u16) -> Option<OpReply> + Send + 'static) {
        let this = self.clone();
        tokio::spawn(async move {
            while let Some(message) = peer.next().await {
                let answer = match message {
                    ClientMessage::Request(request) => {
                        let reply = |op: &RequestOp| {
                            let partition = op.subject().partition(PARTITIONS).0;
                            refuse(partition).unwrap_or_else(|| this.apply(op))
                        };
                        let replies = request.ops.iter().map(reply).collect();
                        ServerMessage::Reply { corr: request.corr, replies }
                    }
                    ClientMessage::Query { corr, query: Query::Bulks { partition } } => {
                        let known = this.0.lock().unwrap().jobs.get(&partition).cloned();
                        let answer = QueryAnswer::Bulks(known.unwrap_or_default());
                        ServerMessage::Answer { corr, answer }
                    }
                    other => panic!("not about bulk jobs: {other:?}"),
                };
                peer.send(answer).await;
            }
        });
    }

    /// One broker with all of them, and its client.
    async fn client(&self) -> Client {
        let broker = Broker::start().await;
        let (client, peer) = broker.connect().await;
        self.serve(peer, |_| None);
        client
    }
}

fn failed(code: ErrorCode) -> OpReply {
    OpReply::Failed { code, message: "no".into() }
}

fn all_partitions() -> Vec<u16> {
    (0..PARTITIONS).collect()
}

#[tokio::test(start_paused = true)]
async fn a_job_is_filed_in_every_partition_at_its_owner() {
    let (mut cluster, client) = Cluster::start(2).await;
    let jobs = [Jobs::default(), Jobs::default()];
    for (jobs, peer) in jobs.iter().zip(std::mem::take(&mut cluster.peers)) {
        jobs.serve(peer, |_| None);
    }
    let bulk = Bulk { rate: 100, dry_run: true, ..cancel() };
    let id = client.begin_bulk(bulk.clone()).await.unwrap();
    assert_eq!(jobs.each_ref().map(|jobs| jobs.partitions(id)), [[0, 2, 4, 6], [1, 3, 5, 7]]);
    let progress = client.bulk(id).await.unwrap().unwrap();
    assert_eq!((progress.bulk, progress.state, progress.missing), (bulk, BulkState::Working, 0));
    // Another one has another id.
    assert_ne!(client.begin_bulk(cancel()).await.unwrap(), id);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_breaks_a_limit_is_not_sent() {
    let jobs = Jobs::default();
    let client = jobs.client().await;
    let bulk = Bulk { from: START + 1, until: START, ..cancel() };
    let error = client.begin_bulk(bulk).await.unwrap_err();
    assert!(matches!(error, BulkError::Invalid(_)), "{error:?}");
    assert!(!error.is_retryable() && error.has_no_side_effects() && jobs.ops().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_error_names_the_job_and_a_repeat_under_its_id_fills_the_gaps() {
    let jobs = Jobs::default();
    let broker = Broker::start().await;
    let (client, peer) = broker.connect().await;
    let refused = Arc::new(Mutex::new(Some(failed(ErrorCode::Invalid))));
    let refuses = Arc::clone(&refused);
    jobs.serve(peer, move |partition| refuses.lock().unwrap().clone().filter(|_| partition % 4 == 3));
    let error = client.begin_bulk(cancel()).await.unwrap_err();
    let BulkError::Request { id, begun: 6, error: RequestError::Refused { .. } } = error.clone() else {
        panic!("{error:?}")
    };
    assert!(!error.has_no_side_effects() && !error.is_retryable());
    let text = error.to_string();
    assert!(text.contains(&id.to_string()) && text.ends_with("it was begun in 6 partitions"), "{text}");
    assert_eq!(client.bulk(id).await.unwrap().unwrap().missing, 2);

    *refused.lock().unwrap() = Some(BeginBulkReply::TooMany(16).into());
    let error = client.begin_bulk_as(id, cancel()).await.unwrap_err();
    assert_eq!(error, BulkError::TooMany { id, begun: 6, jobs: 16 });
    assert!(error.is_retryable() && error.to_string().starts_with("16 bulk jobs"), "{error}");

    *refused.lock().unwrap() = None;
    assert_eq!(client.begin_bulk_as(id, cancel()).await, Ok(()));
    assert_eq!(jobs.partitions(id), all_partitions());
    let progress = client.bulk(id).await.unwrap().unwrap();
    assert_eq!((progress.missing, progress.done), (0, 10 * u64::from(PARTITIONS)), "each has it once");
}

#[tokio::test(start_paused = true)]
async fn what_no_partition_has_done_has_no_side_effects() {
    let jobs = Jobs::default();
    let broker = Broker::start().await;
    let (client, peer) = broker.connect().await;
    jobs.serve(peer, |_| Some(failed(ErrorCode::Unauthorized)));
    let error = client.begin_bulk(cancel()).await.unwrap_err();
    assert!(error.has_no_side_effects() && !error.is_retryable(), "{error:?}");
    assert!(error.to_string().ends_with("it was begun in no partition"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_progress_is_the_sum_of_all_partitions() {
    let failure = |n: u64| {
        let id = TimerId::new(START, START, PartitionId(1), n);
        BulkFailure { id, why: BulkObstacle::TooLate }
    };
    let jobs = Jobs::of(|partition| match partition {
        0 => vec![BulkView { not_done: 1, failures: vec![failure(0)], ..view(ID, 0, BulkState::Done) }],
        1 => {
            let failures = (1..101).map(failure).collect();
            vec![BulkView { not_done: 200, failures, ..view(ID, 1, BulkState::Working) }]
        }
        2 => vec![view(BulkId(9), 2, BulkState::Done)],
        3 => vec![view(ID, 3, BulkState::Stopped), view(BulkId(9), 3, BulkState::Done)],
        _ => vec![view(ID, partition, BulkState::Waiting)],
    });
    let client = jobs.client().await;
    let expected = BulkProgress {
        id: ID,
        bulk: cancel(),
        state: BulkState::Working,
        partitions: PARTITIONS,
        ended_partitions: 2,
        missing: 1,
        begun: START,
        ended: None,
        done: 70,
        not_done: 201,
        failures: (0..100).map(failure).collect(),
    };
    assert_eq!(client.bulk(ID).await, Ok(Some(expected.clone())));
    let other = BulkProgress {
        id: BulkId(9),
        state: BulkState::Done,
        missing: 6,
        begun: START + 2,
        ended: Some(START + 1_003),
        done: 20,
        not_done: 0,
        failures: vec![],
        ..expected.clone()
    };
    assert!(other.has_ended() && !expected.has_ended());
    assert_eq!(client.bulks().await, Ok(vec![expected, other]), "oldest first");
    assert_eq!(client.bulk(BulkId(8)).await, Ok(None));
}

#[tokio::test(start_paused = true)]
async fn without_one_partition_there_is_no_progress() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    tokio::spawn(async move {
        while let Some(ClientMessage::Query { corr, query: Query::Bulks { partition } }) = peer.next().await {
            let answer = match partition {
                5 => QueryAnswer::Failed { code: ErrorCode::Unauthorized, message: "no".into() },
                _ => QueryAnswer::Bulks(vec![view(ID, partition, BulkState::Done)]),
            };
            peer.send(ServerMessage::Answer { corr, answer }).await;
        }
    });
    let error = client.bulk(ID).await.unwrap_err();
    assert!(matches!(error, RequestError::Refused { code: ErrorCode::Unauthorized, .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_job_is_stopped_in_every_partition_by_the_names_of_its_filter() {
    let jobs = Jobs::of(|partition| match partition {
        0 => vec![view(ID, 0, BulkState::Done)],
        7 => vec![],
        _ => vec![view(ID, partition, BulkState::Working)],
    });
    let client = jobs.client().await;
    let stopped = client.stop_bulk(ID).await.unwrap().unwrap();
    assert_eq!((stopped.state, stopped.ended), (BulkState::Stopped, Some(START + 2_000)));
    assert_eq!((stopped.ended_partitions, stopped.missing), (7, 1));
    let stop = |partition| {
        let Filter { group, app, .. } = Filter::of(&dest());
        RequestOp::from(StopBulk { partition: PartitionId(partition), id: ID, group, app })
    };
    assert_eq!(jobs.ops(), all_partitions().into_iter().map(stop).collect::<Vec<_>>());
    // None is asked to stop what none has.
    assert_eq!(client.stop_bulk(BulkId(8)).await, Ok(None));
    assert_eq!(jobs.ops().len(), usize::from(PARTITIONS));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_could_not_be_stopped_everywhere_is_an_error() {
    let jobs = Jobs::of(|partition| vec![view(ID, partition, BulkState::Working)]);
    let broker = Broker::start().await;
    let (client, peer) = broker.connect().await;
    jobs.serve(peer, |partition| (partition == 5).then(|| failed(ErrorCode::Unauthorized)));
    let error = client.stop_bulk(ID).await.unwrap_err();
    assert!(matches!(error, RequestError::Refused { code: ErrorCode::Unauthorized, .. }), "{error:?}");
    let progress = client.bulk(ID).await.unwrap().unwrap();
    assert_eq!((progress.state, progress.ended_partitions), (BulkState::Working, 7));
}

#[tokio::test(start_paused = true)]
async fn an_observer_looks_at_jobs_and_begins_none() {
    let jobs = Jobs::of(|partition| vec![view(ID, partition, BulkState::Done)]);
    let broker = Broker::start().await;
    let (client, peer) = tokio::join!(broker.client().observer().connect(), broker.accept());
    let client = client.unwrap();
    jobs.serve(peer, |_| None);
    assert_eq!(client.bulks().await.unwrap().len(), 1);
    let error = client.begin_bulk(cancel()).await.unwrap_err();
    assert!(matches!(error, BulkError::Request { error: RequestError::Observer, .. }), "{error:?}");
    assert!(error.has_no_side_effects());
}
