//! Many registrations of one destination: the cost of choosing one, and each one's share.

use mtimer_types::limits::MAX_REGISTRATIONS_OF_DESTINATION;

use super::*;

/// Sessions `1..=sessions` with so many registrations of one destination each.
fn crowd(sessions: u64, registrations: u32, credit: u32) -> Rig {
    let mut rig = Rig::new(EngineOptions::default());
    for n in 1..=sessions {
        rig.session(n, SessionEvent::Opened { client: u128::from(n) });
        for registration in 0..registrations {
            rig.session(n, SessionEvent::Register { registration, dest: dest("a"), credit });
        }
    }
    rig
}

fn schedule(rig: &mut Rig, timers: usize) {
    for _ in 0..timers {
        let timer = rig.timer("a", 20);
        rig.schedule(1, timer);
    }
    rig.run(50);
}

#[test]
fn what_a_delivery_costs_does_not_grow_with_the_registrations_of_its_destination() {
    const TIMERS: usize = 500;
    for (sessions, registrations) in [(1, 1), (20, 5), (20, 1_000), (2_000, 1)] {
        let mut rig = crowd(sessions, registrations, 100);
        let before = rig.engine.roster.looks.get();
        schedule(&mut rig, TIMERS);
        assert!(!rig.take_deliveries().is_empty());
        let looks = rig.engine.roster.looks.get() - before;
        let most = (TIMERS * MAX_REGISTRATIONS_OF_DESTINATION) as u64;
        assert!(looks <= most, "{looks} looks for {sessions} sessions of {registrations}");
    }
}

#[test]
fn the_registrations_of_one_session_count_as_one() {
    let mut rig = crowd(2, 1, 1_000);
    for registration in 1..8 {
        rig.session(2, SessionEvent::Register { registration, dest: dest("a"), credit: 1_000 });
    }
    schedule(&mut rig, 200);
    let deliveries = rig.take_deliveries();
    let of = |session| deliveries.iter().filter(|(to, _)| *to == SessionId(session)).count();
    assert_eq!([of(1), of(2)], [100, 100]);
}

#[test]
fn the_registrations_of_one_session_get_as_much_as_each_other() {
    let mut rig = crowd(1, 4, 1_000);
    schedule(&mut rig, 400);
    let mut sent = [0; 4];
    for (_, message) in &rig.sent {
        if let ServerMessage::Deliver { registration, deliveries } = message {
            sent[*registration as usize] += deliveries.len();
        }
    }
    assert_eq!(sent, [100; 4]);
}

#[test]
fn more_registrations_of_one_destination_than_there_may_be_are_refused_and_the_session_goes_on() {
    let most = MAX_REGISTRATIONS_OF_DESTINATION as u32;
    let mut rig = crowd(1, most + 1, 10);
    rig.run(1);
    let [(SessionId(1), ServerMessage::RegisterRefused { registration, code, message })] = &rig.sent[..]
    else {
        panic!("{:?}", rig.sent)
    };
    assert_eq!((*registration, *code), (most, ErrorCode::LimitReached));
    assert_eq!(
        message,
        "this connection has 16 registrations for test/a, the most there can be for one destination: \
         give one of them more credit"
    );
    rig.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 20 });
    rig.session(1, SessionEvent::Unregister { registration: 0 });
    rig.session(1, SessionEvent::Register { registration: most, dest: dest("a"), credit: 10 });
    rig.session(1, SessionEvent::Register { registration: most + 1, dest: dest("b"), credit: 10 });
    rig.sent.clear();
    schedule(&mut rig, 1_000);
    assert_eq!(rig.take_deliveries().len(), 170, "the credit of 16");
}
