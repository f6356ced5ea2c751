//! The topology that a broker of a cluster tells its sessions, and which sessions it sends
//! elsewhere.

use mtimer_protocol::ops::ScheduleReply;
use mtimer_protocol::{BrokerEntry, Topology};

use super::*;

/// A topology that gives the partition to the broker at this address.
fn given_to(address: &str) -> Arc<Topology> {
    let broker = BrokerEntry { address: address.into(), draining: false };
    Topology { brokers: vec![broker], owners: vec![Some(0)], ..Topology::default() }.into()
}

#[test]
fn sessions_are_told_of_the_topology_and_sent_to_the_next_owner() {
    let address = Some("own:1".into());
    let mut rig = Rig::new(EngineOptions { address, ..EngineOptions::default() });
    rig.join(1, "a", 10);
    let next = given_to("next:1");
    let now = rig.now();
    rig.engine.handle(now, Input::Topology(next.clone()));
    rig.join(2, "a", 10);
    rig.turn();
    let told = |rig: &mut Rig| -> Vec<_> {
        let told = |(s, m)| if let ServerMessage::Topology(t) = m { Some((s, t)) } else { None };
        rig.sent.drain(..).filter_map(told).collect()
    };
    assert_eq!(told(&mut rig), [(SessionId(1), (*next).clone()), (SessionId(2), (*next).clone())]);

    // It still has the partition, until it is told to give it up.
    let ask = |rig: &mut Rig| {
        let timer = rig.timer("a", 60_000);
        rig.schedule(1, timer);
        rig.turn();
        rig.take_replies().remove(0)
    };
    assert_eq!(ask(&mut rig), OpReply::Schedule(ScheduleReply::Scheduled { new: true, replaced: None }));
    rig.answers_wait = true;
    rig.engine.handle(now, Input::Disown(P));
    assert_eq!(ask(&mut rig), OpReply::Moved { owner: "next:1".into() });
    // No other broker is to have it.
    rig.engine.handle(now, Input::Topology(given_to("own:1")));
    assert_eq!(code(&ask(&mut rig)), Some(ErrorCode::NotOwner));
}

#[test]
fn in_a_cluster_an_owner_takes_outcomes_itself() {
    let mut rig = Rig::new(EngineOptions::default());
    let now = rig.now();
    rig.engine.handle(now, Input::Topology(Topology::default().into()));
    rig.join(1, "a", 10);
    let timer = rig.timer("a", 0);
    let d = rig.deliver(1, timer);
    rig.settle(1, &d, HandlerOutcome::Ok);
    rig.run(DEFER_MS);
    assert_eq!((rig.refusals(), rig.place(d.id)), (vec![], None));
}

/// The answer of a broker that has heard of no topology to an outcome of a partition that it does
/// not own.
fn refusal_without_a_topology(address: Option<String>) -> Vec<SettleRefusal> {
    let mut rig = Rig::new(EngineOptions { address, ..EngineOptions::default() });
    rig.join(1, "a", 10);
    let id = TimerId::new(Time::from_ms(START), Time::ZERO, PartitionId(1), 1);
    let outcome = HandlerOutcome::Ok;
    rig.session(1, SessionEvent::Settle(vec![Settlement { id, epoch: Epoch(1), attempt: 1, outcome }]));
    rig.turn();
    rig.refusals()
}

#[test]
fn a_member_that_has_not_heard_of_the_topology_has_outcomes_offered_again() {
    let member = refusal_without_a_topology(Some("own:1".into()));
    assert_eq!(member, [SettleRefusal::Moved], "the client has heard that the partition will be its own");
    assert_eq!(refusal_without_a_topology(None), [SettleRefusal::Late], "there is no other owner");
}
