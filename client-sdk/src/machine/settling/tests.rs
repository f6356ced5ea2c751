use mtimer_protocol::{BrokerEntry, Topology};
use mtimer_types::{Epoch, PartitionId, Term, Time};

use super::*;
use crate::machine::tests::Half;

/// Partition 0 is a's (connection 1), partition 1 b's (2).
struct World {
    routes: Routes,
    settling: Settling,
    sessions: Vec<Arc<Origin>>,
    now: Moment,
}

fn topology(version: u64, owners: [u16; 2]) -> Topology {
    let entry = |a: &str| BrokerEntry { address: a.to_owned(), draining: false };
    Topology {
        term: Term(1),
        version,
        leader: "a".into(),
        brokers: vec![entry("a"), entry("b")],
        owners: owners.map(Some).into(),
    }
}

impl World {
    fn new(names: &[Option<&str>]) -> Self {
        let mut world = Self {
            routes: Routes::new(2),
            settling: Settling::default(),
            sessions: vec![],
            now: Moment::ORIGIN,
        };
        names.iter().for_each(|name| _ = world.open(*name));
        world.routes.observe(topology(1, [0, 1]));
        world
    }

    fn alone() -> Self {
        let mut world = Self {
            routes: Routes::new(2),
            settling: Settling::default(),
            sessions: vec![],
            now: Moment::ORIGIN,
        };
        world.open(None);
        world
    }

    fn open(&mut self, name: Option<&str>) -> u64 {
        let session = self.sessions.len() as u64 + 1;
        let handle = Arc::new(Origin::new(session, name.map(str::to_owned)));
        self.routes.opened(&handle);
        self.settling.opened(session);
        self.sessions.push(handle);
        self.settling.reroute(&self.routes);
        session
    }

    fn close(&mut self, session: u64) -> u64 {
        self.routes.closed(session);
        self.settling.closed(session, &self.routes)
    }

    fn push(&mut self, over: u64, partition: u16, n: u64, ok: bool) -> bool {
        let outcome = match ok {
            true => HandlerOutcome::Ok,
            false => HandlerOutcome::Retry { after_ms: None, error: String::new() },
        };
        let settlement = Settlement { id: id(partition, n), epoch: Epoch(1), attempt: 1, outcome };
        let handle = Arc::clone(&self.sessions[over as usize - 1]);
        let deadline = self.now + Duration::from_secs(30);
        self.settling.push(OutgoingOutcome::new(settlement, handle, deadline), &self.routes)
            != Pushed::Pointless
    }

    fn sent(&mut self, session: u64) -> Vec<u64> {
        let frame = self.settling.next(session).unwrap_or_default();
        frame.iter().map(|s| s.id.random()).collect()
    }

    fn settled(
        &mut self,
        session: u64,
        accepted: u32,
        refused: &[(TimerId, SettleRefusal)],
    ) -> Result<u64, &'static str> {
        self.settling.settled(session, accepted, refused, self.now, &self.routes, &mut Half)
    }
}

fn id(partition: u16, n: u64) -> TimerId {
    TimerId::new(Time::from_ms(1), Time::from_ms(0), PartitionId(partition), n)
}

#[test]
fn alone_only_ok_is_repeated_over_a_new_connection() {
    let mut world = World::alone();
    for (n, ok) in [(1, true), (2, true), (3, false)] {
        assert!(world.push(1, 0, n, ok));
        assert_eq!(world.sent(1), [n]);
    }
    assert!(world.settled(1, 2, &[]).is_err(), "no frame had two");
    assert!(world.push(1, 0, 4, false) && world.push(1, 0, 5, true));
    assert_eq!(world.close(1), 2);
    assert!(!world.push(1, 0, 6, false));
    let session = world.open(None);
    assert_eq!(world.sent(session), [1, 2, 5]);
    assert!(world.settled(session, 4, &[]).is_err());
    assert_eq!(world.settled(session, 3, &[]), Ok(0));
    assert_eq!(world.settling.unconfirmed(), 0);
}

#[test]
fn frames_are_bounded() {
    let mut world = World::alone();
    (0..4_500).for_each(|n| _ = world.push(1, 0, n, true));
    let sizes: Vec<usize> = std::iter::from_fn(|| world.settling.next(1)).map(|f| f.len()).collect();
    assert_eq!(sizes, [2_000, 2_000, 500]);
}

#[test]
fn confirmations_out_of_order_lose_nothing_that_may_still_be_open() {
    let mut world = World::alone();
    for n in 1..=3 {
        world.push(1, 0, n, true);
        world.sent(1);
    }
    world.push(1, 0, 4, true);
    world.push(1, 0, 5, true);
    assert_eq!(world.sent(1), [4, 5]);
    assert_eq!(world.settled(1, 2, &[]), Ok(0));
    // One of three: which one is open, so all three are sent again.
    assert_eq!(world.settled(1, 1, &[]), Ok(0));
    assert_eq!(world.settling.unconfirmed(), 2);
    world.close(1);
    let session = world.open(None);
    assert_eq!(world.sent(session), [1, 2, 3]);
    // The outcomes kept in doubt are bounded.
    for n in 0..2_000 {
        world.push(session, 0, n, true);
        world.sent(session);
        world.push(session, 0, n, true);
        world.sent(session);
        world.settled(session, 1, &[]).unwrap();
        world.settled(session, 1, &[]).unwrap();
        world.push(session, 0, n, true);
        world.sent(session);
        world.settled(session, 1, &[]).unwrap();
        world.push(session, 0, n, true);
        world.sent(session);
    }
    assert!(world.settling.connections[&session].sent.len() <= 2_000 + DOUBTFUL + 2);
}

#[test]
fn what_moved_is_the_latest_outcome_of_its_timer() {
    let mut world = World::new(&[Some("a"), Some("b")]);
    world.push(1, 0, 1, false);
    assert_eq!(world.sent(1), [1]);
    // Another frame as large is under way, so it stays open which of the two this confirms.
    world.push(1, 0, 2, true);
    assert_eq!(world.sent(1), [2]);
    assert_eq!(world.settled(1, 1, &[]), Ok(0));
    // The second attempt.
    world.push(1, 0, 1, true);
    assert_eq!(world.sent(1), [1]);
    world.routes.observe(topology(2, [1, 1]));
    assert_eq!(world.settled(1, 0, &[(id(0, 1), SettleRefusal::Moved)]), Ok(0));
    let again = world.settling.next(2).unwrap();
    assert_eq!((again.len(), &again[0].outcome), (1, &HandlerOutcome::Ok));
}

#[test]
fn what_moved_goes_to_the_owner_with_delays_and_is_given_up_in_the_end() {
    let mut world = World::new(&[Some("a"), Some("b")]);
    world.push(1, 0, 1, false);
    assert_eq!(world.sent(1), [1]);
    assert_eq!(world.settled(1, 0, &[(id(0, 1), SettleRefusal::Moved)]), Ok(0));
    assert!(world.sent(1).is_empty() && world.sent(2).is_empty(), "the topology names a still");
    world.routes.observe(topology(2, [1, 1]));
    assert_eq!(world.settling.reroute(&world.routes), 0);
    assert_eq!(world.sent(2), [1], "at once, once it is known where");
    let mut tries = 0;
    loop {
        let refused = world.settled(2, 0, &[(id(0, 1), SettleRefusal::Moved)]).unwrap();
        if refused == 1 {
            break;
        }
        while world.sent(2).is_empty() {
            world.now += Duration::from_millis(10);
            assert_eq!(world.settling.sweep(world.now, &world.routes).1, 0);
        }
        tries += 1;
    }
    assert!((60..200).contains(&tries), "{tries} tries in 60 s");
    assert_eq!(world.settling.unconfirmed(), 0);
}

#[test]
fn every_outcome_goes_to_another_owner_and_only_ok_to_the_same_broker_anew() {
    let mut world = World::new(&[Some("a"), Some("b")]);
    world.push(1, 0, 1, false);
    world.push(1, 0, 2, true);
    assert_eq!(world.close(1), 0, "nobody knows yet who comes after a");
    assert!(world.sent(2).is_empty() && world.push(1, 0, 3, false));
    world.routes.observe(topology(2, [1, 1]));
    world.settling.reroute(&world.routes);
    assert_eq!(world.sent(2), [1, 2, 3]);

    let mut world = World::new(&[Some("a"), Some("b")]);
    world.push(1, 0, 1, false);
    world.push(1, 0, 2, true);
    world.close(1);
    let again = world.open(Some("a"));
    assert_eq!(world.sent(again), [2]);
    assert_eq!(world.settling.unconfirmed(), 1);
}

#[test]
fn without_an_owner_what_is_not_ok_is_given_up_in_time() {
    let mut world = World::new(&[Some("a"), Some("b")]);
    world.push(1, 0, 1, false);
    world.push(1, 0, 2, true);
    world.close(1);
    world.now += Duration::from_secs(61);
    assert_eq!(world.settling.sweep(world.now, &world.routes), (false, 1));
    assert_eq!(world.settling.unconfirmed(), 1);
    assert!(world.settling.next_timeout().is_none());
}
