//! Which sessions get deliveries, and how many at once.

use super::*;

#[test]
fn deliveries_go_to_the_least_loaded_and_never_beyond_credit() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 3);
    rig.join(2, "a", 100);
    for _ in 0..20 {
        let t = rig.timer("a", 1);
        rig.schedule(1, t);
    }
    rig.run(10);
    let got = rig.take_deliveries();
    let first = got.iter().filter(|(s, _)| *s == SessionId(1)).count();
    assert_eq!((got.len(), first), (20, 3));
}

#[test]
fn a_session_has_no_more_bytes_to_settle_than_it_may() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10_000);
    let payload = vec![0; 64 * 1024];
    for _ in 0..600 {
        let mut t = rig.timer("a", 0);
        t.payload = payload.clone().into();
        t.callback_timeout_ms = None;
        rig.schedule(1, t);
    }
    rig.run(20);
    let first = rig.take_deliveries();
    assert_eq!(first.len(), 256, "16 MiB and not more");
    for (_, d) in &first {
        rig.settle(1, d, HandlerOutcome::Ok);
    }
    rig.run(400);
    assert_eq!(rig.take_deliveries().len(), 256);
}

/// Deliveries and payload bytes of each frame sent since the last call.
fn take_frames(rig: &mut Rig) -> Vec<(usize, usize)> {
    let frames = rig.sent.drain(..).filter_map(|(_, message)| match message {
        ServerMessage::Deliver { deliveries, .. } => Some(deliveries),
        _ => None,
    });
    frames.map(|d| (d.len(), d.iter().map(|d| d.payload.len()).sum())).collect()
}

#[test]
fn frames_are_full_and_bounded() {
    const KIB: usize = 1024;
    for (count, payload, frames) in [
        (1_200, 0, vec![(500, 0), (500, 0), (200, 0)]),
        (40, 64 * KIB, vec![(16, 1024 * KIB), (16, 1024 * KIB), (8, 512 * KIB)]),
    ] {
        let mut rig = Rig::new(EngineOptions::default());
        rig.join(1, "a", 10_000);
        for _ in 0..count {
            let mut t = rig.timer("a", 200);
            t.payload = vec![0; payload].into();
            rig.schedule(1, t);
        }
        rig.run(300);
        assert_eq!(take_frames(&mut rig), frames);
    }
}

#[test]
fn frames_are_bounded_with_headers_too() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10_000);
    let value = "v".repeat(1_021);
    let headers = Headers::new(["a", "b", "c", "d"].map(|name| (name, &value))).unwrap();
    assert_eq!(headers.bytes(), 4 * 1_024);
    for _ in 0..300 {
        let timer = Timer { headers: headers.clone(), payload: Vec::new().into(), ..rig.timer("a", 200) };
        rig.schedule(1, timer);
    }
    rig.run(300);
    let lengths: Vec<usize> = take_frames(&mut rig).into_iter().map(|(len, _)| len).collect();
    assert_eq!(lengths, [256, 44]);
}

#[test]
fn every_attempt_but_the_first_counts_as_redelivered() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let t = rig.timer("a", 0);
    let mut d = rig.deliver(1, t);
    for attempt in 2..=3 {
        rig.settle(1, &d, HandlerOutcome::Retry { after_ms: None, error: "again".into() });
        rig.run(200);
        d = rig.take_deliveries().pop().expect("a retry is delivered").1;
        assert_eq!(d.attempt, attempt);
    }
    let count = |name| rig.engine.counters().find(|c| c.0 == name).map(|c| c.1);
    assert_eq!((count("delivered_total"), count("redelivered_total")), (Some(3), Some(2)));
}

#[test]
fn who_has_said_goodbye_takes_nothing_more() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 10);
    let timer = rig.timer("a", 0);
    let d = rig.deliver(1, timer);
    rig.session(1, SessionEvent::Goodbye);
    let next = rig.timer("a", 0);
    rig.schedule(1, next.clone());
    rig.run(50);
    assert_eq!(rig.take_deliveries(), []);
    // It may still settle the deliveries that it has.
    rig.settle(1, &d, HandlerOutcome::Ok);
    rig.join(2, "a", 10);
    rig.run(50);
    let to: Vec<_> = rig.take_deliveries().iter().map(|(session, d)| (*session, d.id)).collect();
    assert_eq!((to, rig.refusals(), rig.place(d.id)), (vec![(SessionId(2), next.id)], vec![], None));
}

#[test]
fn an_answer_goes_behind_the_deliveries_that_were_under_way_before_its_question() {
    let mut rig = Rig::new(EngineOptions::default());
    rig.join(1, "a", 1);
    let timer = Timer { mode: Mode::AtMostOnce, ..rig.timer("a", 50) };
    rig.schedule(1, timer);
    rig.run(45);
    rig.answers_wait = true;
    rig.run(10);
    rig.sent.clear();
    // The timer has been taken for a client that takes no more, and asks whether all has come.
    rig.hear_answers();
    rig.session(1, SessionEvent::Goodbye);
    rig.session(1, SessionEvent::Query { corr: 7, query: Query::Get(Target::Id(TimerId::NOBODYS)) });
    rig.turn();
    let sent: Vec<&ServerMessage> = rig.sent.iter().map(|(_, message)| message).collect();
    assert!(
        matches!(sent[..], [ServerMessage::Deliver { .. }, ServerMessage::Answer { corr: 7, .. }]),
        "{sent:?}"
    );
}
