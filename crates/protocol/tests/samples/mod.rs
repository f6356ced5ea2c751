//! One sample of every message kind, and the bytes that it has had since version 1.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Debug;

use bytes::Bytes;
pub use mtimer_protocol::sample::{
    all_counts, all_forecast, all_pending, bulk_id, bulks, by_key, dest, extensions, full_timer, headers, id,
    import_id, key, plain_timer, settings, time,
};
use mtimer_protocol::*;
use mtimer_types::{
    Attempt, AttemptEnd, BulkFailure, BulkObstacle, DeadReason, DueSpan, Epoch, FailedAttempt, Filter,
    HandlerOutcome, Headers, ImportGoal, LateCause, Mode, PartitionId, Staging, StoredSettings, Target, Term,
    Timer,
};

fn named<M>((name, message): (&str, M)) -> (String, M) {
    (name.to_owned(), message)
}

/// Names each of these after the operation that it begins with, and numbers those of an operation.
fn numbered<T: Debug>(prefix: &str, all: Vec<T>) -> Vec<(String, T)> {
    let mut counts = BTreeMap::new();
    let name = |value: T| {
        let operation = operation_of(&value).to_lowercase();
        let count = counts.entry(operation.clone()).or_insert(0);
        *count += 1;
        (format!("{prefix}{operation}-{count}"), value)
    };
    all.into_iter().map(name).collect()
}

/// The name of the operation of a `RequestOp` or `OpReply`.
pub fn operation_of(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    text.split(['(', ' ']).next().unwrap().to_owned()
}

fn request(ops: Vec<RequestOp>) -> ClientMessage {
    ClientMessage::Request(Request { corr: 7, first_sent: time(0), ops })
}

fn settle(outcome: HandlerOutcome) -> ClientMessage {
    ClientMessage::Settle(vec![Settlement { id: id(), epoch: Epoch(3), attempt: 1, outcome }])
}

fn query(query: Query) -> ClientMessage {
    ClientMessage::Query { corr: 8, query }
}

/// A question for pending timers with every condition that there is.
fn some_pending() -> PendingQuery {
    PendingQuery {
        filter: Filter {
            key_prefix: Some("order-".into()),
            header: Some(("tenant".into(), "acme".into())),
            ..Filter::of(&dest())
        },
        retrying: Some(true),
        from: (time(5_000), id()),
        until: time(60_000),
        limit: 1_000,
        payloads: true,
        ..all_pending(9)
    }
}

/// A question for counts with every condition that there is.
fn some_counts() -> CountsQuery {
    let (group, app) = (Some("orders".into()), Some("billing".into()));
    CountsQuery { group, app, after: Some(dest()), limit: 1_000, ..all_counts(9) }
}

/// A question for a forecast with every condition that there is.
fn some_forecast() -> ForecastQuery {
    let (group, app) = (Some("orders".into()), Some("billing".into()));
    let (from, until) = ((time(60_000), id()), time(86_400_000));
    ForecastQuery { group, app, from, until, step_ms: 3_600_000, ..all_forecast(9) }
}

/// Every kind of message from a client, by name.
pub fn from_client() -> Vec<(String, ClientMessage)> {
    let hello = Hello {
        magic: MAGIC,
        min_version: 1,
        max_version: 1,
        client: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10,
        software: "shop/2".into(),
        token: "s3cret".into(),
        role: Role::Client,
    };
    let error = || "no".to_owned();
    let all = [
        ("hello", ClientMessage::Hello(hello)),
        ("register", ClientMessage::Register { registration: 1, dest: dest(), credit: 1_000 }),
        ("unregister", ClientMessage::Unregister { registration: 1 }),
        ("settle-ok", settle(HandlerOutcome::Ok)),
        ("settle-retry", settle(HandlerOutcome::Retry { after_ms: None, error: error() })),
        ("settle-retry-after", settle(HandlerOutcome::Retry { after_ms: Some(300), error: error() })),
        ("settle-fail", settle(HandlerOutcome::Fail { error: error() })),
        ("settle-not-begun", settle(HandlerOutcome::NotBegun)),
        ("settle-later", settle(HandlerOutcome::Later { after_ms: 86_400_000 })),
        ("extend", ClientMessage::Extend { id: id(), epoch: Epoch(3), attempt: 1, by_ms: 90_000 }),
        ("query-get-id", query(Query::Get(Target::Id(id())))),
        ("query-get-key", query(Query::Get(by_key()))),
        ("query-dead", query(Query::Dead { group: None, app: None, cursor: None, limit: 100 })),
        (
            "query-dead-more",
            query(Query::Dead {
                group: Some("orders".into()),
                app: Some("billing".into()),
                cursor: Some((9, 300)),
                limit: 1_000,
            }),
        ),
        ("query-unconfirmed", query(Query::Unconfirmed { cursor: None, limit: 100 })),
        ("query-status", query(Query::Status)),
        ("query-cluster", query(Query::Cluster)),
        ("query-broker", query(Query::Broker)),
        ("query-drain", query(Query::Drain { broker: "b2.example:7400".into(), drain: true })),
        ("query-ready", query(Query::Ready)),
        ("query-pending-all", query(Query::Pending(all_pending(9).into()))),
        ("query-pending", query(Query::Pending(some_pending().into()))),
        ("query-counts-all", query(Query::Counts(all_counts(9)))),
        ("query-counts", query(Query::Counts(some_counts()))),
        ("query-bulks", query(Query::Bulks { partition: 9 })),
        ("query-forecast-all", query(Query::Forecast(all_forecast(9)))),
        ("query-forecast", query(Query::Forecast(some_forecast()))),
        ("query-parked", query(Query::Parked { dest: dest(), cursor: Some((9, 300)), limit: 1_000 })),
        ("query-story-id", query(Query::Story(Target::Id(id())))),
        ("query-story-key", query(Query::Story(by_key()))),
        ("query-taken", query(Query::Taken { cursor: None, limit: 100 })),
        ("query-settings", query(Query::Settings { partition: 9 })),
        ("client-ping", ClientMessage::Ping(1)),
        ("client-pong", ClientMessage::Pong(u64::MAX)),
        ("goodbye", ClientMessage::Goodbye),
        ("peer-heartbeat", ClientMessage::Peer(PeerRequest::Heartbeat(heartbeat()))),
        ("peer-shares-asked", ClientMessage::Peer(share_request())),
        ("request-of-all", request(RequestOp::samples())),
    ];
    let requests = numbered("", RequestOp::samples()).into_iter().map(|(name, op)| (name, request(vec![op])));
    all.map(named).into_iter().chain(requests).collect()
}

const LOAD: BrokerLoad = BrokerLoad { sessions: 1, loaded: 2, in_flight: 3 };

/// The message of a broker to the leader.
pub fn heartbeat() -> Heartbeat {
    Heartbeat {
        cluster: "main".into(),
        partitions: 64,
        address: "b2.example:7400".into(),
        incarnation: 0x1122_3344_5566_7788,
        software: "mtimer/0.1.0".into(),
        weight: 100,
        seq: 5,
        heard: 4,
        term: Term(3),
        topology: (Term(3), 2),
        stopping: false,
        owned: vec![(PartitionId(1), Epoch(1_700_000_000_123))],
        unreachable: vec![PartitionId(2)],
        load: LOAD,
        epoch: Epoch(1_700_000_000_456),
    }
}

/// Two brokers, one of them being emptied, and three partitions, one of them nobody's.
pub fn topology() -> Topology {
    let broker = |address: &str, draining| BrokerEntry { address: address.into(), draining };
    Topology {
        term: Term(3),
        version: 2,
        leader: "b1.example:7400".into(),
        brokers: vec![broker("b1.example:7400", false), broker("b2.example:7400", true)],
        owners: vec![Some(0), Some(1), None],
    }
}

/// What a record has beside the timer.
fn rest() -> RecordRest {
    RecordRest { budget_from: 1, tried: 4, accepted: Some(time(5_500)), extensions: extensions() }
}

fn timer_view(timer: Timer, state: TimerState) -> TimerView {
    TimerView { timer, state, failed: 2, stopped: false, last_error: Some("no".into()), rest: rest() }
}

fn view(state: TimerState) -> ServerMessage {
    answer(QueryAnswer::Timer(Some(timer_view(plain_timer(), state).into())))
}

/// A timer whose second attempt is under way.
pub fn stored_settings() -> StoredSettings {
    StoredSettings { dest: dest(), version: 7, settings: settings() }
}

fn story() -> TimerStory {
    let attempt = |number| Attempt {
        number,
        epoch: Epoch(3),
        client: 0x0102,
        sent: Some(time(5_000)),
        late_ms: 300,
        late_by: Some(LateCause::Credit),
    };
    let failed =
        FailedAttempt { attempt: attempt(1), ended: time(5_500), end: AttemptEnd::Retry, error: "no".into() };
    TimerStory {
        view: timer_view(plain_timer(), TimerState::InFlight { epoch: Epoch(3), attempt: 2 }),
        attempts: vec![failed],
        tried: 2,
        under_way: Some(Attempt { sent: None, late_ms: 0, late_by: None, ..attempt(2) }),
        settling: None,
        waits_for: None,
        told: time(6_000),
    }
}

/// One that is parked.
fn waiting_story() -> TimerStory {
    let view = timer_view(plain_timer(), TimerState::Parked);
    TimerStory {
        view,
        attempts: vec![],
        tried: 2,
        under_way: None,
        settling: Some(2),
        waits_for: Some(LateCause::Parked),
        told: time(6_000),
    }
}

/// A retry with its payload, and one in flight without.
pub fn pending_rows() -> Vec<PendingRow> {
    let fire = time(5_000);
    let row = |timer, state| PendingRow { fire, view: timer_view(timer, state), payload_bytes: 5 };
    let without_payload = Timer { payload: Bytes::new(), ..full_timer() };
    vec![
        row(plain_timer(), TimerState::Retrying { fire, tier: 2 }),
        row(without_payload, TimerState::InFlight { epoch: Epoch(3), attempt: 2 }),
    ]
}

/// The views of pending rows.
fn pending_views() -> Vec<TimerView> {
    pending_rows().into_iter().map(|row| row.view).collect()
}

/// Some timers are due within a minute, others within a day.
pub fn forecast() -> QueryAnswer {
    let span = |begin, ms, timers| DueSpan { begin: time(begin), end: time(begin) + ms, timers };
    let spans = vec![span(0, 60_000, 12), span(60_000, 86_400_000, 70_000)];
    QueryAnswer::Forecast { spans, next: Some((time(120_000), id())), uncounted: 300 }
}

/// Counts that all differ.
pub fn counts() -> DestinationCounts {
    DestinationCounts {
        dest: dest(),
        pending: 70_000,
        retrying: 1,
        parked: 2,
        in_flight: 3,
        taken: 4,
        unconfirmed: 5,
        dead: 6,
        oldest_overdue: Some(time(0)),
        staged: 7,
    }
}

/// A bulk job in each state, one of them with a failure of each kind.
pub fn bulk_views() -> Vec<BulkView> {
    let why =
        [BulkObstacle::TooLate, BulkObstacle::PastDeadline, BulkObstacle::KeyTaken, BulkObstacle::TooFar];
    let failures = why.map(|why| BulkFailure { id: id(), why }).into();
    let bulk = bulks().remove(0);
    let done = BulkView {
        id: bulk_id(),
        bulk,
        state: BulkState::Done,
        begun: time(0),
        ended: Some(time(9_000)),
        done: 70_000,
        not_done: 4,
        failures,
    };
    let other = |state, ended| {
        let (done, not_done, failures) = (0, 0, vec![]);
        let bulk = bulks().remove(1);
        BulkView { id: bulk_id(), bulk, state, begun: time(1), ended, done, not_done, failures }
    };
    vec![
        done,
        other(BulkState::Stopped, Some(time(2))),
        other(BulkState::Working, None),
        other(BulkState::Waiting, None),
    ]
}

fn answer(answer: QueryAnswer) -> ServerMessage {
    ServerMessage::Answer { corr: 8, answer }
}

fn reply(replies: Vec<OpReply>) -> ServerMessage {
    ServerMessage::Reply { corr: 7, replies }
}

pub const CODES: [ErrorCode; 12] = [
    ErrorCode::Invalid,
    ErrorCode::Unauthorized,
    ErrorCode::Version,
    ErrorCode::NotOwner,
    ErrorCode::Unavailable,
    ErrorCode::StoreFull,
    ErrorCode::Overloaded,
    ErrorCode::Unknown,
    ErrorCode::NotReplicated,
    ErrorCode::Protocol,
    ErrorCode::Stopping,
    ErrorCode::LimitReached,
];

const REASONS: [DeadReason; 4] =
    [DeadReason::Exhausted, DeadReason::Failed, DeadReason::Stopped, DeadReason::AtMostOnce];

fn replies() -> Vec<(String, ServerMessage)> {
    let all = [
        ("reply-moved", reply(vec![OpReply::Moved { owner: "b2.example:7400".into() }])),
        ("reply-failed", reply(CODES.map(|code| OpReply::Failed { code, message: "no".into() }).into())),
        ("reply-of-all", reply(OpReply::samples())),
    ];
    let replies =
        numbered("reply-", OpReply::samples()).into_iter().map(|(name, one)| (name, reply(vec![one])));
    all.map(named).into_iter().chain(replies).collect()
}

fn answers() -> Vec<(&'static str, ServerMessage)> {
    let dead = |reason| DeadRow {
        timer: plain_timer(),
        reason,
        attempts: 6,
        last_error: Some("no".into()),
        died: time(700_000),
        rest: rest(),
    };
    let unconfirmed = UnconfirmedRow {
        timer: full_timer(),
        epoch: Epoch(1_700_000_000_123),
        since: time(6_000),
        failed: 2,
        last_error: Some("no".into()),
        rest: RecordRest::default(),
    };
    let goal = ImportGoal::Live { tier: 2 };
    let staged = TimerState::Staged { fire: time(5_000), staging: Staging { import: import_id(), goal } };
    let status = Status {
        sessions: 1,
        loaded: 2,
        loaded_bytes: 3,
        in_flight: 4,
        ready: 5,
        pending: 6,
        retrying: 7,
        parked: 8,
        taken: 9,
        dead: 10,
        residue: 11,
        keys: 12,
        staged: 17,
        counters: vec![("fired".into(), 13)],
        parked_destinations: vec![ParkedDestination { dest: dest(), parked: 14, sessions: 16 }],
        lost_brokers: vec![("b3.example:7400".into(), 15)],
        unreached_leaders: vec![("b4.example:7400".into(), "refused".into())],
        paused_destinations: vec![PausedDestination {
            dest: dest(),
            version: 18,
            pause: settings().pause.unwrap(),
        }],
        limited_destinations: vec![LimitedDestination {
            dest: dest(),
            limits: settings().limits,
            waiting: 19,
            oldest_ms: 20,
        }],
    };
    vec![
        ("answer-none", answer(QueryAnswer::Timer(None))),
        ("answer-pending", view(TimerState::Pending { fire: time(5_000) })),
        ("answer-retrying", view(TimerState::Retrying { fire: time(5_000), tier: 2 })),
        ("answer-parked", view(TimerState::Parked)),
        ("answer-in-flight", view(TimerState::InFlight { epoch: Epoch(3), attempt: 2 })),
        ("answer-unconfirmed", view(TimerState::Unconfirmed)),
        ("answer-dead", view(TimerState::Dead)),
        ("answer-staged", view(staged)),
        (
            "answer-dead-rows",
            answer(QueryAnswer::Dead { rows: REASONS.map(dead).into(), next: Some((9, 300)) }),
        ),
        ("answer-unconfirmed-rows", answer(QueryAnswer::Unconfirmed { rows: vec![unconfirmed], next: None })),
        ("answer-status", answer(QueryAnswer::Status(status))),
        ("answer-failed", answer(QueryAnswer::Failed { code: ErrorCode::Unavailable, message: "no".into() })),
        ("answer-moved", answer(QueryAnswer::Moved { owner: "b2.example:7400".into() })),
        ("answer-cluster", answer(QueryAnswer::Cluster(cluster_view()))),
        ("answer-broker", answer(QueryAnswer::Broker(broker_view()))),
        ("answer-done", answer(QueryAnswer::Done)),
        ("answer-ready", answer(QueryAnswer::Ready(vec![]))),
        ("answer-not-ready", answer(QueryAnswer::Ready(vec!["no".into()]))),
        ("answer-pending-none", answer(QueryAnswer::Pending { rows: vec![], next: None })),
        (
            "answer-pending-rows",
            answer(QueryAnswer::Pending { rows: pending_rows(), next: Some((time(5_000), id())) }),
        ),
        ("answer-counts-none", answer(QueryAnswer::Counts { rows: vec![], next: None, uncounted: 0 })),
        (
            "answer-counts",
            answer(QueryAnswer::Counts { rows: vec![counts()], next: Some(dest()), uncounted: 70_000 }),
        ),
        ("answer-bulks-none", answer(QueryAnswer::Bulks(vec![]))),
        ("answer-bulks", answer(QueryAnswer::Bulks(bulk_views()))),
        ("answer-forecast-none", answer(QueryAnswer::Forecast { spans: vec![], next: None, uncounted: 0 })),
        ("answer-forecast", answer(forecast())),
        ("answer-timers-none", answer(QueryAnswer::Timers { rows: vec![], next: None })),
        ("answer-story-none", answer(QueryAnswer::Story(None))),
        ("answer-story", answer(QueryAnswer::Story(Some(story().into())))),
        ("answer-story-waits", answer(QueryAnswer::Story(Some(waiting_story().into())))),
        ("answer-timers", answer(QueryAnswer::Timers { rows: pending_views(), next: Some((9, 300)) })),
        ("answer-settings-none", answer(QueryAnswer::Settings(vec![]))),
        ("answer-settings", answer(QueryAnswer::Settings(vec![stored_settings()]))),
    ]
}

fn cluster_view() -> ClusterView {
    let member = MemberView {
        address: "b2.example:7400".into(),
        software: "mtimer/0.1.0".into(),
        weight: 100,
        heartbeat_age_ms: 300,
        stopping: false,
        held_back_ms: 0,
        owned: 1,
        unreachable: 1,
        load: LOAD,
    };
    ClusterView {
        topology: topology(),
        answered_by: "b1.example:7400".into(),
        leads: true,
        members: vec![member],
    }
}

fn broker_view() -> BrokerView {
    let partition = PartitionView {
        partition: PartitionId(1),
        epoch: Epoch(1_700_000_000_123),
        reachable: true,
        pending: 1,
        overdue: 2,
        loaded: 3,
        in_flight: 4,
        retrying: 5,
        parked: 6,
        taken: 7,
        dead: 8,
    };
    let client = ClientView { dest: dest(), sessions: 1, credit: 1_000, in_flight: 4, waiting: 2 };
    BrokerView {
        address: "b2.example:7400".into(),
        load: LOAD,
        loaded_bytes: 300,
        partitions: vec![partition],
        clients: vec![client],
    }
}

fn share_request() -> PeerRequest {
    let ask = ShareRequest {
        dest: dest(),
        version: 4,
        limits: sample::settings().limits,
        made: 90_000,
        held: ShareParts { slots: 17, starts: 333, burst: 33 },
        running: 12,
        waiting: 500,
        started: 100,
        longest_ms: 30_000,
        returned: 0,
    };
    PeerRequest::Shares { incarnation: 7, asks: vec![ask] }
}

fn peer_answers() -> Vec<(&'static str, ServerMessage)> {
    let epoch = Epoch(1_700_000_000_456);
    let heard = |topology| ServerMessage::Peer(PeerAnswer::Heard { seq: 5, term: Term(3), topology, epoch });
    let leader = Some("b1.example:7400".into());
    let parts = ShareParts { slots: 16, starts: 334, burst: 34 };
    let share = Share { dest: dest(), made: 90_000, parts, tokens: 1_000, lasts_ms: 1_000 };
    vec![
        ("peer-heard", heard(None)),
        ("peer-heard-topology", heard(Some(topology()))),
        ("peer-not-leader", ServerMessage::Peer(PeerAnswer::NotLeader { leader, term: Term(3) })),
        ("peer-refused", ServerMessage::Peer(PeerAnswer::Refused { message: "no".into() })),
        ("peer-shares", ServerMessage::Peer(PeerAnswer::Shares(vec![share]))),
    ]
}

/// Every kind of message from a broker, by name.
pub fn from_server() -> Vec<(String, ServerMessage)> {
    let welcome = Welcome {
        version: 1,
        session: 42,
        cluster: "main".into(),
        software: "mtimer/0.1.0".into(),
        store: "embedded".into(),
        durability: "embedded-sync".into(),
        partitions: 64,
        now: time(0),
        heartbeat_ms: 5_000,
        max_frame: 4_194_304,
        max_batch: 2_000,
        broker: None,
    };
    let of_a_cluster =
        Welcome { store: "redis".into(), broker: Some("b1.example:7400".into()), ..welcome.clone() };
    let delivery = Delivery {
        id: id(),
        key: Some(key()),
        due: time(5_000),
        epoch: Epoch(1_700_000_000_123),
        attempt: 1,
        mode: Mode::AtMostOnce,
        timeout_ms: 30_000,
        payload: Bytes::from_static(b"hello"),
        headers: Headers::NONE,
    };
    let traced = Delivery { headers: headers(), ..delivery.clone() };
    let refused =
        [SettleRefusal::NotYours, SettleRefusal::Late, SettleRefusal::Moved].map(|why| (id(), why)).into();
    let mut all = vec![
        ("welcome", ServerMessage::Welcome(welcome)),
        ("welcome-cluster", ServerMessage::Welcome(of_a_cluster)),
        ("refused", ServerMessage::Refused { code: ErrorCode::Unauthorized, message: "no".into() }),
    ];
    all.extend(answers());
    all.extend([
        ("deliver", ServerMessage::Deliver { registration: 1, deliveries: vec![delivery] }),
        ("deliver-headers", ServerMessage::Deliver { registration: 1, deliveries: vec![traced] }),
        ("settled", ServerMessage::Settled { accepted: 300, refused }),
        ("server-ping", ServerMessage::Ping(1)),
        ("server-pong", ServerMessage::Pong(1, time(0))),
        ("closing", ServerMessage::Closing),
        ("topology", ServerMessage::Topology(topology())),
    ]);
    all.extend(peer_answers());
    let (registration, code) = (1, ErrorCode::Unauthorized);
    all.push((
        "register-refused",
        ServerMessage::RegisterRefused { registration, code, message: "no".into() },
    ));
    all.into_iter().map(named).chain(replies()).collect()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
