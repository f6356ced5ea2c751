//! The permission that each request needs, as a table: every kind of message against every verb on
//! every kind of pattern. For operations it is the table that users read, in `docs/security.md`.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use mtimer_access::{Grant, Principal, Verb, needs};
use mtimer_protocol::ops::{StopBulk, Subject};
use mtimer_protocol::sample::{all_counts, all_forecast, all_pending, bulk_id, by_key, dest, id};
use mtimer_protocol::{
    BrokerLoad, ClientMessage, CountsQuery, ForecastQuery, Heartbeat, Hello, MAGIC, PeerRequest,
    PendingQuery, Query, RequestOp, Role, Settlement, VERSION,
};
use mtimer_types::{Epoch, Filter, HandlerOutcome, PartitionId, Target, Term, TimerId};

/// Where a verb is granted, in the order of the columns below. All requests are about orders/billing.
const PATTERNS: [&str; 4] = ["orders/billing", "orders/*", "*", "bank/pay"];

const ON_DEST: [bool; 4] = [true, true, true, false];
const ON_GROUP: [bool; 4] = [false, true, true, false];
const EVERYWHERE: [bool; 4] = [false, false, true, false];
const ANYWHERE: [bool; 4] = [true, true, true, true];

fn heartbeat() -> Heartbeat {
    Heartbeat {
        cluster: String::new(),
        partitions: 1,
        address: "b:1".to_owned(),
        incarnation: 1,
        software: String::new(),
        weight: 1,
        seq: 1,
        heard: 0,
        term: Term(1),
        topology: (Term(0), 0),
        stopping: false,
        owned: Vec::new(),
        unreachable: Vec::new(),
        load: BrokerLoad::default(),
        epoch: Epoch(0),
    }
}

/// What an operation needs by its row in `docs/security.md`: the verb, and on which patterns it is
/// enough.
fn needed(op: &RequestOp) -> (Verb, [bool; 4]) {
    let document = include_str!("../../../docs/security.md");
    let name = in_words(op);
    let by = match op.subject() {
        Subject::New(_) | Subject::Retained(_) => "",
        Subject::Named(Target::Key(..)) => " by key",
        Subject::Named(Target::Id(_)) => " by id",
        Subject::Partition { .. } => "",
    };
    // "by key" at the end of a row is said of all its names.
    let is_its = |requests: &str| {
        let (names, of) = requests.find(" by ").map_or((requests, ""), |at| requests.split_at(at));
        of == by && names.split(", ").any(|n| n == name)
    };
    let row = |line: &'static str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, requests, verb, on, _] = cells[..] else { return None };
        is_its(requests).then_some((verb, on))
    };
    let rows: Vec<_> = document.lines().filter_map(row).collect();
    let [(verb, on)] = rows[..] else {
        panic!("docs/security.md has {} rows with `{name}{by}`, and should have one", rows.len());
    };
    let enough = match on {
        "the destination" => ON_DEST,
        "`*`" => EVERYWHERE,
        ON_MATCHING => match op.subject() {
            Subject::Partition { group: Some(_), app: Some(_), .. } => ON_DEST,
            Subject::Partition { group: Some(_), app: None, .. } => ON_GROUP,
            _ => EVERYWHERE,
        },
        other => panic!("docs/security.md: `{name}{by}` needs {verb} on {other}: unknown here"),
    };
    (verb.trim_matches('`').parse().unwrap(), enough)
}

/// What `docs/security.md` says of requests about all timers of a group and an app.
const ON_MATCHING: &str = "the destination, if group and app are given; `group/*`, if the group is; else `*`";

/// The name of an operation as documents write it: `ExtendDeadline` is "extend deadline".
fn in_words(op: &RequestOp) -> String {
    let text = format!("{op:?}");
    let mut words = String::new();
    for letter in text.chars().take_while(|letter| *letter != '(') {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.push(letter.to_ascii_lowercase());
    }
    words
}

/// Messages that need a verb.
fn messages() -> Vec<(ClientMessage, Verb, [bool; 4])> {
    let query = |query| ClientMessage::Query { corr: 1, query };
    let outcome = HandlerOutcome::Ok;
    let settlement = Settlement { id: id(), epoch: Epoch(1), attempt: 1, outcome };
    let dead = Query::Dead { group: None, app: None, cursor: None, limit: 1 };
    let pending = |filter| query(Query::Pending(PendingQuery { filter, ..all_pending(0) }.into()));
    let of_dest = || Filter::of(&dest());
    let name = |name: &str| Some(name.to_owned());
    let counts = |group, app| query(Query::Counts(CountsQuery { group, app, ..all_counts(0) }));
    let forecast = |group, app| query(Query::Forecast(ForecastQuery { group, app, ..all_forecast(0) }));
    vec![
        (ClientMessage::Register { registration: 1, dest: dest(), credit: 1 }, Verb::Register, ON_DEST),
        (ClientMessage::Settle(vec![settlement]), Verb::Register, ANYWHERE),
        (ClientMessage::Extend { id: id(), epoch: Epoch(1), attempt: 1, by_ms: 1 }, Verb::Register, ANYWHERE),
        (query(Query::Get(by_key())), Verb::Read, ON_DEST),
        (query(Query::Get(id().into())), Verb::Read, ANYWHERE),
        (query(Query::Story(by_key())), Verb::Read, ON_DEST),
        (query(Query::Story(id().into())), Verb::Read, ANYWHERE),
        (query(dead), Verb::Read, ANYWHERE),
        (query(Query::Unconfirmed { cursor: None, limit: 1 }), Verb::Read, ANYWHERE),
        (pending(of_dest()), Verb::Read, ON_DEST),
        (pending(Filter { app: None, ..of_dest() }), Verb::Read, ON_GROUP),
        (pending(Filter { group: None, ..of_dest() }), Verb::Read, EVERYWHERE),
        (
            pending(Filter { key_prefix: Some("order-".to_owned()), ..Filter::default() }),
            Verb::Read,
            EVERYWHERE,
        ),
        // No destination has such a name.
        (pending(Filter { app: Some(String::new()), ..of_dest() }), Verb::Read, EVERYWHERE),
        (pending(Filter { group: Some("\n".to_owned()), app: None, ..of_dest() }), Verb::Read, EVERYWHERE),
        (counts(name("orders"), name("billing")), Verb::Read, ON_DEST),
        (counts(name("orders"), None), Verb::Read, ON_GROUP),
        (counts(None, name("billing")), Verb::Read, EVERYWHERE),
        (counts(None, None), Verb::Read, EVERYWHERE),
        (counts(name("\n"), None), Verb::Read, EVERYWHERE),
        (query(Query::Bulks { partition: 0 }), Verb::Read, ANYWHERE),
        (query(Query::Settings { partition: 0 }), Verb::Read, ANYWHERE),
        (query(Query::Parked { dest: dest(), cursor: None, limit: 1 }), Verb::Read, ON_DEST),
        (query(Query::Taken { cursor: None, limit: 1 }), Verb::Read, ANYWHERE),
        (forecast(name("orders"), name("billing")), Verb::Read, ON_DEST),
        (forecast(name("orders"), None), Verb::Read, ON_GROUP),
        (forecast(None, None), Verb::Read, EVERYWHERE),
        (query(Query::Status), Verb::Read, EVERYWHERE),
        (query(Query::Cluster), Verb::Read, EVERYWHERE),
        (query(Query::Broker), Verb::Read, EVERYWHERE),
        (query(Query::Ready), Verb::Read, EVERYWHERE),
        (query(Query::Drain { broker: "b:1".to_owned(), drain: true }), Verb::Operate, EVERYWHERE),
        (ClientMessage::Peer(PeerRequest::Heartbeat(heartbeat())), Verb::Broker, EVERYWHERE),
        (
            ClientMessage::Peer(PeerRequest::Shares { incarnation: 7, asks: Vec::new() }),
            Verb::Broker,
            EVERYWHERE,
        ),
    ]
}

/// A token with one verb on one pattern; `None` if there can be none.
fn holder(verb: Verb, pattern: &str) -> Option<Principal> {
    let grant: Grant = format!("{verb}:{pattern}").parse().ok()?;
    Some(Principal::new("t", &[grant]))
}

fn check_row(what: &str, need: needs::Requirement<'_>, needed: Verb, enough: [bool; 4]) {
    for verb in Verb::ALL {
        for (pattern, enough) in PATTERNS.into_iter().zip(enough) {
            let Some(who) = holder(verb, pattern) else {
                assert_eq!(verb, Verb::Broker, "only broker is bound to a pattern");
                continue;
            };
            let expected = verb == needed && enough;
            assert_eq!(need.check(&who).is_ok(), expected, "{what} with {verb} on {pattern}");
        }
    }
    assert!(need.check(&Principal::new("t", &[])).is_err(), "{what} without a grant");
}

#[test]
fn every_operation_needs_its_verb() {
    // The samples of bulk jobs have all of group and app or none.
    let name = |name: &str| Some(name.to_owned());
    let stop = |group, app| StopBulk { partition: PartitionId(0), id: bulk_id(), group, app }.into();
    let more = [stop(name("orders"), None), stop(None, name("billing"))];
    for op in RequestOp::samples().into_iter().chain(more) {
        let (verb, enough) = needed(&op);
        check_row(&format!("{op:?}"), needs::of_op(&op), verb, enough);
    }
}

#[test]
fn every_message_needs_its_verb() {
    for (message, verb, enough) in messages() {
        check_row(&format!("{message:?}"), needs::of_message(&message), verb, enough);
    }
}

#[test]
fn what_changes_nothing_needs_a_token_only() {
    let nobody = Principal::new("t", &[]);
    let hello = Hello {
        magic: MAGIC,
        min_version: VERSION,
        max_version: VERSION,
        client: 1,
        software: String::new(),
        token: String::new(),
        role: Role::Client,
    };
    for message in [
        ClientMessage::Hello(hello),
        ClientMessage::Ping(1),
        ClientMessage::Pong(1),
        ClientMessage::Goodbye,
        ClientMessage::Unregister { registration: 1 },
        ClientMessage::Query { corr: 1, query: Query::Get(TimerId::NOBODYS.into()) },
    ] {
        assert_eq!(needs::of_message(&message).check(&nobody), Ok(()), "{message:?}");
    }
}

#[test]
fn only_a_broker_says_hello_as_a_broker() {
    let nobody = Principal::new("t", &[]);
    for role in [Role::Client, Role::Observer] {
        assert_eq!(needs::of_role(role).check(&nobody), Ok(()));
    }
    for verb in Verb::ALL {
        let who = holder(verb, "*").unwrap();
        assert_eq!(needs::of_role(Role::Broker).check(&who).is_ok(), verb == Verb::Broker, "{verb}");
    }
}
