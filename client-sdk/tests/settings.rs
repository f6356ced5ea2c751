//! Settings of destinations: partition 0 gives a change its version, the others get a copy.

#![allow(clippy::unwrap_used)]

mod fake;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fake::{Broker, Cluster, Peer, dest};
use mtimer_client::{
    Client, ConfigureError, DestinationSettings, ErrorCode, Pause, PauseRequest, RequestError,
};
use mtimer_protocol::ops::{Configure, ConfigureReply};
use mtimer_protocol::{ClientMessage, OpReply, Query, QueryAnswer, RequestOp, ServerMessage};
use mtimer_types::{SettingsVersion, StoredSettings};

/// Of the fake brokers' cluster.
const PARTITIONS: usize = 8;

/// The settings that each partition has of the one destination.
#[derive(Clone, Default)]
struct Partitions(Arc<Mutex<[Option<StoredSettings>; PARTITIONS]>>);

impl Partitions {
    fn versions(&self) -> Vec<u64> {
        self.0.lock().unwrap().iter().map(|row| row.as_ref().map_or(0, |row| row.version)).collect()
    }

    fn pause(&self) -> Pause {
        self.0.lock().unwrap()[0].clone().unwrap().settings.pause.unwrap()
    }

    /// Somebody else changes the settings in partition 0.
    fn interfere(&self) {
        let mut rows = self.0.lock().unwrap();
        let version = rows[0].as_ref().map_or(0, |row| row.version) + 1;
        rows[0] = Some(StoredSettings { dest: dest(), version, settings: DestinationSettings::default() });
    }

    fn apply(&self, op: &RequestOp) -> OpReply {
        let RequestOp::Configure(Configure { partition, dest, settings, version }) = op else {
            panic!("not about settings: {op:?}")
        };
        let row = &mut self.0.lock().unwrap()[usize::from(partition.0)];
        let present = row.as_ref().map_or(0, |row| row.version);
        let version = match *version {
            SettingsVersion::After(expected) if expected != present => {
                return ConfigureReply::Changed(present).into();
            }
            SettingsVersion::After(expected) => expected + 1,
            SettingsVersion::Given(version) => version,
        };
        if version > present {
            *row = Some(StoredSettings { dest: dest.clone(), version, settings: (**settings).clone() });
        }
        ConfigureReply::Done(version.max(present)).into()
    }

    /// Answers everything, operations of the partitions that `refuse` knows by what it says.
    fn serve(&self, mut peer: Peer, refuse: impl Fn(u16) -> Option<OpReply> + Send + 'static) {
        let this = self.clone();
        tokio::spawn(async move {
            while let Some(message) = peer.next().await {
                let answer = match message {
                    ClientMessage::Request(request) => {
                        let reply = |op: &RequestOp| {
                            let partition = op.subject().partition(PARTITIONS as u16).0;
                            refuse(partition).unwrap_or_else(|| this.apply(op))
                        };
                        let replies = request.ops.iter().map(reply).collect();
                        ServerMessage::Reply { corr: request.corr, replies }
                    }
                    ClientMessage::Query { corr, query: Query::Settings { partition } } => {
                        let row = this.0.lock().unwrap()[usize::from(partition)].clone();
                        let answer = QueryAnswer::Settings(row.into_iter().collect());
                        ServerMessage::Answer { corr, answer }
                    }
                    other => panic!("not about settings: {other:?}"),
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

fn request() -> PauseRequest {
    PauseRequest::new("ann", "it moves")
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_answered_when_every_partition_has_it() {
    let (mut cluster, client) = Cluster::start(2).await;
    let partitions = Partitions::default();
    std::mem::take(&mut cluster.peers).into_iter().for_each(|peer| partitions.serve(peer, |_| None));
    assert_eq!(client.pause(&dest(), request()).await, Ok(1));
    assert_eq!(partitions.versions(), [1; PARTITIONS]);
    let found = client.destination_settings(&dest()).await.unwrap();
    assert_eq!((found.version, found.partitions, found.of), (1, 8, 8));
    let pause = found.settings.pause.clone().unwrap();
    assert_eq!((pause.by.as_str(), pause.reason.as_str(), pause.until), ("ann", "it moves", None));
    assert_eq!(client.all_destination_settings().await.unwrap(), [found]);

    assert_eq!(client.resume(&dest(), Duration::from_secs(5)).await, Ok(2));
    assert_eq!(partitions.versions(), [2; PARTITIONS]);
    let ended = partitions.pause();
    assert_eq!((ended.since, ended.over_ms, ended.by.as_str()), (pause.since, 5_000, "ann"));
    assert!(ended.is_over(client.now()));
    assert_eq!(client.resume(&dest(), Duration::ZERO).await, Ok(2), "it is not paused: nothing changes");
    assert_eq!(partitions.pause(), ended);
}

#[tokio::test(start_paused = true)]
async fn a_destination_without_settings_has_the_default_ones() {
    let client = Partitions::default().client().await;
    let found = client.destination_settings(&dest()).await.unwrap();
    assert_eq!((found.version, found.settings.clone()), (0, DestinationSettings::default()));
    assert!(found.is_everywhere());
    assert_eq!(client.resume(&dest(), Duration::ZERO).await, Ok(0));
}

#[tokio::test(start_paused = true)]
async fn a_change_that_was_broken_off_is_seen_and_completed_by_a_repeat() {
    let partitions = Partitions::default();
    let broker = Broker::start().await;
    let (client, peer) = broker.connect().await;
    let refuses = Arc::new(Mutex::new(true));
    let does = Arc::clone(&refuses);
    partitions.serve(peer, move |partition| {
        let failed = OpReply::Failed { code: ErrorCode::Invalid, message: "no".into() };
        Some(failed).filter(|_| *does.lock().unwrap() && partition % 4 == 3)
    });
    let error = client.pause(&dest(), request()).await.unwrap_err();
    let ConfigureError::Request { stored: 6, error: RequestError::Refused { .. } } = &error else {
        panic!("{error:?}")
    };
    assert!(!error.has_no_side_effects() && !error.is_retryable());
    assert!(error.to_string().ends_with("each of 6 partitions has the settings"), "{error}");
    let found = client.destination_settings(&dest()).await.unwrap();
    assert_eq!((found.version, found.partitions, found.is_everywhere()), (1, 6, false));

    *refuses.lock().unwrap() = false;
    // The same again changes its beginning in nothing.
    let first = partitions.pause();
    assert_eq!(client.pause(&dest(), request()).await, Ok(1));
    assert_eq!((partitions.versions(), partitions.pause()), (vec![1; PARTITIONS], first));
}

#[tokio::test(start_paused = true)]
async fn of_two_changes_at_once_the_second_is_decided_anew() {
    let partitions = Partitions::default();
    let broker = Broker::start().await;
    let (client, peer) = broker.connect().await;
    let (others, once) = (partitions.clone(), Mutex::new(true));
    partitions.serve(peer, move |partition| {
        if partition == 0 && std::mem::replace(&mut *once.lock().unwrap(), false) {
            others.interfere();
        }
        None
    });
    assert_eq!(client.pause(&dest(), request()).await, Ok(2));
    assert_eq!(partitions.versions(), [2; PARTITIONS]);
    let error = client.configure(&dest(), 1, DestinationSettings::default()).await.unwrap_err();
    assert_eq!(error, ConfigureError::Changed { expected: 1, version: 2 });
    assert!(error.is_retryable() && error.has_no_side_effects());
}

#[tokio::test(start_paused = true)]
async fn settings_that_break_a_limit_are_not_sent() {
    let partitions = Partitions::default();
    let client = partitions.client().await;
    let error = client.pause(&dest(), PauseRequest::new("x".repeat(257), "")).await.unwrap_err();
    assert!(matches!(error, ConfigureError::Invalid(_)) && error.to_string().contains("257 bytes"));
    assert!(!error.is_retryable() && error.has_no_side_effects());
    assert_eq!(partitions.versions(), [0; PARTITIONS]);
}
