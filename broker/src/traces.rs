//! Spans of timers that belong to a trace: how long one waited, and the outcome of each delivery.
//!
//! Purpose: makes spans from the messages that pass the engine's task and from the engine's notes
//! on traced deliveries, for a [`SpanSink`], which exports them.
//! Invariant: nothing is kept of a timer without a sampled `traceparent`. The state of others is
//! bounded by [`MAX_TRACED_DELIVERIES`]; beyond it deliveries go on, without spans.
//! Not in here: how spans are exported ([`crate::otel`], or a sink of one's own).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use mtimer_core::{SessionEvent, SessionId};
use mtimer_protocol::ops::Schedule;
use mtimer_protocol::{Delivery, RequestOp};
use mtimer_store::Verdict;
use mtimer_types::headers::{TRACEPARENT, TRACESTATE};
use mtimer_types::limits::MAX_TRACED_DELIVERIES;
use mtimer_types::{Destination, Epoch, Headers, PartitionId, Time, Timer, TimerId, TraceContext};

/// Takes the spans of a broker: an exporter.
///
/// It is called from the task that delivers timers, so it must neither block nor take long.
pub trait SpanSink: fmt::Debug + Send + Sync {
    /// Takes a span that has ended.
    fn record(&self, span: TimerSpan);
}

/// A span of one timer, which has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TimerSpan {
    /// The timer.
    pub id: TimerId,
    /// Whose callback it is, if the broker knows it by the registration.
    pub dest: Option<Destination>,
    /// The trace, and the span that is the parent: the timer's `traceparent`.
    pub parent: TraceContext,
    /// When it began, by the cluster clock.
    pub begin: Time,
    /// When it ended, by the cluster clock; not before it began.
    pub end: Time,
    /// The part of a timer's life that it covers.
    pub part: TimerPart,
}

/// Names the part of a timer's life that a span covers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TimerPart {
    /// From when a broker took the schedule until the timer was due.
    Wait,
    /// From when a delivery was sent until its outcome was stored.
    Delivery {
        /// The owner's epoch.
        epoch: Epoch,
        /// 1 for the first delivery.
        attempt: u32,
        /// Its outcome.
        outcome: DeliveryOutcome,
        /// The error of a failed attempt; empty if there is none.
        error: Box<str>,
    },
}

/// Names the outcome of a delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeliveryOutcome {
    /// The handler was done.
    Acknowledged,
    /// It failed, and another attempt follows.
    Retry,
    /// It has postponed the timer: another attempt follows, later.
    Later,
    /// It failed, and the timer is a dead letter.
    Dead,
    /// It failed, and the timer's deadline leaves no other attempt.
    Expired,
    /// Nobody knows: at most once, and no outcome came in time.
    Unconfirmed,
    /// This broker does not know: the timer was ended otherwise, or its partition is another
    /// broker's by now.
    Unknown,
}

impl DeliveryOutcome {
    /// Its name in exported spans.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acknowledged => "acknowledged",
            Self::Retry => "retry",
            Self::Later => "later",
            Self::Dead => "dead",
            Self::Expired => "expired",
            Self::Unconfirmed => "unconfirmed",
            Self::Unknown => "unknown",
        }
    }
}

/// The entry of `tracestate` in which a timer carries when a broker took it, in ms.
const STATE_KEY: &str = "mtimer=";

/// A delivery that was sent and whose outcome is not stored.
#[derive(Debug)]
struct SentDelivery {
    parent: TraceContext,
    dest: Option<Destination>,
    at: Time,
    epoch: Epoch,
    attempt: u32,
}

/// State of traced timers in the engine's task.
#[derive(Debug)]
pub(crate) struct Traces {
    sink: Arc<dyn SpanSink>,
    sent: HashMap<TimerId, SentDelivery>,
    dests: HashMap<SessionId, HashMap<u32, Destination>>,
}

impl Traces {
    pub(crate) fn new(sink: Arc<dyn SpanSink>) -> Self {
        Self { sink, sent: HashMap::new(), dests: HashMap::new() }
    }

    /// Sees an event of a session before the engine gets it: notes destinations, and writes the
    /// time of arrival into traced timers.
    pub(crate) fn see(&mut self, session: SessionId, event: &mut SessionEvent, now: Time) {
        match event {
            SessionEvent::Register { registration, dest, .. } => {
                self.dests.entry(session).or_default().insert(*registration, dest.clone());
            }
            SessionEvent::Unregister { registration } => {
                if let Some(dests) = self.dests.get_mut(&session) {
                    dests.remove(registration);
                }
            }
            SessionEvent::Request(request) | SessionEvent::Screened { request, .. } => {
                for op in &mut request.ops {
                    if let RequestOp::Schedule(Schedule { timer, .. }) = op
                        && context(&timer.headers).is_some()
                    {
                        stamp(Arc::make_mut(timer), now);
                    }
                }
            }
            _ => {}
        }
    }

    /// A session is gone.
    pub(crate) fn closed(&mut self, session: SessionId) {
        self.dests.remove(&session);
    }

    /// Deliveries are sent.
    pub(crate) fn sent(&mut self, session: SessionId, registration: u32, deliveries: &[Delivery], now: Time) {
        for delivery in deliveries {
            let Some(parent) = context(&delivery.headers) else { continue };
            let dest = self.dests.get(&session).and_then(|dests| dests.get(&registration)).cloned();
            let Delivery { id, epoch, attempt, due, .. } = *delivery;
            if attempt == 1
                && let Some(begin) = taken_at(&delivery.headers).filter(|begin| *begin <= due)
            {
                let part = TimerPart::Wait;
                self.sink.record(TimerSpan { id, dest: dest.clone(), parent, begin, end: due, part });
            }
            if self.sent.len() < MAX_TRACED_DELIVERIES {
                let before = self.sent.insert(id, SentDelivery { parent, dest, at: now, epoch, attempt });
                self.end(id, before, DeliveryOutcome::Unknown, "".into(), now);
            }
        }
    }

    /// The outcome of a timer's delivery is stored; `None`: the store had nothing of the timer any
    /// more.
    pub(crate) fn settled(&mut self, id: TimerId, verdict: Option<Verdict>, now: Time) {
        let (outcome, error) = match verdict {
            Some(Verdict::Ack | Verdict::LateAck { .. }) => (DeliveryOutcome::Acknowledged, "".into()),
            Some(Verdict::Retry { error, .. }) => (DeliveryOutcome::Retry, error),
            Some(Verdict::Later { .. }) => (DeliveryOutcome::Later, "".into()),
            Some(Verdict::Dead { error, .. }) => (DeliveryOutcome::Dead, error),
            Some(Verdict::Expired { .. }) => (DeliveryOutcome::Expired, "".into()),
            Some(Verdict::Unconfirmed) => (DeliveryOutcome::Unconfirmed, "".into()),
            None => (DeliveryOutcome::Unknown, "".into()),
        };
        let sent = self.sent.remove(&id);
        self.end(id, sent, outcome, error, now);
    }

    /// An ownership has ended: the next owner learns the outcomes of its deliveries.
    pub(crate) fn lost(&mut self, partition: PartitionId, now: Time) {
        let lost: Vec<TimerId> = self.sent.keys().filter(|id| id.partition() == partition).copied().collect();
        lost.into_iter().for_each(|id| self.settled(id, None, now));
    }

    /// The broker ends.
    pub(crate) fn close(&mut self, now: Time) {
        let all: Vec<TimerId> = self.sent.keys().copied().collect();
        all.into_iter().for_each(|id| self.settled(id, None, now));
    }

    fn end(
        &self,
        id: TimerId,
        sent: Option<SentDelivery>,
        outcome: DeliveryOutcome,
        error: Box<str>,
        now: Time,
    ) {
        let Some(SentDelivery { parent, dest, at: begin, epoch, attempt }) = sent else { return };
        let part = TimerPart::Delivery { epoch, attempt, outcome, error };
        self.sink.record(TimerSpan { id, dest, parent, begin, end: now.max(begin), part });
    }
}

/// The trace of a timer with these headers, if it is recorded.
fn context(headers: &Headers) -> Option<TraceContext> {
    if headers.is_empty() {
        return None;
    }
    headers.get(TRACEPARENT).and_then(TraceContext::parse).filter(TraceContext::is_sampled)
}

/// Writes the arrival time into a timer's `tracestate`, in front of the others' entries, as W3C
/// requires. Leaves it out if it does not fit.
fn stamp(timer: &mut Timer, now: Time) {
    let others = timer.headers.get(TRACESTATE).unwrap_or_default().split(',').map(str::trim);
    let others = others.filter(|entry| !entry.is_empty() && !entry.starts_with(STATE_KEY));
    let own = format!("{STATE_KEY}{now}");
    let all: Vec<&str> = std::iter::once(own.as_str()).chain(others).collect();
    if let Ok(headers) = timer.headers.with(TRACESTATE, &all.join(",")) {
        timer.headers = headers;
    }
}

/// When a broker took a timer with these headers.
fn taken_at(headers: &Headers) -> Option<Time> {
    let entry = headers.get(TRACESTATE)?.split(',').find_map(|entry| entry.trim().strip_prefix(STATE_KEY))?;
    entry.parse().ok().filter(|ms| *ms <= Time::MAX.as_ms()).map(Time::from_ms)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;
    use mtimer_protocol::Request;
    use mtimer_types::{KeyPolicy, Mode};

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const S: SessionId = SessionId(3);

    #[derive(Debug, Default)]
    struct Kept(Mutex<Vec<TimerSpan>>);

    impl SpanSink for Kept {
        fn record(&self, span: TimerSpan) {
            self.0.lock().unwrap().push(span);
        }
    }

    fn traces() -> (Traces, Arc<Kept>) {
        let kept = Arc::new(Kept::default());
        (Traces::new(kept.clone()), kept)
    }

    fn at(ms: u64) -> Time {
        Time::from_ms(ms)
    }

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        Headers::new(pairs.iter().copied()).unwrap()
    }

    fn delivery(n: u64, attempt: u32, headers: Headers) -> Delivery {
        Delivery {
            id: TimerId::new(at(500), at(0), PartitionId(n as u16 % 2), n),
            key: None,
            due: at(500),
            epoch: Epoch(9),
            attempt,
            mode: Mode::AtLeastOnce,
            timeout_ms: 1_000,
            payload: Bytes::new(),
            headers,
        }
    }

    /// The headers of a schedule with these ones when the engine gets it.
    fn seen(pairs: &[(&str, &str)]) -> Headers {
        let timer = Timer {
            headers: headers(pairs),
            ..Timer::new(TimerId::from_u128(1), Destination::new("g", "a").unwrap(), at(500))
        };
        let ops = vec![RequestOp::Schedule(Schedule { timer: timer.into(), policy: KeyPolicy::Create })];
        let mut event = SessionEvent::Request(Request { corr: 1, first_sent: at(0), ops });
        traces().0.see(S, &mut event, at(17));
        match event {
            SessionEvent::Request(Request { mut ops, .. }) => match ops.remove(0) {
                RequestOp::Schedule(Schedule { timer, .. }) => timer.headers.clone(),
                op => panic!("{op:?}"),
            },
            event => panic!("{event:?}"),
        }
    }

    #[test]
    fn a_traced_timer_bears_when_it_came_and_others_stay_as_they_are() {
        let state = |pairs: &[(&str, &str)]| seen(pairs).get("tracestate").map(str::to_owned);
        let traced = ("traceparent", PARENT);
        assert_eq!(state(&[traced]).unwrap(), "mtimer=17");
        assert_eq!(state(&[traced, ("tracestate", "b=2, mtimer=3 ,,c=4")]).unwrap(), "mtimer=17,b=2,c=4");
        let long = "x".repeat(1_020);
        assert_eq!(state(&[traced, ("tracestate", &long)]).unwrap(), long, "there is no space");
        let unsampled = PARENT.replace("-01", "-00");
        for plain in [&[][..], &[("a", "1")], &[("traceparent", "?")], &[("traceparent", &unsampled)]] {
            assert_eq!(seen(plain), headers(plain));
        }
    }

    #[test]
    fn a_wait_is_told_with_the_first_delivery_and_only_if_it_is_known_when_it_began() {
        for (state, attempt, waits) in [
            ("mtimer=17", 1, vec![(17, 500)]),
            ("a=1, mtimer=500", 1, vec![(500, 500)]),
            ("mtimer=17", 2, vec![]),
            ("mtimer=501", 1, vec![]),
            ("mtimer=99999999999999999999", 1, vec![]),
            ("mtimer=x", 1, vec![]),
            ("a=1", 1, vec![]),
        ] {
            let (mut traces, kept) = traces();
            let own = headers(&[("traceparent", PARENT), ("tracestate", state)]);
            traces.sent(S, 1, &[delivery(1, attempt, own)], at(505));
            let spans = kept.0.lock().unwrap();
            let told: Vec<_> = spans.iter().map(|s| (s.begin.as_ms(), s.end.as_ms())).collect();
            assert_eq!(told, waits, "{state} {attempt}");
        }
    }

    #[test]
    fn a_delivery_ends_once_and_what_is_not_known_is_told_when_its_partition_goes() {
        let (mut traces, kept) = traces();
        let own = || headers(&[("traceparent", PARENT)]);
        let outcomes = || -> Vec<DeliveryOutcome> {
            let outcome = |span: TimerSpan| match span.part {
                TimerPart::Delivery { outcome, .. } => outcome,
                TimerPart::Wait => panic!("{span:?}"),
            };
            kept.0.lock().unwrap().drain(..).map(outcome).collect()
        };
        let all: Vec<Delivery> = (0..6).map(|n| delivery(n, 2, own())).collect();
        traces.sent(S, 1, &all, at(505));
        traces.settled(all[0].id, Some(Verdict::Ack), at(600));
        traces.settled(all[0].id, Some(Verdict::Ack), at(600));
        assert_eq!(outcomes(), [DeliveryOutcome::Acknowledged]);
        traces.settled(TimerId::from_u128(77), Some(Verdict::Expired { next: at(600) }), at(600));
        assert_eq!(outcomes(), []);
        traces.settled(all[1].id, None, at(600));
        traces.sent(S, 1, &[delivery(2, 3, own())], at(700));
        assert_eq!(outcomes(), [DeliveryOutcome::Unknown; 2], "gone, and sent again");
        traces.lost(PartitionId(1), at(800));
        assert_eq!(outcomes(), [DeliveryOutcome::Unknown; 2], "of timers 3 and 5");
        traces.close(at(300));
        assert!(kept.0.lock().unwrap().iter().all(|span| span.end >= span.begin));
        assert_eq!(outcomes(), [DeliveryOutcome::Unknown; 2], "of timers 2 and 4");
        assert!(traces.sent.is_empty());
    }

    #[test]
    fn destinations_are_known_while_they_are_registered() {
        let (mut traces, kept) = traces();
        let dest = Destination::new("g", "a").unwrap();
        let own = || headers(&[("traceparent", PARENT)]);
        let mut register = SessionEvent::Register { registration: 1, dest: dest.clone(), credit: 1 };
        traces.see(S, &mut register, at(0));
        traces.sent(S, 1, &[delivery(1, 2, own())], at(505));
        traces.see(S, &mut SessionEvent::Unregister { registration: 1 }, at(506));
        traces.sent(S, 1, &[delivery(2, 2, own())], at(507));
        traces.closed(S);
        assert!(traces.dests.is_empty());
        traces.close(at(600));
        let spans = kept.0.lock().unwrap();
        let known = |n: u64| spans.iter().find(|s| s.id.random() == n).unwrap().dest.clone();
        assert_eq!((known(1), known(2)), (Some(dest), None));
    }

    #[test]
    fn no_more_deliveries_are_kept_than_the_limit() {
        let (mut traces, _) = traces();
        let own = headers(&[("traceparent", PARENT)]);
        for n in 0..MAX_TRACED_DELIVERIES as u64 + 5 {
            traces.sent(S, 1, &[delivery(n, 2, own.clone())], at(505));
        }
        assert_eq!(traces.sent.len(), MAX_TRACED_DELIVERIES);
    }
}
