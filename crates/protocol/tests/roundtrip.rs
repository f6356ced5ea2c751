//! A message that is written is read again, with any values in it.

#![allow(clippy::unwrap_used)]

mod samples;

use bytes::{Bytes, BytesMut};
use mtimer_protocol::ops::{CancelReply, ScheduleReply};
use mtimer_protocol::sample::Parts;
use mtimer_protocol::{
    BrokerEntry, BrokerLoad, BrokerView, BulkState, BulkView, ClientMessage, ClientView, ClusterView,
    CountsQuery, Delivery, DestinationCounts, ErrorCode, ForecastQuery, Heartbeat, MemberView, OpReply,
    PartitionView, PeerAnswer, PeerRequest, PendingQuery, PendingRow, Query, QueryAnswer, RecordRest,
    Request, RequestOp, ServerMessage, SettleRefusal, Settlement, Share, ShareParts, ShareRequest,
    TimerState, TimerView, Topology, Welcome, decode, encode,
};
use mtimer_types::{
    Bulk, BulkAction, BulkFailure, BulkId, BulkObstacle, DeadReason, DeliveryLimits, DeliveryRate,
    Destination, DestinationSettings, DueSpan, Epoch, Extensions, Filter, HandlerOutcome, Headers,
    ImportGoal, ImportId, Key, KeyPolicy, Mode, PartitionId, Pause, RetryTiers, SettingsVersion, Staging,
    StoredSettings, Target, Term, Time, Timer, TimerId,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use samples::CODES;

const BULK_STATES: [BulkState; 4] =
    [BulkState::Waiting, BulkState::Working, BulkState::Stopped, BulkState::Done];

fn time() -> impl Strategy<Value = Time> {
    (0..=Time::MAX.as_ms()).prop_map(Time::from_ms)
}

fn id() -> impl Strategy<Value = TimerId> {
    any::<u128>().prop_map(TimerId::from_u128)
}

fn dest() -> impl Strategy<Value = Destination> {
    ("[a-zé]{1,20}", "[a-z]{1,20}").prop_map(|(group, app)| Destination::new(&group, &app).unwrap())
}

fn key() -> impl Strategy<Value = Key> {
    "[a-z0-9/é]{1,60}".prop_map(|key| Key::new(&key).unwrap())
}

fn payload() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..600).prop_map(Bytes::from)
}

fn headers() -> impl Strategy<Value = Headers> {
    let pairs = prop::collection::btree_map("[a-z0-9._-]{1,9}", "[^\\p{Cc}]{0,40}", 0..5);
    prop_oneof![Just(Headers::NONE), pairs.prop_map(|pairs| Headers::new(pairs).unwrap())]
}

fn extensions() -> impl Strategy<Value = Extensions> {
    let fields = prop::collection::btree_map(any::<u32>(), vec(any::<u8>(), 0..60), 1..5);
    prop_oneof![Just(Extensions::NONE), fields.prop_map(|fields| Extensions::new(fields).unwrap())]
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::AtLeastOnce), Just(Mode::AtMostOnce)]
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![id().prop_map(Target::Id), (dest(), key()).prop_map(|(d, k)| Target::Key(d, k))]
}

prop_compose! {
    fn timer()(
        id in id(),
        dest in dest(),
        key in option::of(key()),
        due in time(),
        mode in mode(),
        deadline in option::of(time()),
        callback_timeout_ms: Option<u32>,
        retry in option::of(vec(any::<u32>(), 0..32).prop_map(RetryTiers)),
        payload in payload(),
        headers in headers(),
        extensions in extensions(),
    ) -> Timer {
        Timer { id, dest, key, due, mode, deadline, callback_timeout_ms, retry, payload, headers, extensions }
    }
}

prop_compose! {
    fn filter()(
        names in (option::of(".{0,20}"), option::of(".{0,20}"), option::of(".{0,20}")),
        header in option::of((".{0,20}", ".{0,20}")),
    ) -> Filter {
        let (group, app, key_prefix) = names;
        Filter { group, app, key_prefix, header }
    }
}

fn bulk_action() -> impl Strategy<Value = BulkAction> {
    prop_oneof![
        Just(BulkAction::Cancel),
        any::<i64>().prop_map(|ms| BulkAction::Shift { ms }),
        time().prop_map(|due| BulkAction::MoveTo { due }),
        Just(BulkAction::Replay),
        Just(BulkAction::Purge),
        any::<u128>().prop_map(|n| BulkAction::Release { import: ImportId(n) }),
        any::<u128>().prop_map(|n| BulkAction::Withdraw { import: ImportId(n) }),
    ]
}

fn bulk_id() -> impl Strategy<Value = BulkId> {
    any::<u128>().prop_map(BulkId)
}

prop_compose! {
    fn bulk()(
        action in bulk_action(),
        filter in filter(),
        times in (time(), time()),
        rest: (Option<bool>, u32, bool),
    ) -> Bulk {
        let ((from, until), (retrying, rate, dry_run)) = (times, rest);
        Bulk { action, filter, retrying, from, until, rate, dry_run }
    }
}

prop_compose! {
    fn pause()(
        since in time(),
        until in option::of(time()),
        over_ms in any::<u64>(),
        by in ".{0,20}",
        reason in ".{0,20}",
    ) -> Pause {
        Pause { since, until, over_ms, by, reason }
    }
}

fn settings() -> impl Strategy<Value = (PartitionId, Destination, DestinationSettings, SettingsVersion)> {
    let version = prop_oneof![
        any::<u64>().prop_map(SettingsVersion::After),
        any::<u64>().prop_map(SettingsVersion::Given),
    ];
    let settings = (option::of(pause()), any::<bool>(), delivery_limits())
        .prop_map(|(pause, strict_priority, limits)| DestinationSettings { pause, strict_priority, limits });
    (partition(), dest(), settings, version)
}

fn stored_settings() -> impl Strategy<Value = StoredSettings> {
    (settings(), any::<u64>()).prop_map(|((_, dest, settings, _), version)| StoredSettings {
        dest,
        version,
        settings,
    })
}

fn op() -> impl Strategy<Value = RequestOp> {
    let policy = prop_oneof![Just(KeyPolicy::Create), Just(KeyPolicy::Replace), Just(KeyPolicy::Keep)];
    let timer = (timer().prop_map(Into::into), policy);
    let parts = (timer, target(), id(), time(), any::<u64>(), (partition(), bulk_id(), bulk()), settings());
    let parts = parts.prop_map(|(timer, target, retained, time, request, bulk, settings)| Parts {
        timer,
        target,
        retained,
        time,
        request,
        bulk,
        settings,
    });
    let arbitrary = (0..RequestOp::NAMES.len(), parts);
    prop_oneof![
        5 => arbitrary.prop_map(|(nth, mut parts)| RequestOp::arbitrary(nth, &mut parts)),
        1 => prop::sample::select(RequestOp::samples()),
    ]
}

fn outcome() -> impl Strategy<Value = HandlerOutcome> {
    prop_oneof![
        Just(HandlerOutcome::Ok),
        (any::<Option<u32>>(), ".{0,99}")
            .prop_map(|(after_ms, error)| HandlerOutcome::Retry { after_ms, error }),
        ".{0,99}".prop_map(|error| HandlerOutcome::Fail { error }),
        Just(HandlerOutcome::NotBegun),
        any::<u32>().prop_map(|after_ms| HandlerOutcome::Later { after_ms }),
    ]
}

fn address() -> impl Strategy<Value = String> {
    "[a-z0-9.]{1,30}:[0-9]{1,5}"
}

fn partition() -> impl Strategy<Value = PartitionId> {
    any::<u16>().prop_map(PartitionId)
}

fn load() -> impl Strategy<Value = BrokerLoad> {
    any::<(u64, u64, u64)>().prop_map(|(sessions, loaded, in_flight)| BrokerLoad {
        sessions,
        loaded,
        in_flight,
    })
}

prop_compose! {
    fn topology()(
        term: u64,
        version: u64,
        leader in address(),
        brokers in vec((address(), any::<bool>()), 0..20),
        owners in vec(any::<Option<u16>>(), 0..200),
    ) -> Topology {
        let entry = |(address, draining)| BrokerEntry { address, draining };
        Topology { term: Term(term), version, leader, brokers: brokers.into_iter().map(entry).collect(), owners }
    }
}

prop_compose! {
    fn heartbeat()(
        names in (".{0,20}", address(), ".{0,20}"),
        numbers: (u16, u64, u16, u64, u64),
        terms: (u64, u64, u64, u64),
        stopping: bool,
        owned in vec((partition(), any::<u64>().prop_map(Epoch)), 0..100),
        unreachable in vec(partition(), 0..100),
        load in load(),
    ) -> Heartbeat {
        let (cluster, address, software) = names;
        let (partitions, incarnation, weight, seq, heard) = numbers;
        let (term, topology, epoch) = (Term(terms.0), (Term(terms.1), terms.2), Epoch(terms.3));
        Heartbeat {
            cluster, partitions, address, incarnation, software, weight, seq, heard, term, topology, stopping,
            owned, unreachable, load, epoch,
        }
    }
}

prop_compose! {
    fn member()(
        names in (address(), ".{0,20}"),
        numbers: (u16, u64, u64, u32, u32),
        stopping: bool,
        load in load(),
    ) -> MemberView {
        let (address, software) = names;
        let (weight, heartbeat_age_ms, held_back_ms, owned, unreachable) = numbers;
        MemberView { address, software, weight, heartbeat_age_ms, stopping, held_back_ms, owned, unreachable, load }
    }
}

fn partition_view() -> impl Strategy<Value = PartitionView> {
    (partition(), any::<(u64, bool)>(), any::<[u64; 8]>()).prop_map(|(partition, (epoch, reachable), n)| {
        let [pending, overdue, loaded, in_flight, retrying, parked, taken, dead] = n;
        let epoch = Epoch(epoch);
        PartitionView {
            partition,
            epoch,
            reachable,
            pending,
            overdue,
            loaded,
            in_flight,
            retrying,
            parked,
            taken,
            dead,
        }
    })
}

fn broker_view() -> impl Strategy<Value = BrokerView> {
    let client =
        (dest(), any::<(u32, u64, u64, u64)>()).prop_map(|(dest, (sessions, credit, in_flight, waiting))| {
            ClientView { dest, sessions, credit, in_flight, waiting }
        });
    (address(), load(), any::<u64>(), vec(partition_view(), 0..50), vec(client, 0..20)).prop_map(
        |(address, load, loaded_bytes, partitions, clients)| BrokerView {
            address,
            load,
            loaded_bytes,
            partitions,
            clients,
        },
    )
}

prop_compose! {
    fn pending_query()(
        filter in filter(),
        from in (time(), id()),
        until in time(),
        rest: (u16, Option<bool>, u32, bool, bool),
    ) -> PendingQuery {
        let (partition, retrying, limit, payloads, staged) = rest;
        PendingQuery { partition, filter, retrying, from, until, limit, payloads, staged }
    }
}

fn staging() -> impl Strategy<Value = Staging> {
    let goal = prop_oneof![
        any::<u8>().prop_map(|tier| ImportGoal::Live { tier }),
        time().prop_map(|died| ImportGoal::Dead { reason: DeadReason::Stopped, died }),
        (any::<u64>(), time())
            .prop_map(|(epoch, since)| ImportGoal::Unconfirmed { epoch: Epoch(epoch), since }),
    ];
    (any::<u128>(), goal).prop_map(|(import, goal)| Staging { import: ImportId(import), goal })
}

fn state() -> impl Strategy<Value = TimerState> {
    prop_oneof![
        time().prop_map(|fire| TimerState::Pending { fire }),
        (time(), any::<u8>()).prop_map(|(fire, tier)| TimerState::Retrying { fire, tier }),
        any::<(u64, u32)>()
            .prop_map(|(epoch, attempt)| TimerState::InFlight { epoch: Epoch(epoch), attempt }),
        (time(), staging()).prop_map(|(fire, staging)| TimerState::Staged { fire, staging }),
    ]
}

prop_compose! {
    fn pending_row()(
        fire in time(),
        timer in timer(),
        state in state(),
        rest: (u32, bool, u32),
        last_error in option::of(".{0,40}"),
    ) -> PendingRow {
        let (failed, stopped, payload_bytes) = rest;
        let (budget_from, tried, accepted) = (failed / 2, failed, Some(fire));
        let rest = RecordRest { budget_from, tried, accepted, extensions: timer.extensions.clone() };
        PendingRow { fire, view: TimerView { timer, state, failed, stopped, last_error, rest }, payload_bytes }
    }
}

fn pending_answer() -> impl Strategy<Value = QueryAnswer> {
    (vec(pending_row(), 0..20), option::of((time(), id())))
        .prop_map(|(rows, next)| QueryAnswer::Pending { rows, next })
}

prop_compose! {
    fn counts_query()(
        group in option::of(".{0,20}"),
        app in option::of(".{0,20}"),
        after in option::of(dest()),
        rest: (u16, u32),
    ) -> CountsQuery {
        let (partition, limit) = rest;
        CountsQuery { partition, group, app, after, limit }
    }
}

prop_compose! {
    fn counts()(dest in dest(), n: [u64; 8], oldest_overdue in option::of(time())) -> DestinationCounts {
        let [pending, retrying, parked, in_flight, taken, unconfirmed, dead, staged] = n;
        DestinationCounts {
            dest,
            pending,
            retrying,
            parked,
            in_flight,
            taken,
            unconfirmed,
            dead,
            oldest_overdue,
            staged,
        }
    }
}

fn counts_answer() -> impl Strategy<Value = QueryAnswer> {
    (vec(counts(), 0..20), option::of(dest()), any::<u64>())
        .prop_map(|(rows, next, uncounted)| QueryAnswer::Counts { rows, next, uncounted })
}

prop_compose! {
    fn forecast_query()(
        group in option::of(".{0,20}"),
        app in option::of(".{0,20}"),
        from in (time(), id()),
        until in time(),
        rest: (u16, u64),
    ) -> ForecastQuery {
        let (partition, step_ms) = rest;
        ForecastQuery { partition, group, app, from, until, step_ms }
    }
}

fn forecast() -> impl Strategy<Value = QueryAnswer> {
    let span = (time(), time(), any::<u64>()).prop_map(|(begin, end, timers)| DueSpan { begin, end, timers });
    (vec(span, 0..20), option::of((time(), id())), any::<u64>())
        .prop_map(|(spans, next, uncounted)| QueryAnswer::Forecast { spans, next, uncounted })
}

fn bulk_failure() -> impl Strategy<Value = BulkFailure> {
    let why =
        [BulkObstacle::TooLate, BulkObstacle::PastDeadline, BulkObstacle::KeyTaken, BulkObstacle::TooFar];
    (id(), prop::sample::select(why.to_vec())).prop_map(|(id, why)| BulkFailure { id, why })
}

prop_compose! {
    fn bulk_view()(
        id in bulk_id(),
        bulk in bulk(),
        state in prop::sample::select(BULK_STATES.to_vec()),
        begun in time(),
        ended in option::of(time()),
        counts: (u64, u64),
        failures in vec(bulk_failure(), 0..20),
    ) -> BulkView {
        let (done, not_done) = counts;
        BulkView { id, bulk, state, begun, ended, done, not_done, failures }
    }
}

fn cluster_answer() -> impl Strategy<Value = QueryAnswer> {
    prop_oneof![
        address().prop_map(|owner| QueryAnswer::Moved { owner }),
        (topology(), address(), any::<bool>(), vec(member(), 0..20)).prop_map(
            |(topology, answered_by, leads, members)| {
                QueryAnswer::Cluster(ClusterView { topology, answered_by, leads, members })
            }
        ),
        broker_view().prop_map(QueryAnswer::Broker),
        Just(QueryAnswer::Done),
    ]
}

fn share_parts() -> impl Strategy<Value = ShareParts> {
    any::<(u32, u32, u32)>().prop_map(|(slots, starts, burst)| ShareParts { slots, starts, burst })
}

fn share() -> impl Strategy<Value = Share> {
    (dest(), any::<(u64, u64, u32)>(), share_parts())
        .prop_map(|(dest, (made, tokens, lasts_ms), parts)| Share { dest, made, parts, tokens, lasts_ms })
}

fn delivery_limits() -> impl Strategy<Value = DeliveryLimits> {
    let rate =
        any::<(u32, u32, u32)>().prop_map(|(starts, per_ms, burst)| DeliveryRate { starts, per_ms, burst });
    (option::of(any::<u32>()), option::of(rate))
        .prop_map(|(concurrency, rate)| DeliveryLimits { concurrency, rate })
}

fn shares_asked() -> impl Strategy<Value = PeerRequest> {
    let numbers = any::<((u64, u64, u64), (u32, u32, u32, u32))>();
    let ask =
        (dest(), numbers, delivery_limits(), share_parts()).prop_map(|(dest, numbers, limits, held)| {
            let ((version, made, returned), (running, waiting, started, longest_ms)) = numbers;
            ShareRequest {
                dest,
                version,
                limits,
                made,
                held,
                running,
                waiting,
                started,
                longest_ms,
                returned,
            }
        });
    (any::<u64>(), vec(ask, 0..9)).prop_map(|(incarnation, asks)| PeerRequest::Shares { incarnation, asks })
}

fn peer_answer() -> impl Strategy<Value = PeerAnswer> {
    prop_oneof![
        (any::<(u64, u64, u64)>(), option::of(topology())).prop_map(|((seq, term, epoch), topology)| {
            PeerAnswer::Heard { seq, term: Term(term), topology, epoch: Epoch(epoch) }
        }),
        (option::of(address()), any::<u64>())
            .prop_map(|(leader, term)| PeerAnswer::NotLeader { leader, term: Term(term) }),
        ".{0,99}".prop_map(|message| PeerAnswer::Refused { message }),
        vec(share(), 0..9).prop_map(PeerAnswer::Shares),
    ]
}

prop_compose! {
    fn welcome()(
        numbers: (u16, u64, u16, u64, u32, u32),
        texts in (".{0,20}", ".{0,20}", ".{0,20}", ".{0,20}"),
        now in time(),
        broker in option::of(address()),
    ) -> Welcome {
        let (version, session, partitions, heartbeat_ms, max_frame, max_batch) = numbers;
        let (cluster, software, store, durability) = texts;
        Welcome {
            version, session, cluster, software, store, durability, partitions, now, heartbeat_ms, max_frame,
            max_batch, broker,
        }
    }
}

fn from_client() -> impl Strategy<Value = ClientMessage> {
    let settlement = (id(), any::<u64>(), any::<u32>(), outcome())
        .prop_map(|(id, epoch, attempt, outcome)| Settlement { id, epoch: Epoch(epoch), attempt, outcome });
    prop_oneof![
        (any::<u64>(), time(), vec(op(), 0..20))
            .prop_map(|(corr, first_sent, ops)| ClientMessage::Request(Request { corr, first_sent, ops })),
        vec(settlement, 0..20).prop_map(ClientMessage::Settle),
        (any::<u32>(), dest(), any::<u32>())
            .prop_map(|(registration, dest, credit)| ClientMessage::Register { registration, dest, credit }),
        (any::<u64>(), target()).prop_map(|(corr, t)| ClientMessage::Query { corr, query: Query::Get(t) }),
        (any::<u64>(), address(), any::<bool>()).prop_map(|(corr, broker, drain)| ClientMessage::Query {
            corr,
            query: Query::Drain { broker, drain }
        }),
        any::<u64>().prop_map(|corr| ClientMessage::Query { corr, query: Query::Ready }),
        (any::<u64>(), pending_query())
            .prop_map(|(corr, query)| ClientMessage::Query { corr, query: Query::Pending(query.into()) }),
        (any::<u64>(), counts_query())
            .prop_map(|(corr, query)| ClientMessage::Query { corr, query: Query::Counts(query) }),
        any::<(u64, u16)>()
            .prop_map(|(corr, partition)| ClientMessage::Query { corr, query: Query::Bulks { partition } }),
        any::<(u64, u16)>().prop_map(|(corr, partition)| ClientMessage::Query {
            corr,
            query: Query::Settings { partition }
        }),
        (any::<u64>(), dest(), option::of(any::<(u16, u64)>()), any::<u32>()).prop_map(
            |(corr, dest, cursor, limit)| ClientMessage::Query {
                corr,
                query: Query::Parked { dest, cursor, limit }
            }
        ),
        (any::<u64>(), forecast_query())
            .prop_map(|(corr, query)| ClientMessage::Query { corr, query: Query::Forecast(query) }),
        any::<u64>().prop_map(ClientMessage::Ping),
        heartbeat().prop_map(|beat| ClientMessage::Peer(PeerRequest::Heartbeat(beat))),
        shares_asked().prop_map(ClientMessage::Peer),
    ]
}

fn from_server() -> impl Strategy<Value = ServerMessage> {
    let content = (payload(), headers());
    let delivery = (id(), option::of(key()), time(), any::<(u64, u32, u32)>(), mode(), content).prop_map(
        |(id, key, due, (epoch, attempt, timeout_ms), mode, (payload, headers))| Delivery {
            id,
            key,
            due,
            epoch: Epoch(epoch),
            attempt,
            mode,
            timeout_ms,
            payload,
            headers,
        },
    );
    let reply = prop_oneof![
        (any::<bool>(), option::of(id())).prop_map(|(new, replaced)| ScheduleReply::Scheduled {
            new,
            replaced
        }
        .into()),
        (id(), any::<bool>())
            .prop_map(|(id, being_delivered)| ScheduleReply::Kept { id, being_delivered }.into()),
        (any::<bool>(), option::of(id()), any::<u64>()).prop_map(|(new, replaced, due)| {
            ScheduleReply::Timed { new, replaced, due: Time::from_ms(due) }.into()
        }),
        id().prop_map(|id| CancelReply::TooLate(id).into()),
        prop::sample::select(OpReply::samples()),
        address().prop_map(|owner| OpReply::Moved { owner }),
        (prop::sample::select(&CODES[..]), ".{0,99}")
            .prop_map(|(code, message): (ErrorCode, String)| OpReply::Failed { code, message }),
    ];
    let why = [SettleRefusal::NotYours, SettleRefusal::Late, SettleRefusal::Moved];
    let refused = (id(), prop::sample::select(why.to_vec()));
    prop_oneof![
        (any::<u32>(), vec(delivery, 0..20))
            .prop_map(|(registration, deliveries)| ServerMessage::Deliver { registration, deliveries }),
        (any::<u64>(), vec(reply, 0..50)).prop_map(|(corr, replies)| ServerMessage::Reply { corr, replies }),
        (any::<u32>(), vec(refused, 0..20))
            .prop_map(|(accepted, refused)| ServerMessage::Settled { accepted, refused }),
        (any::<u64>(), time()).prop_map(|(n, time)| ServerMessage::Pong(n, time)),
        welcome().prop_map(ServerMessage::Welcome),
        (any::<u64>(), cluster_answer()).prop_map(|(corr, answer)| ServerMessage::Answer { corr, answer }),
        (any::<u64>(), pending_answer()).prop_map(|(corr, answer)| ServerMessage::Answer { corr, answer }),
        (any::<u64>(), counts_answer()).prop_map(|(corr, answer)| ServerMessage::Answer { corr, answer }),
        (any::<u64>(), vec(bulk_view(), 0..17))
            .prop_map(|(corr, jobs)| ServerMessage::Answer { corr, answer: QueryAnswer::Bulks(jobs) }),
        (any::<u64>(), vec(stored_settings(), 0..9))
            .prop_map(|(corr, rows)| ServerMessage::Answer { corr, answer: QueryAnswer::Settings(rows) }),
        (any::<u64>(), forecast()).prop_map(|(corr, answer)| ServerMessage::Answer { corr, answer }),
        topology().prop_map(ServerMessage::Topology),
        peer_answer().prop_map(ServerMessage::Peer),
    ]
}

proptest! {
    #[test]
    fn a_clients_message_survives(message in from_client()) {
        let body = encode(&message).unwrap();
        prop_assert_eq!(decode::<ClientMessage>(&BytesMut::from(&body[..])).unwrap(), message);
    }

    #[test]
    fn a_brokers_message_survives(message in from_server()) {
        let body = encode(&message).unwrap();
        prop_assert_eq!(decode::<ServerMessage>(&BytesMut::from(&body[..])).unwrap(), message);
    }
}
