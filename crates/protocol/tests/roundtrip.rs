//! What is written is read again, with any values in it.

#![allow(clippy::unwrap_used)]

mod samples;

use bytes::{Bytes, BytesMut};
use mtimer_protocol::{
    ClientMessage, Delivery, ErrorCode, OpReply, Query, Request, RequestOp, ServerMessage, SettleRefusal,
    Settlement, decode, encode,
};
use mtimer_types::{
    Destination, Ended, Epoch, HandlerOutcome, Key, KeyPolicy, Mode, RetryTiers, Target, Time, Timer, TimerId,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use samples::CODES;

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
    ) -> Timer {
        Timer { id, dest, key, due, mode, deadline, callback_timeout_ms, retry, payload }
    }
}

fn op() -> impl Strategy<Value = RequestOp> {
    let policy = prop_oneof![Just(KeyPolicy::Create), Just(KeyPolicy::Replace), Just(KeyPolicy::Keep)];
    prop_oneof![
        (timer(), policy).prop_map(|(timer, policy)| RequestOp::Schedule { timer, policy }),
        (target(), any::<u64>()).prop_map(|(target, request)| RequestOp::Cancel { target, request }),
        (target(), time(), any::<u64>()).prop_map(|(target, due, request)| RequestOp::Reschedule {
            target,
            due,
            request
        }),
        id().prop_map(|id| RequestOp::Replay { id }),
        id().prop_map(|id| RequestOp::Purge { id }),
    ]
}

fn outcome() -> impl Strategy<Value = HandlerOutcome> {
    prop_oneof![
        Just(HandlerOutcome::Ok),
        (any::<Option<u32>>(), ".{0,99}")
            .prop_map(|(after_ms, error)| HandlerOutcome::Retry { after_ms, error }),
        ".{0,99}".prop_map(|error| HandlerOutcome::Fail { error }),
    ]
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
        any::<u64>().prop_map(ClientMessage::Ping),
    ]
}

fn from_server() -> impl Strategy<Value = ServerMessage> {
    let delivery = (id(), option::of(key()), time(), any::<(u64, u32, u32)>(), mode(), payload()).prop_map(
        |(id, key, due, (epoch, attempt, timeout_ms), mode, payload)| Delivery {
            id,
            key,
            due,
            epoch: Epoch(epoch),
            attempt,
            mode,
            timeout_ms,
            payload,
        },
    );
    let reply = prop_oneof![
        (any::<bool>(), option::of(id())).prop_map(|(new, replaced)| OpReply::Scheduled { new, replaced }),
        id().prop_map(OpReply::Kept),
        id().prop_map(OpReply::TooLate),
        Just(OpReply::Conflict),
        Just(OpReply::Ended(Ended::Expired)),
        (prop::sample::select(&CODES[..]), ".{0,99}")
            .prop_map(|(code, message): (ErrorCode, String)| OpReply::Failed { code, message }),
    ];
    let refused = (id(), prop_oneof![Just(SettleRefusal::NotYours), Just(SettleRefusal::Late)]);
    prop_oneof![
        (any::<u32>(), vec(delivery, 0..20))
            .prop_map(|(registration, deliveries)| ServerMessage::Deliver { registration, deliveries }),
        (any::<u64>(), vec(reply, 0..50)).prop_map(|(corr, replies)| ServerMessage::Reply { corr, replies }),
        (any::<u32>(), vec(refused, 0..20))
            .prop_map(|(accepted, refused)| ServerMessage::Settled { accepted, refused }),
        (any::<u64>(), time()).prop_map(|(n, time)| ServerMessage::Pong(n, time)),
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
