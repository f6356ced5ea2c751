use bytes::Bytes;
use mtimer_access::Grant;
use mtimer_protocol::RequestOp;
use mtimer_protocol::ops::{Purge, Schedule};
use mtimer_types::{Headers, KeyPolicy, PartitionId, Time, TimerId};

use super::*;

const PRELOAD_MS: u64 = 5_000;

fn now(ms: u64) -> Now {
    Now { time: Time::from_ms(1_000_000 + ms), mono_ms: ms }
}

fn dest(text: &str) -> Destination {
    let (group, app) = text.split_once('/').unwrap();
    Destination::new(group, app).unwrap()
}

fn schedule(to: &str, ahead: u64, payload: usize) -> RequestOp {
    let due = Time::from_ms(1_000_000 + ahead);
    let timer = Timer {
        headers: Headers::default(),
        payload: Bytes::from(vec![0; payload]),
        ..Timer::new(TimerId::new(due, Time::from_ms(1_000_000), PartitionId(0), 1), dest(to), due)
    };
    RequestOp::Schedule(Schedule { timer: timer.into(), policy: KeyPolicy::Create })
}

fn request(ops: Vec<RequestOp>) -> Request {
    Request { corr: 1, first_sent: Time::ZERO, ops }
}

fn many(to: &str, n: usize) -> Request {
    request((0..n).map(|_| schedule(to, 60_000, 1)).collect())
}

fn soon(to: &str, n: usize) -> Request {
    request((0..n).map(|_| schedule(to, 1_000, 1)).collect())
}

fn principal(grant: &str, limits: &str) -> Principal {
    let grants: Vec<Grant> = vec![grant.parse().unwrap()];
    Principal::new("t1", &grants).with_limits(limits.parse().unwrap())
}

fn limiter(of_groups: &[(&str, &str)]) -> Arc<Limiter> {
    let of_groups = of_groups.iter().map(|(name, limits)| ((*name).to_owned(), limits.parse().unwrap()));
    Arc::new(Limiter::new(of_groups.collect(), PRELOAD_MS, Arc::default()))
}

/// How many are refused, and why the first is.
fn refused(limiter: &Limiter, now: Now, who: Option<&Principal>, request: &Request) -> (usize, String) {
    let denied = limiter.screen(|| now, who, request, Vec::new());
    (denied.len(), denied.first().map(|one| one.why.clone()).unwrap_or_default())
}

fn noted(limiter: &Limiter, at_ms: u64, counts: &[(&str, u64)]) {
    let counts: Vec<_> = counts.iter().map(|(name, n)| (dest(name), *n)).collect();
    limiter.note_pending(at_ms, counts.iter().map(|(dest, n)| (dest, *n)), || at_ms);
}

#[test]
fn a_token_schedules_its_burst_and_then_its_rate() {
    let limiter = limiter(&[]);
    let who = principal("schedule:*", "schedules=10,burst=3");
    let (n, why) = refused(&limiter, now(0), Some(&who), &many("a/x", 5));
    assert_eq!(n, 2);
    assert_eq!(
        why,
        "the limit schedules of token t1 is reached, 10 a second and 3 at once at each broker: try again \
         later, or raise it"
    );
    assert_eq!(refused(&limiter, now(99), Some(&who), &many("b/x", 1)).0, 1);
    assert_eq!(refused(&limiter, now(100), Some(&who), &many("b/x", 1)).0, 0);
    assert_eq!(refused(&limiter, now(100), None, &many("b/x", 9)).0, 0, "without limits");
    let raised = principal("schedule:*", "schedules=1000");
    assert_eq!(refused(&limiter, now(200), Some(&raised), &many("b/x", 100)).0, 0, "read again");
}

#[test]
fn groups_have_limits_of_their_own_and_a_refusal_uses_up_nothing() {
    let limiter = limiter(&[("a", "schedules=10,burst=2"), ("*", "schedules=10,burst=1")]);
    assert_eq!(refused(&limiter, now(0), None, &many("a/x", 3)).0, 1);
    for group in ["b", "c"] {
        let (n, why) = refused(&limiter, now(0), None, &many(&format!("{group}/x"), 2));
        assert_eq!(n, 1);
        assert!(why.contains(&format!("limit schedules of group {group} is reached, 10 a second")), "{why}");
    }
    // The group's limit refuses a schedule that the token's would let through, and takes nothing
    // from it.
    let who = principal("schedule:*", "schedules=10,burst=3");
    assert_eq!(refused(&limiter, now(0), Some(&who), &many("a/x", 3)).0, 3);
    assert_eq!(refused(&limiter, now(0), Some(&who), &many("d/x", 3)).0, 2);
    assert_eq!(limiter.take_refused().len(), 4, "a, b, c, d");
    assert_eq!(limiter.take_refused(), []);
}

#[test]
fn denied_operations_keep_their_places() {
    let limiter = limiter(&[("a", "payload=10")]);
    let ops = vec![
        schedule("a/x", 1, 11),
        RequestOp::Purge(Purge { id: TimerId::from_u128(1) }),
        schedule("a/x", 1, 10),
        schedule("b/x", 1, 11),
        schedule("a/x", 1, 12),
    ];
    let one = DeniedOp { at: 1, code: ErrorCode::Unauthorized, why: "no".to_owned() };
    let denied = limiter.screen(|| now(0), None, &request(ops), vec![one]);
    let seen: Vec<_> = denied.iter().map(|one| (one.at, one.code)).collect();
    let (invalid, unauthorized) = (ErrorCode::Invalid, ErrorCode::Unauthorized);
    assert_eq!(seen, [(0, invalid), (1, unauthorized), (4, invalid)]);
    assert_eq!(
        denied[0].why,
        "payload and headers have 11 bytes, the limit payload of group a is 10: store them elsewhere and \
         send a reference, or raise it"
    );
}

#[test]
fn headers_count_as_payload() {
    let limiter = limiter(&[("a", "payload=10")]);
    let with = |payload: usize| {
        let RequestOp::Schedule(Schedule { timer, policy }) = schedule("a/x", 1, payload) else {
            panic!("a schedule")
        };
        let headers = Headers::new([("n", "12345")]).unwrap();
        RequestOp::Schedule(Schedule { timer: Timer { headers, ..(*timer).clone() }.into(), policy })
    };
    let space = 10 - Headers::new([("n", "12345")]).unwrap().bytes();
    assert_eq!(refused(&limiter, now(0), None, &request(vec![with(space)])).0, 0);
    assert_eq!(refused(&limiter, now(0), None, &request(vec![with(space + 1)])).0, 1);
}

#[test]
fn pending_timers_are_those_counted_and_those_since() {
    let limiter = limiter(&[("a", "pending=100")]);
    assert_eq!(limiter.next_count(), Some(0));
    noted(&limiter, 0, &[("a/x", 60), ("a/y", 30), ("b/x", 500)]);
    assert_eq!(limiter.next_count(), Some(1_000));
    assert_eq!(refused(&limiter, now(1), None, &many("a/x", 50)).0, 0, "due later, so not counted yet");
    let (n, why) = refused(&limiter, now(1), None, &soon("a/x", 15));
    assert_eq!(n, 5);
    assert_eq!(
        why,
        "the limit pending of group a is reached, 100 of 100 timers in memory or parked at this broker: wait \
         until some are settled, or raise it"
    );
    assert_eq!(refused(&limiter, now(1), None, &many("a/x", 1)).0, 1, "whenever it is due");
    noted(&limiter, 1_000, &[("a/x", 98)]);
    assert_eq!(refused(&limiter, now(1_000), None, &soon("a/x", 5)).0, 3);
}

#[test]
fn a_tokens_pending_timers_are_those_of_its_destinations() {
    let limiter = limiter(&[]);
    let who = principal("schedule:a/*,b/x", "pending=100");
    assert_eq!(limiter.next_count(), None, "nobody has such a limit");
    let _connected = limiter.connect(&who).unwrap();
    assert_eq!(limiter.next_count(), Some(0));
    for (counts, over) in
        [(&[("a/x", 60), ("a/y", 39), ("b/y", 1_000)][..], 0), (&[("a/x", 60), ("a/y", 30), ("b/x", 10)], 1)]
    {
        noted(&limiter, 0, counts);
        assert_eq!(refused(&limiter, now(0), Some(&who), &soon("a/x", 1)).0, over, "{counts:?}");
    }
    let everything = principal("schedule:*", "pending=1000");
    noted(&limiter, 0, &[("a/x", 600), ("z/z", 400)]);
    assert_eq!(refused(&limiter, now(0), Some(&everything), &soon("a/x", 1)).0, 1);
}

#[test]
fn a_long_count_makes_the_next_one_wait() {
    let limiter = limiter(&[("a", "pending=100")]);
    limiter.note_pending(1_000, std::iter::empty(), || 1_100);
    assert_eq!(limiter.next_count(), Some(6_000));
}

#[test]
fn connections_of_a_token_are_counted_until_they_end() {
    let limiter = limiter(&[]);
    let who = principal("schedule:*", "connections=2");
    let first = limiter.connect(&who).unwrap();
    let _second = limiter.connect(&who).unwrap();
    assert_eq!(
        limiter.connect(&who).unwrap_err(),
        "the limit connections of token t1 is reached, 2 of 2 at this broker: close one, or raise it"
    );
    drop(first);
    let _third = limiter.connect(&who).unwrap();
    assert_eq!(limiter.take_refused(), [("connections of token t1".to_owned(), 1)]);
}

#[test]
fn registrations_of_all_connections_of_a_token_are_bounded() {
    let limiter = limiter(&[]);
    let who = principal("register:*", "connections=20");
    let connections: Vec<_> = (0..11).map(|_| limiter.connect(&who).unwrap()).collect();
    for number in 0..1_000 {
        connections[..10].iter().for_each(|one| one.register(number).unwrap());
    }
    assert_eq!(
        connections[10].register(1).unwrap_err(),
        "the connections of token t1 have 10000 registrations at this broker, the most there can be: \
         register for fewer destinations, or use another token"
    );
    connections[0].register(7).expect("it is there already: its credit changes");
    connections[0].unregister(7);
    connections[0].unregister(7);
    connections[10].register(1).unwrap();
    assert!(connections[10].register(2).is_err() && connections[0].register(7).is_err());
    drop(connections);
    let again = limiter.connect(&who).unwrap();
    (0..10_000).for_each(|number| again.register(number).unwrap());
}

#[test]
fn a_group_beyond_those_that_are_kept_is_held_to_its_own_backlog() {
    let limiter = limiter(&[("*", "pending=100")]);
    noted(&limiter, 0, &[("late/x", 100), ("other/x", 99)]);
    for n in 0..MAX_LIMITED {
        assert_eq!(refused(&limiter, now(0), None, &soon(&format!("g{n}/x"), 1)).0, 0);
    }
    assert_eq!(refused(&limiter, now(0), None, &soon("other/x", 1)).0, 0);
    let (n, why) = refused(&limiter, now(0), None, &soon("late/x", 1));
    assert_eq!(n, 1);
    assert!(why.starts_with("the limit pending of group late is reached, 101 of 100"), "{why}");
    noted(&limiter, 1_000, &[("late/x", 99)]);
    assert_eq!(refused(&limiter, now(1_000), None, &soon("late/x", 1)).0, 0);
}

#[test]
fn what_is_kept_of_groups_and_refusals_is_bounded() {
    let limiter = limiter(&[("*", "schedules=1,burst=1")]);
    let one = |at, n: usize| refused(&limiter, now(at), None, &many(&format!("g{n}/x"), 1)).0;
    let over: usize = (0..MAX_LIMITED + 10).map(|n| one(0, n)).sum();
    assert_eq!(over, 9, "those beyond share one");
    assert_eq!(limiter.state().groups.len(), MAX_LIMITED + 1);
    // By then their buckets are full again.
    assert_eq!(one(10_000, MAX_LIMITED + 1), 0);
    assert_eq!(limiter.state().groups.len(), 1);
    limiter.take_refused();
    for n in 0..2 * MAX_NAMED {
        assert_eq!(one(20_000, n) + one(20_000, n), 1);
    }
    let refused = limiter.take_refused();
    assert_eq!((refused.len(), refused.iter().map(|(_, n)| n).sum::<u64>()), (MAX_NAMED + 1, 40));
}
