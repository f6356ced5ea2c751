//! To whom deliveries go, and how many at once.

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
