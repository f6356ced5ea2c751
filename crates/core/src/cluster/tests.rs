//! One rule, one test: a node alone with what others would say to it.

use std::collections::BTreeMap;

use mtimer_protocol::{BrokerEntry, Heartbeat, PeerAnswer, PeerRequest, encode};
use mtimer_store::{Campaigned, StoreError};
use mtimer_types::Epoch;

use super::*;

const ME: &str = "b:7000";
const P: u16 = 6;

/// A node and its time.
struct Lab {
    node: Node,
    now: u64,
    /// What came out and was not looked at.
    out: Vec<NodeEffect>,
    seqs: BTreeMap<u64, u64>,
}

impl Lab {
    fn new() -> Self {
        let options = NodeOptions {
            cluster: "c".into(),
            partitions: P,
            address: ME.into(),
            incarnation: 1,
            software: "test".into(),
            ..NodeOptions::default()
        };
        let mut lab =
            Self { node: Node::new(options, 1_000), now: 1_000, out: Vec::new(), seqs: BTreeMap::new() };
        lab.feed(NodeInput::Tick);
        lab
    }

    /// A leader of this term, with what was published before.
    fn leading(term: u64, published: Option<&Topology>) -> Self {
        let mut lab = Self::new();
        lab.win(term, published);
        lab
    }

    fn feed(&mut self, input: NodeInput) {
        self.node.handle(self.now, input);
        self.out.append(&mut self.node.effects());
    }

    fn win(&mut self, term: u64, published: Option<&Topology>) {
        let published = published.map(|t| encode(t).unwrap());
        let answer = Ok(Campaigned::Won { term: Term(term), published });
        self.feed(NodeInput::Campaigned { sent: self.now, answer });
    }

    fn held(&mut self, address: &str, term: u64, remaining_ms: Option<u64>) {
        let answer = Ok(Campaigned::Held { address: address.into(), term: Term(term), remaining_ms });
        self.feed(NodeInput::Campaigned { sent: self.now, answer });
    }

    /// Time passes; the lease is renewed and every topology kept if `well`. Others stay silent.
    fn pass(&mut self, ms: u64, well: bool) {
        let until = self.now + ms;
        while self.now < until {
            self.now = self.node.next_tick().min(until);
            self.feed(NodeInput::Tick);
            if well {
                self.be_well();
            }
        }
    }

    fn be_well(&mut self) {
        let asked: Vec<NodeInput> = self
            .out
            .iter()
            .filter_map(|e| match e {
                NodeEffect::Renew(..) => Some(NodeInput::Renewed { sent: self.now, answer: Ok(true) }),
                NodeEffect::Publish(_, t) => {
                    Some(NodeInput::Published { version: t.version, answer: Ok(true) })
                }
                _ => None,
            })
            .collect();
        self.out.retain(|e| !matches!(e, NodeEffect::Renew(..) | NodeEffect::Publish(..)));
        asked.into_iter().for_each(|input| self.feed(input));
    }

    /// Time passes, and these send heartbeats of their own accord.
    fn pass_with(&mut self, ms: u64, peers: &[(u64, &str, u64)]) {
        for _ in 0..ms / 250 {
            self.pass(250, true);
            peers.iter().for_each(|(peer, address, inc)| self.beat(*peer, beat(address, *inc)));
        }
    }

    /// A heartbeat of another broker that hears everything.
    fn beat(&mut self, peer: u64, mut beat: Heartbeat) {
        let seq = self.seqs.entry(peer).or_default();
        (beat.seq, beat.heard) = (*seq + 1, *seq);
        *seq += 1;
        self.feed(NodeInput::FromPeer(PeerId(peer), PeerRequest::Heartbeat(beat)));
    }

    fn take(&mut self) -> Vec<NodeEffect> {
        std::mem::take(&mut self.out)
    }

    /// Follows this leader of this term.
    fn follow(&mut self, leader: &str, term: u64, topology: Option<Topology>) {
        self.held(leader, term, Some(2_500));
        self.feed(NodeInput::LinkUp);
        self.hear(term, topology);
    }

    /// The leader answers the last heartbeat.
    fn hear(&mut self, term: u64, topology: Option<Topology>) {
        let seq = self.sent().last().map_or(0, |b| b.seq);
        self.feed(NodeInput::FromLeader(PeerAnswer::Heard { seq, term: Term(term), topology }));
    }

    /// Heartbeats sent.
    fn sent(&self) -> Vec<&Heartbeat> {
        let beats = self.out.iter().filter_map(|e| match e {
            NodeEffect::ToLeader(PeerRequest::Heartbeat(beat)) => Some(beat),
            _ => None,
        });
        beats.collect()
    }

    fn topology(&self) -> &Topology {
        self.node.topology().expect("a topology")
    }

    fn share(&self, address: &str) -> usize {
        self.topology().partitions_of(address).count()
    }

    fn counter(&self, name: &str) -> u64 {
        self.node.counters().find(|(n, _)| *n == name).expect("a counter").1
    }
}

fn beat(address: &str, incarnation: u64) -> Heartbeat {
    Heartbeat {
        cluster: "c".into(),
        partitions: P,
        address: address.into(),
        incarnation,
        software: "test".into(),
        weight: 100,
        seq: 0,
        heard: 0,
        term: Term(0),
        topology: (Term(0), 0),
        stopping: false,
        owned: Vec::new(),
        unreachable: Vec::new(),
        load: BrokerLoad::default(),
    }
}

/// A topology of these brokers, all partitions in turn.
fn topology(term: u64, version: u64, leader: &str, brokers: &[&str]) -> Topology {
    let entry = |a: &&str| BrokerEntry { address: (*a).into(), draining: false };
    Topology {
        term: Term(term),
        version,
        leader: leader.into(),
        brokers: brokers.iter().map(entry).collect(),
        owners: (0..P).map(|p| Some(p % brokers.len() as u16)).collect(),
    }
}

fn owns(effects: &[NodeEffect]) -> Vec<u16> {
    let own = |e: &NodeEffect| match e {
        NodeEffect::Own { partition, .. } => Some(partition.0),
        _ => None,
    };
    effects.iter().filter_map(own).collect()
}

fn disowns(effects: &[NodeEffect]) -> Vec<u16> {
    let disown = |e: &NodeEffect| match e {
        NodeEffect::Disown(partition) => Some(partition.0),
        _ => None,
    };
    effects.iter().filter_map(disown).collect()
}

fn campaigns(effects: &[NodeEffect]) -> usize {
    effects.iter().filter(|e| matches!(e, NodeEffect::Campaign(_))).count()
}

fn refused(effects: &[NodeEffect]) -> Option<&str> {
    effects.iter().find_map(|e| match e {
        NodeEffect::ToPeer(_, PeerAnswer::Refused { message }) => Some(message.as_str()),
        _ => None,
    })
}

fn has_left(effects: &[NodeEffect]) -> bool {
    effects.contains(&NodeEffect::Left)
}

#[test]
fn a_lone_first_broker_has_everything_at_once() {
    let mut lab = Lab::leading(7, None);
    let out = lab.take();
    assert_eq!(campaigns(&out), 1);
    assert_eq!(owns(&out), [0, 1, 2, 3, 4, 5]);
    assert_eq!(lab.topology().stamp(), (Term(7), 1));
    let adopt = out.iter().position(|e| matches!(e, NodeEffect::Adopt(_))).unwrap();
    let own = out.iter().position(|e| matches!(e, NodeEffect::Own { .. })).unwrap();
    assert!(adopt < own && out.iter().any(|e| matches!(e, NodeEffect::Publish(..))));
}

#[test]
fn it_leads_until_the_deadline_and_not_a_moment_longer() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, beat("a:1", 5));
    lab.take();
    lab.pass(1_000, false);
    lab.beat(1, beat("a:1", 5));
    lab.pass(1_249, false);
    assert!(lab.node.view(lab.now).leads);
    lab.take();
    assert!(!lab.node.view(lab.now + 1).leads);
    lab.now += 1;
    lab.beat(1, beat("a:1", 5));
    let out = lab.take();
    assert!(!lab.node.leads() && lab.node.lease().is_none());
    let not_leader = |e: &&NodeEffect| matches!(e, NodeEffect::ToPeer(_, PeerAnswer::NotLeader { .. }));
    assert_eq!(out.iter().filter(not_leader).count(), 2, "told at once, and when it asks: {out:?}");
    assert_eq!((campaigns(&out), disowns(&out)), (1, vec![]));
    // Won again under the same term, its versions go on.
    let version = lab.topology().version;
    lab.win(7, Some(&lab.topology().clone()));
    lab.beat(1, beat("a:1", 5));
    assert!(lab.node.leads() && lab.topology().version >= version);
}

#[test]
fn renewals_count_from_when_they_were_sent_and_failures_are_tried_again() {
    let mut lab = Lab::leading(7, None);
    lab.pass(700, false);
    let renewals = |out: &[NodeEffect]| out.iter().filter(|e| matches!(e, NodeEffect::Renew(..))).count();
    assert_eq!(renewals(&lab.take()), 1);
    let sent = lab.now;
    lab.pass(400, false);
    assert_eq!(renewals(&lab.take()), 0, "one at a time");
    lab.feed(NodeInput::Renewed { sent, answer: Err(StoreError::Unavailable("away".into())) });
    lab.pass(100, false);
    assert_eq!(renewals(&lab.take()), 1);
    lab.feed(NodeInput::Renewed { sent: lab.now, answer: Ok(true) });
    let until = lab.now + 2_249;
    assert!(lab.node.view(until).leads && !lab.node.view(until + 1).leads);
}

#[test]
fn a_lease_that_is_lost_stays_lost_whatever_comes_late() {
    let mut lab = Lab::leading(7, None);
    lab.pass(700, false);
    lab.feed(NodeInput::Renewed { sent: lab.now, answer: Ok(false) });
    assert!(!lab.node.leads());
    let answer = Ok(Campaigned::Won { term: Term(7), published: None });
    lab.feed(NodeInput::Campaigned { sent: lab.now - 600, answer });
    assert!(!lab.node.leads());
    lab.take();
    lab.pass(500, false);
    assert_eq!(campaigns(&lab.take()), 1);
}

#[test]
fn what_belongs_to_an_earlier_lease_does_not_end_this_one() {
    let mut lab = Lab::leading(7, None);
    lab.pass(700, false);
    let sent = lab.now;
    lab.pass(1_600, false);
    assert!(!lab.node.leads());
    lab.win(8, None);
    lab.feed(NodeInput::Renewed { sent, answer: Ok(false) });
    assert_eq!(lab.node.lease().map(|l| l.term), Some(Term(8)));
}

#[test]
fn a_leader_who_answers_is_left_only_for_a_newer_one() {
    let mut lab = Lab::new();
    lab.follow("a:1", 7, None);
    lab.take();
    lab.held("z:1", 6, Some(100));
    assert_eq!(lab.take(), []);
    lab.held("d:1", 8, Some(100));
    assert_eq!(lab.take(), [NodeEffect::Connect("d:1".into())]);
}

#[test]
fn a_follower_that_stood_still_gives_its_leader_time() {
    let mut lab = Lab::new();
    lab.follow("a:1", 7, None);
    lab.now += 10_000;
    lab.feed(NodeInput::Tick);
    lab.pass(1_400, false);
    assert!(!lab.out.contains(&NodeEffect::Disconnect));
}

#[test]
fn what_comes_by_an_earlier_session_is_too_late() {
    let mut lab = Lab::leading(7, None);
    lab.beat(5, beat("a:1", 5));
    lab.take();
    lab.beat(3, Heartbeat { stopping: true, ..beat("a:1", 5) });
    lab.feed(NodeInput::PeerGone(PeerId(3)));
    assert_eq!((lab.take(), lab.share("a:1")), (vec![], 3));
}

#[test]
fn a_win_that_comes_too_late_is_none() {
    let mut lab = Lab::new();
    lab.now += 2_250;
    lab.feed(NodeInput::Campaigned {
        sent: 1_000,
        answer: Ok(Campaigned::Won { term: Term(3), published: None }),
    });
    assert!(!lab.node.leads());
    lab.take();
    lab.pass(50, false);
    assert_eq!(campaigns(&lab.take()), 1);
}

#[test]
fn a_higher_term_ends_a_reign_unless_it_is_another_clusters() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, Heartbeat { term: Term(9), cluster: "other".into(), ..beat("a:1", 5) });
    assert!(lab.node.leads());
    assert!(refused(&lab.take()).unwrap().contains("\"other\""));
    lab.beat(1, Heartbeat { term: Term(8), ..beat("a:1", 5) });
    assert!(!lab.node.leads());
    assert_eq!(lab.node.term(), Term(8));
    assert!(lab.take().iter().any(|e| matches!(e, NodeEffect::Resign(l) if l.term == Term(7))));
}

#[test]
fn a_store_that_forgot_terms_is_asked_for_another() {
    let mut lab = Lab::new();
    let known = topology(9, 4, "a:1", &["a:1", ME]);
    lab.win(5, Some(&known));
    assert!(!lab.node.leads());
    assert!(lab.take().iter().any(|e| matches!(e, NodeEffect::Resign(l) if l.term == Term(5))));
}

#[test]
fn a_strangers_lease_is_looked_at_every_second_and_owners_go_on() {
    for (address, term, remaining) in
        [("a string", 0, None), ("x:1", 0, Some(9_000)), ("no port", 3, Some(9_000)), ("a:1", 3, None)]
    {
        let mut lab = Lab::new();
        lab.take();
        lab.held(address, term, remaining);
        let connects = lab.take().iter().filter(|e| matches!(e, NodeEffect::Connect(_))).count();
        assert_eq!(connects, usize::from(address == "a:1"), "{address}");
        lab.pass(999, false);
        assert_eq!(campaigns(&lab.take()), 0, "{address}");
        lab.pass(1, false);
        assert_eq!(campaigns(&lab.take()), 1, "{address}");
    }
    // One that runs out sooner is asked for at once, by everybody, so that all hear of the new leader.
    let mut lab = Lab::new();
    lab.take();
    lab.held("a string", 0, Some(300));
    lab.pass(300, false);
    assert_eq!(campaigns(&lab.take()), 0);
    lab.pass(51, false);
    assert_eq!(campaigns(&lab.take()), 1);
}

#[test]
fn it_campaigns_when_the_lease_runs_out_and_not_while_the_leader_answers() {
    let mut lab = Lab::new();
    lab.take();
    lab.held("a:1", 7, Some(1_200));
    assert_eq!(lab.take(), [NodeEffect::Connect("a:1".into())]);
    lab.pass(1_200, false);
    assert_eq!(campaigns(&lab.take()), 0);
    lab.pass(51, false);
    assert_eq!(campaigns(&lab.take()), 1);
    lab.held("a:1", 7, Some(1_200));
    lab.feed(NodeInput::LinkUp);
    for _ in 0..20 {
        lab.hear(7, None);
        lab.take();
        lab.pass(500, false);
        assert_eq!(campaigns(&lab.out), 0);
    }
    // Pushes are no answers.
    for _ in 0..4 {
        lab.pass(400, false);
        lab.feed(NodeInput::FromLeader(PeerAnswer::Heard { seq: 0, term: Term(7), topology: None }));
    }
    assert!(lab.out.contains(&NodeEffect::Disconnect));
    lab.pass(500, false);
    assert_eq!(campaigns(&lab.take()), 1);
}

#[test]
fn who_does_not_lead_says_who_does() {
    let mut lab = Lab::new();
    lab.follow("a:1", 7, None);
    lab.take();
    lab.beat(4, beat("d:1", 5));
    let answer = PeerAnswer::NotLeader { leader: Some("a:1".into()), term: Term(7) };
    assert_eq!(lab.take(), [NodeEffect::ToPeer(PeerId(4), answer)]);
    // And who is told so goes there.
    lab.feed(NodeInput::FromLeader(PeerAnswer::NotLeader { leader: Some("d:1".into()), term: Term(8) }));
    assert_eq!(lab.take(), [NodeEffect::Disconnect, NodeEffect::Connect("d:1".into())]);
}

#[test]
fn what_is_older_than_known_is_ignored_and_counted() {
    let mut lab = Lab::new();
    lab.follow("a:1", 7, Some(topology(7, 3, "a:1", &["a:1", ME])));
    assert_eq!(lab.topology().stamp(), (Term(7), 3));
    lab.feed(NodeInput::FromLeader(PeerAnswer::Heard {
        seq: 0,
        term: Term(6),
        topology: Some(topology(6, 9, "z:1", &[ME])),
    }));
    assert_eq!(lab.counter("stale_frames_total"), 1);
    lab.take();
    lab.feed(NodeInput::FromLeader(PeerAnswer::NotLeader { leader: Some("z:1".into()), term: Term(6) }));
    assert_eq!(lab.take(), [], "it keeps the link to who leads now");
    assert_eq!(lab.counter("stale_frames_total"), 2);
    let unsound = |change: fn(&mut Topology)| {
        let mut t = topology(7, 5, "a:1", &["a:1", ME]);
        change(&mut t);
        Some(t)
    };
    let bad: [fn(&mut Topology); 4] =
        [|t| t.version = 2, |t| t.owners.truncate(3), |t| t.owners[0] = Some(2), |t| t.term = Term(8)];
    for change in bad {
        lab.hear(7, unsound(change));
        assert_eq!(lab.topology().stamp(), (Term(7), 3));
    }
    lab.hear(7, unsound(|_| ()));
    assert_eq!(lab.topology().stamp(), (Term(7), 5));
}

#[test]
fn a_new_leader_waits_for_those_who_had_something_and_believes_what_they_own() {
    let last = topology(6, 9, "a:1", &["a:1", ME, "c:1"]);
    let mut lab = Lab::new();
    lab.held("a:1", 6, Some(100));
    lab.pass(151, false);
    lab.win(7, Some(&last));
    lab.take();
    lab.beat(1, Heartbeat { owned: vec![(PartitionId(4), Epoch(3))], ..beat("c:1", 5) });
    let heard = PeerAnswer::Heard { seq: 1, term: Term(7), topology: None };
    assert_eq!(
        lab.take(),
        [NodeEffect::ToPeer(PeerId(1), heard)],
        "it waits for the leader that let the lease run out"
    );
    lab.pass(599, true);
    assert!(lab.node.topology().is_none());
    lab.pass(1, true);
    assert_eq!(lab.topology().stamp(), (Term(7), 1));
    // c:1 keeps 2 and 5 as published, and 4 as it says itself; what a:1 had goes to this broker, which keeps 1.
    let of_c: Vec<u16> = lab.topology().partitions_of("c:1").map(|p| p.0).collect();
    assert_eq!(of_c, [2, 4, 5]);
}

#[test]
fn who_is_not_known_to_have_let_the_lease_run_out_is_waited_for_longer() {
    let last = topology(6, 9, "a:1", &["a:1", ME]);
    let held = |lab: &mut Lab, by: &str, remaining| {
        lab.held(by, 6, remaining);
        lab.pass(remaining.unwrap_or(0) + 51, false);
    };
    let before: [&dyn Fn(&mut Lab); 5] = [
        &|_| (),
        // It is another's lease that has run out.
        &|lab| held(lab, "c:1", Some(100)),
        &|lab| held(lab, "a stranger", Some(100)),
        // The store could not be asked meanwhile: nor could the leader renew.
        &|lab| {
            held(lab, "a:1", Some(100));
            let answer = Err(StoreError::Unavailable("away".into()));
            lab.feed(NodeInput::Campaigned { sent: lab.now, answer });
        },
        // It is long ago.
        &|lab| {
            held(lab, "a:1", Some(100));
            lab.pass(200, false);
        },
    ];
    for (i, before) in before.into_iter().enumerate() {
        let mut lab = Lab::new();
        before(&mut lab);
        lab.win(7, Some(&last));
        lab.pass(1_499, true);
        assert!(lab.node.topology().is_none(), "{i}");
        lab.pass(1, true);
        assert_eq!(lab.share(ME), 6, "{i}");
    }
}

#[test]
fn who_contradicts_the_cluster_is_told_what_and_what_to_do() {
    let mut lab = Lab::leading(7, None);
    let good = beat("a:1", 5);
    for (bad, says) in [
        (Heartbeat { cluster: "d".into(), ..good.clone() }, ["\"d\"", "\"c\""]),
        (Heartbeat { partitions: 64, ..good.clone() }, ["64 partitions", "one of 6"]),
        (Heartbeat { weight: 0, ..good.clone() }, ["weight 0", "1 to 1000"]),
        (Heartbeat { weight: 1_001, ..good.clone() }, ["weight 1001", "1 to 1000"]),
        (Heartbeat { address: "nowhere".into(), ..good.clone() }, ["\"nowhere\"", "host:port"]),
        (Heartbeat { address: ME.into(), ..good }, [ME, "of its own"]),
    ] {
        lab.take();
        lab.beat(1, bad);
        let out = lab.take();
        let text = refused(&out).expect("a refusal");
        assert!(says.iter().all(|s| text.contains(s)), "{text}");
    }
    assert_eq!(lab.counter("members_refused_total"), 6);
    assert_eq!(lab.topology().brokers.len(), 1);
}

#[test]
fn who_is_refused_ends_and_says_why() {
    let mut lab = Lab::new();
    lab.follow("a:1", 7, None);
    lab.take();
    lab.feed(NodeInput::FromLeader(PeerAnswer::Refused { message: "no".into() }));
    lab.pass(5_000, false);
    assert_eq!(lab.take(), [NodeEffect::Refused("no".into())]);
}

#[test]
fn of_two_living_processes_with_one_address_the_second_is_refused() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, beat("a:1", 5));
    lab.take();
    lab.beat(2, beat("a:1", 6));
    assert!(refused(&lab.take()).unwrap().contains("a:1"));
    // Once the first is gone, or silent, the second is a new life of it: it keeps what it had.
    let before = lab.topology().clone();
    lab.feed(NodeInput::PeerGone(PeerId(1)));
    lab.beat(3, beat("a:1", 6));
    assert_eq!((refused(&lab.take()), lab.topology()), (None, &before));
    lab.pass(1_000, true);
    lab.beat(4, beat("a:1", 7));
    assert_eq!(refused(&lab.take()), None);
    assert_eq!(lab.counter("member_deaths_total"), 0);
}

#[test]
fn a_member_is_dead_when_silent_or_half_a_second_after_its_session() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, beat("a:1", 5));
    assert_eq!((lab.share("a:1"), lab.share(ME)), (3, 3));
    lab.pass(1_499, true);
    assert_eq!(lab.share("a:1"), 3);
    lab.pass(1, true);
    assert_eq!((lab.share("a:1"), lab.share(ME)), (0, 6));
    lab.beat(2, beat("c:1", 5));
    lab.feed(NodeInput::PeerGone(PeerId(2)));
    lab.pass(499, true);
    assert_eq!(lab.share("c:1"), 3);
    lab.pass(1, true);
    assert_eq!((lab.share("c:1"), lab.counter("member_deaths_total")), (0, 2));
}

#[test]
fn who_is_heard_but_hears_nothing_is_not_there() {
    let mut lab = Lab::leading(7, None);
    for seq in 1..=4 {
        let beat = Heartbeat { seq, heard: 0, ..beat("a:1", 5) };
        lab.feed(NodeInput::FromPeer(PeerId(1), PeerRequest::Heartbeat(beat)));
        lab.pass(500, true);
    }
    assert_eq!(lab.share("a:1"), 3);
    for seq in 5..=6 {
        let beat = Heartbeat { seq, heard: 0, ..beat("a:1", 5) };
        lab.feed(NodeInput::FromPeer(PeerId(1), PeerRequest::Heartbeat(beat)));
        lab.pass(500, true);
    }
    assert_eq!(lab.share(ME), 6);
}

#[test]
fn a_leader_that_stood_still_blames_nobody() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, beat("a:1", 5));
    lab.now += 2_000;
    lab.feed(NodeInput::Tick);
    assert!(lab.node.leads());
    assert_eq!((lab.share("a:1"), lab.counter("stalls_total")), (3, 1));
    lab.be_well();
    lab.pass(1_500, true);
    assert_eq!(lab.share("a:1"), 0);
}

#[test]
fn who_comes_and_goes_is_held_back_longer_each_time() {
    let mut lab = Lab::leading(7, None);
    let mut inc = 0;
    let mut life = |lab: &mut Lab| {
        inc += 1;
        lab.beat(inc, beat("a:1", inc));
        let held = lab.node.view(lab.now).members[0].held_back_ms;
        assert_eq!(lab.share("a:1") == 0, held > 0);
        lab.feed(NodeInput::PeerGone(PeerId(inc)));
        lab.pass(600, true);
        held
    };
    let held: Vec<u64> = (0..8).map(|_| life(&mut lab)).collect();
    assert_eq!(held, [0, 0, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000]);
    // Held back it is for so long; after a minute of good life it is like everybody.
    let peers = [(100, "a:1", 100)];
    lab.pass_with(59_000, &peers);
    assert_eq!(lab.share("a:1"), 0);
    lab.pass_with(1_500, &peers);
    assert_eq!(lab.share("a:1"), 3);
    lab.pass_with(60_500, &peers);
    lab.feed(NodeInput::PeerGone(PeerId(100)));
    lab.pass(600, true);
    lab.beat(101, beat("a:1", 101));
    assert_eq!(lab.share("a:1"), 3);
}

#[test]
fn who_stops_in_good_order_is_no_flapper_and_leaves_the_topology() {
    let mut lab = Lab::leading(7, None);
    for inc in 1..=4 {
        let owned = vec![(PartitionId(0), Epoch(inc))];
        lab.beat(inc, Heartbeat { owned: owned.clone(), ..beat("a:1", inc) });
        assert_eq!(lab.share("a:1"), 3);
        lab.beat(inc, Heartbeat { stopping: true, owned, ..beat("a:1", inc) });
        assert_eq!((lab.share("a:1"), lab.topology().brokers.len()), (0, 2));
        assert!(lab.topology().brokers[0].draining);
        lab.beat(inc, Heartbeat { stopping: true, ..beat("a:1", inc) });
        assert_eq!(lab.topology().brokers.len(), 1);
        lab.feed(NodeInput::PeerGone(PeerId(inc)));
    }
    assert_eq!(lab.counter("member_deaths_total"), 0);
}

#[test]
fn an_operator_empties_a_broker_and_the_next_leader_remembers() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, beat("a:1", 5));
    assert!(lab.node.drain(lab.now, "x:1", true).unwrap_err().contains("a:1, b:7000"));
    lab.node.drain(lab.now, "a:1", true).unwrap();
    assert_eq!(lab.share("a:1"), 0);
    let published = lab.topology().clone();
    assert!(published.brokers[0].draining);

    let mut next = Lab::leading(8, Some(&published));
    next.beat(1, Heartbeat { topology: published.stamp(), ..beat("a:1", 5) });
    assert_eq!(next.share("a:1"), 0, "the same life of it");
    next.node.drain(next.now, "a:1", false).unwrap();
    assert_eq!(next.share("a:1"), 3);

    let mut next = Lab::leading(8, Some(&published));
    next.beat(1, beat("a:1", 6));
    assert_eq!(next.share("a:1"), 3, "it came back as another");

    let mut follower = Lab::new();
    assert!(follower.node.drain(follower.now, "a:1", true).unwrap_err().contains("none just now"));
    follower.follow("a:1", 7, None);
    assert!(follower.node.drain(follower.now, "a:1", true).unwrap_err().contains("ask a:1"));
}

#[test]
fn who_is_emptied_keeps_what_nobody_else_takes() {
    let mut lab = Lab::leading(7, None);
    lab.node.drain(lab.now, ME, true).unwrap();
    assert_eq!(lab.share(ME), 6);
    lab.beat(1, beat("a:1", 5));
    assert_eq!((lab.share(ME), lab.share("a:1")), (0, 6));
}

#[test]
fn out_of_reach_for_two_seconds_it_goes_to_one_who_reaches_it() {
    let mut lab = Lab::leading(7, None);
    let peers = [(1, "a:1", 5)];
    lab.beat(1, beat("a:1", 5));
    let mine = lab.topology().partitions_of(ME).next().unwrap();
    lab.feed(NodeInput::Unreachable(vec![mine]));
    lab.pass_with(1_750, &peers);
    assert_eq!(lab.topology().owner(mine), Some(ME));
    lab.pass_with(250, &peers);
    assert_eq!(lab.topology().owner(mine), Some("a:1"));
    assert_eq!((lab.share(ME), lab.share("a:1")), (3, 3), "it has another for it");
    let version = lab.topology().version;
    lab.feed(NodeInput::Unreachable(vec![]));
    lab.pass_with(10_000, &peers);
    assert_eq!(lab.topology().version, version);
}

#[test]
fn what_is_reached_again_is_taken_from_the_dead_at_once_and_from_the_living_not_yet() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, beat("a:1", 5));
    let its: Vec<_> = lab.topology().partitions_of("a:1").collect();
    lab.feed(NodeInput::Unreachable(its.clone()));
    lab.pass(1_000, true);
    lab.feed(NodeInput::Unreachable(vec![]));
    lab.beat(1, Heartbeat { unreachable: its, ..beat("a:1", 5) });
    lab.feed(NodeInput::PeerGone(PeerId(1)));
    lab.pass(500, true);
    assert_eq!(lab.share(ME), 6);
}

#[test]
fn a_topology_is_published_one_at_a_time_until_it_is_kept() {
    let published = |out: &[NodeEffect]| -> Vec<u64> {
        let version = |e: &NodeEffect| match e {
            NodeEffect::Publish(_, t) => Some(t.version),
            _ => None,
        };
        out.iter().filter_map(version).collect()
    };
    let mut lab = Lab::leading(7, None);
    lab.beat(1, beat("a:1", 5));
    lab.beat(2, beat("c:1", 5));
    assert_eq!(published(&lab.take()), [1]);
    lab.feed(NodeInput::Published { version: 1, answer: Err(StoreError::Unavailable("away".into())) });
    assert_eq!(published(&lab.take()), []);
    lab.pass(200, false);
    assert_eq!(published(&lab.take()), [3]);
    lab.feed(NodeInput::Published { version: 3, answer: Ok(true) });
    lab.pass(400, false);
    assert_eq!(published(&lab.take()), []);
    lab.beat(3, beat("d:1", 5));
    lab.feed(NodeInput::Published { version: 4, answer: Ok(false) });
    assert!(!lab.node.leads());
}

#[test]
fn a_newer_topology_is_pushed_to_all_and_answered_to_who_caused_it() {
    let mut lab = Lab::leading(7, None);
    lab.beat(1, beat("a:1", 5));
    lab.take();
    lab.beat(2, beat("c:1", 5));
    let told: Vec<(u64, u64, u64)> = lab
        .take()
        .iter()
        .filter_map(|e| match e {
            NodeEffect::ToPeer(p, PeerAnswer::Heard { seq, topology, .. }) => {
                Some((p.0, *seq, topology.as_ref().map_or(0, |t| t.version)))
            }
            _ => None,
        })
        .collect();
    assert_eq!(told, [(1, 0, 3), (2, 1, 3)]);
    let version = lab.topology().version;
    let stamp = lab.topology().stamp();
    lab.beat(1, Heartbeat { topology: stamp, ..beat("a:1", 5) });
    let heard = PeerAnswer::Heard { seq: 2, term: Term(7), topology: None };
    assert_eq!(lab.take(), [NodeEffect::ToPeer(PeerId(1), heard)]);
    assert_eq!(lab.topology().version, version);
}

#[test]
fn the_topology_says_what_to_acquire_and_what_to_hand_over() {
    let mut lab = Lab::new();
    lab.follow("a:1", 7, Some(topology(7, 1, "a:1", &["a:1", ME])));
    assert_eq!(owns(&lab.take()), [1, 3, 5]);
    lab.feed(NodeInput::Owned(PartitionId(1), Epoch(10)));
    lab.feed(NodeInput::Owned(PartitionId(3), Epoch(10)));
    // Confirmed while it is not owned: once more, by the newer assignment.
    lab.hear(7, Some(topology(7, 2, "a:1", &["a:1", ME])));
    assert_eq!(owns(&lab.take()), [5]);
    // Nobody's: kept. Another's: handed over, or not acquired any more.
    let mut next = topology(7, 3, "a:1", &["a:1", ME]);
    (next.owners[1], next.owners[3], next.owners[5]) = (None, Some(0), Some(0));
    lab.hear(7, Some(next));
    assert_eq!(disowns(&lab.take()), [3, 5]);
    // It came too late, and is the other's already.
    lab.feed(NodeInput::Owned(PartitionId(5), Epoch(11)));
    assert_eq!(disowns(&lab.take()), [5]);
    lab.feed(NodeInput::Lost(PartitionId(3)));
    lab.feed(NodeInput::Lost(PartitionId(5)));
    lab.pass(60, false);
    let owned: Vec<_> = lab.sent().last().unwrap().owned.iter().map(|(p, _)| p.0).collect();
    assert_eq!((owns(&lab.out), owned), (vec![], vec![1]));
}

#[test]
fn what_is_lost_is_asked_for_again_less_and_less_often() {
    let mut lab = Lab::leading(7, None);
    let p = PartitionId(2);
    let mut waits = Vec::new();
    for _ in 0..8 {
        lab.feed(NodeInput::Owned(p, Epoch(1)));
        lab.take();
        lab.feed(NodeInput::Lost(p));
        let since = lab.now;
        while owns(&lab.out).is_empty() {
            lab.pass(1, true);
        }
        waits.push((lab.now - since) / 10 * 10);
    }
    assert_eq!(waits, [0, 250, 500, 1_000, 2_000, 4_000, 5_000, 5_000]);
    lab.feed(NodeInput::Owned(p, Epoch(1)));
    lab.pass(10_000, true);
    lab.take();
    lab.feed(NodeInput::Lost(p));
    assert_eq!(owns(&lab.take()), [2]);
}

#[test]
fn a_lone_leader_that_stops_can_go_at_once_and_keeps_the_lease() {
    let mut lab = Lab::leading(7, None);
    lab.feed(NodeInput::Owned(PartitionId(0), Epoch(1)));
    lab.feed(NodeInput::Stop);
    assert!(has_left(&lab.take()) && lab.node.lease().is_some());
}

#[test]
fn a_leader_that_stops_hands_over_and_resigns() {
    let mut lab = Lab::leading(7, None);
    (0..P).for_each(|p| lab.feed(NodeInput::Owned(PartitionId(p), Epoch(1))));
    lab.beat(1, beat("a:1", 5));
    lab.take();
    lab.feed(NodeInput::Stop);
    let out = lab.take();
    assert_eq!((disowns(&out).len(), lab.share("a:1"), has_left(&out)), (3, 6, false));
    (0..P).for_each(|p| lab.feed(NodeInput::Lost(PartitionId(p))));
    let out = lab.take();
    assert!(has_left(&out) && out.iter().any(|e| matches!(e, NodeEffect::Resign(_))));
    assert!(!lab.node.leads());
    lab.pass(10_000, false);
    assert_eq!(campaigns(&lab.take()), 0);
}

#[test]
fn a_follower_that_stops_says_so_and_goes_when_it_owns_nothing() {
    let mut lab = Lab::new();
    lab.follow("a:1", 7, Some(topology(7, 1, "a:1", &["a:1", ME])));
    lab.feed(NodeInput::Owned(PartitionId(1), Epoch(1)));
    lab.pass(100, false);
    lab.take();
    lab.feed(NodeInput::Stop);
    assert!(lab.sent().last().unwrap().stopping);
    assert_eq!(disowns(&lab.out), [3, 5], "what was being acquired is not wanted any more");
    let mut next = topology(7, 2, "a:1", &["a:1", ME]);
    next.brokers[1].draining = true;
    next.owners = vec![Some(0); usize::from(P)];
    lab.hear(7, Some(next));
    assert_eq!(disowns(&lab.out), [3, 5, 1]);
    lab.take();
    lab.feed(NodeInput::Lost(PartitionId(1)));
    let out = lab.take();
    let last = [matches!(out[0], NodeEffect::ToLeader(_)), out[1] == NodeEffect::Left];
    assert_eq!((out.len(), last), (2, [true, true]), "{out:?}");
}

#[test]
fn a_broker_that_stops_waits_for_nobody_in_vain() {
    // The leader says that nobody else takes it.
    let mut lab = Lab::new();
    lab.follow("a:1", 7, Some(topology(7, 1, "a:1", &["a:1", ME])));
    lab.feed(NodeInput::Owned(PartitionId(1), Epoch(1)));
    lab.feed(NodeInput::Stop);
    assert!(!has_left(&lab.take()));
    let mut next = topology(7, 2, "a:1", &["a:1", ME]);
    next.brokers[1].draining = true;
    lab.feed(NodeInput::FromLeader(PeerAnswer::Heard { seq: 0, term: Term(7), topology: Some(next) }));
    assert!(has_left(&lab.take()));

    // No leader answers.
    let mut lab = Lab::new();
    lab.feed(NodeInput::Owned(PartitionId(1), Epoch(1)));
    lab.pass(5_000, false);
    lab.feed(NodeInput::Stop);
    lab.pass(1_999, false);
    assert!(!has_left(&lab.take()));
    lab.pass(1, false);
    assert!(has_left(&lab.take()));
}

#[test]
fn it_is_woken_only_now_and_then() {
    for mut lab in [Lab::new(), Lab::leading(7, None)] {
        let mut ticks = 0;
        let until = lab.now + 10_000;
        while lab.now < until {
            lab.now = lab.node.next_tick();
            lab.feed(NodeInput::Tick);
            lab.be_well();
            ticks += 1;
        }
        assert!(ticks < 120, "{ticks} times in 10 s");
    }
}
