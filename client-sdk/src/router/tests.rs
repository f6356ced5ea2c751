//! What happens between the steps of a session, and after the end.

use std::sync::Arc;
use std::time::Duration;

use mtimer_protocol::ops;
use mtimer_protocol::{ErrorCode, RequestOp};
use mtimer_types::limits::{HEARTBEAT_MS, MAX_BATCH, MAX_FRAME, REPEAT_HORIZON_MS};
use mtimer_types::{Destination, TimerId};
use tokio::sync::{Semaphore, oneshot};

use super::*;
use crate::RequestError;
use crate::call::{ReplyTarget, Waiter};

const TIMEOUT: Duration = Duration::from_secs(10);

type Answer = oneshot::Receiver<Result<OpReply, RequestError>>;

pub(crate) fn welcome() -> Welcome {
    Welcome {
        version: mtimer_protocol::VERSION,
        session: 7,
        cluster: "test".into(),
        software: "fake/1".into(),
        store: "none".into(),
        durability: "none".into(),
        partitions: 1,
        now: Time::from_ms(1_000_000),
        heartbeat_ms: HEARTBEAT_MS,
        max_frame: MAX_FRAME as u32,
        max_batch: MAX_BATCH as u32,
        broker: None,
    }
}

/// A router with a connection, and a frame taken out of it that was neither filed nor written yet.
struct Gathered {
    router: Router,
    session: u64,
    now: Instant,
    frame: RequestFrame,
    answer: Answer,
}

impl Gathered {
    fn new() -> Self {
        let (mut router, now) = (Router::new(1, Duration::from_secs(30)), Instant::now());
        let session = router.opened(&welcome()).0.session;
        let (reply, answer) = oneshot::channel();
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let op = RequestOp::Purge(ops::Purge { id: TimerId::from_u128(0) });
        router.request([PendingOp::new(op, 1, Waiter::new(ReplyTarget::Alone(reply, permit), now, TIMEOUT))]);
        let mut out = Vec::new();
        router.gather(session, Time::from_ms(1_000_000), now, &mut out);
        let frame = out.into_iter().find_map(|outgoing| match outgoing {
            Outgoing::Frame(frame) => Some(frame),
            Outgoing::Message(_) => None,
        });
        Self { router, session, now, frame: frame.unwrap(), answer }
    }
}

#[test]
fn what_is_about_to_be_written_is_under_way() {
    let Gathered { mut router, session, now, frame, mut answer } = Gathered::new();
    assert!(!router.is_idle(), "closing would not wait for it");
    router.stopping(session);
    assert!(!router.may_leave(session), "its connection would be left");
    router.sweep(now);
    assert!(router.ticking, "nobody would look at the time again");
    router.sent(frame);
    router.sweep(now);
    assert!(router.ticking && !router.is_idle());
    // Its time is looked at, and once nothing is under way it is not any more.
    router.sweep(now + Duration::from_millis(REPEAT_HORIZON_MS));
    assert!(matches!(answer.try_recv().unwrap(), Err(RequestError::Unknown { .. })));
    assert!(!router.ticking && router.is_idle() && router.may_leave(session));
}

#[test]
fn what_cannot_be_written_is_under_way_no_more() {
    let Gathered { mut router, session, now, frame, mut answer } = Gathered::new();
    router.unsent(frame, Instant::now(), "too long");
    let refused = answer.try_recv().unwrap();
    assert!(matches!(refused, Err(RequestError::Refused { code: ErrorCode::Invalid, .. })), "{refused:?}");
    router.sweep(now);
    assert!(!router.ticking && router.is_idle());
    router.stopping(session);
    assert!(router.may_leave(session));
}

#[test]
fn a_session_that_ends_before_it_writes_leaves_nothing_behind() {
    let Gathered { mut router, session, now, frame, .. } = Gathered::new();
    drop(frame);
    router.closed(session, "it panicked");
    router.sweep(now);
    assert!(!router.ticking && router.is_idle());
}

#[test]
fn of_what_may_still_leave_as_the_client_closes_the_outcome_is_unknown() {
    let Gathered { mut router, frame, mut answer, .. } = Gathered::new();
    router.close();
    assert_eq!(router.sent(frame), 0);
    let unknown = answer.try_recv().unwrap();
    assert!(matches!(unknown, Err(RequestError::Unknown { .. })), "{unknown:?}");
}

#[test]
fn a_connection_that_comes_after_the_end_is_nobodys() {
    let mut router = Router::new(1, Duration::from_secs(30));
    router.close();
    let (handle, _) = router.opened(&welcome());
    assert!(!router.is_connected());
    assert!(router.may_leave(handle.session));
    router.drain().try_recv().expect("nothing to wait for");
}

#[test]
fn a_registration_is_closed_in_time_whatever_the_broker_says() {
    let (mut router, now) = (Router::new(1, Duration::from_secs(30)), Instant::now());
    router.opened(&welcome());
    let inbox = || Arc::new(Inbox::new(Destination::new("group", "app").unwrap(), 1));
    let first = router.register(inbox()).unwrap();
    let second = router.register(inbox()).unwrap();
    let third = router.register(inbox()).unwrap();
    router.unregister(first, Some(now + TIMEOUT));
    router.unregister(second, Some(now + 2 * TIMEOUT));
    assert!(router.is_timed());
    router.sweep(now + TIMEOUT - Duration::from_millis(1));
    assert!(router.ticking && router.inbox(first).is_some());
    router.sweep(now + TIMEOUT);
    assert!(router.ticking && router.inbox(first).is_none() && router.inbox(second).is_some());
    router.sweep(now + 2 * TIMEOUT);
    assert!(!router.ticking && router.inbox(second).is_none() && router.inbox(third).is_some());
}
