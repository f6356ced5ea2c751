//! Spans of traced timers: what a broker tells of their waits and deliveries.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mtimer_broker::BrokerOptions;
use mtimer_broker::testing::TestBroker;
use mtimer_broker::traces::{DeliveryOutcome, SpanSink, TimerPart, TimerSpan};
use mtimer_client::{Client, Outcome, Schedule, TimerId};
use mtimer_types::TraceContext;
use support::{dest, options, until};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const SOON: Duration = Duration::from_millis(50);

/// Keeps spans.
#[derive(Debug, Default)]
struct Kept(Mutex<Vec<TimerSpan>>);

impl SpanSink for Kept {
    fn record(&self, span: TimerSpan) {
        self.0.lock().unwrap().push(span);
    }
}

impl Kept {
    fn all(&self) -> Vec<TimerSpan> {
        self.0.lock().unwrap().clone()
    }

    async fn wait_for(&self, count: usize) -> Vec<TimerSpan> {
        until(&format!("{count} spans"), || self.all().len() >= count).await;
        self.all()
    }
}

/// A broker whose spans are kept, and a client of it.
async fn traced() -> (TestBroker, Arc<Kept>, Client) {
    let kept = Arc::new(Kept::default());
    let traces: Option<Arc<dyn SpanSink>> = Some(kept.clone());
    let drain_timeout = Duration::from_millis(100);
    let options = BrokerOptions { traces, drain_timeout, ..options() };
    let broker = TestBroker::start_with(options).await.unwrap();
    let client = Client::builder().brokers([broker.address()]).connect().await.unwrap();
    (broker, kept, client)
}

fn outcomes(spans: &[TimerSpan], of: TimerId) -> Vec<(u32, DeliveryOutcome, String)> {
    let delivery = |span: &TimerSpan| match &span.part {
        TimerPart::Delivery { attempt, outcome, error, .. } if span.id == of => {
            Some((*attempt, *outcome, error.to_string()))
        }
        _ => None,
    };
    spans.iter().filter_map(delivery).collect()
}

#[tokio::test]
async fn a_traced_timer_has_a_span_of_its_wait_and_one_of_each_delivery() {
    let (_broker, kept, client) = traced().await;
    let fail = AtomicBool::new(true);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let keep = seen.clone();
    let _registration = client
        .on(dest("a"), move |callback| {
            let again = callback.headers().get("tracestate").is_some() && fail.swap(false, Ordering::SeqCst);
            keep.lock().unwrap().push(callback.headers().clone());
            async move { if again { Outcome::retry("not yet") } else { Outcome::ok() } }
        })
        .unwrap();
    let schedule = || Schedule::after(dest("a"), SOON);
    for plain in [schedule(), schedule().header("traceparent", PARENT.replace("-01", "-00"))] {
        client.schedule(plain).await.unwrap();
    }
    until("they are delivered", || seen.lock().unwrap().len() == 2).await;
    let own = schedule().header("traceparent", PARENT).header("tracestate", "a=1,mtimer=5");
    let before = client.now();
    let id = client.schedule(own).await.unwrap().id;
    let spans = kept.wait_for(3).await;
    assert_eq!(spans.len(), 3, "of no other timer: {spans:?}");
    for span in &spans {
        assert_eq!((span.id, span.dest.as_ref()), (id, Some(&dest("a"))));
        assert_eq!(Some(span.parent), TraceContext::parse(PARENT));
        assert!(span.begin <= span.end);
    }
    let wait = &spans[0];
    assert_eq!((&wait.part, wait.end), (&TimerPart::Wait, id.birth_due()));
    // The client's clock is ahead of the broker's by a round trip at most.
    assert!(wait.begin.ms_since(before) <= 20_000 && before.ms_since(wait.begin) <= 1_000, "{wait:?}");
    assert!(spans[1].begin >= wait.end);
    let expected = [(1, DeliveryOutcome::Retry, "not yet"), (2, DeliveryOutcome::Acknowledged, "")];
    assert_eq!(outcomes(&spans, id), expected.map(|(n, outcome, error)| (n, outcome, error.to_owned())));
    let state = seen.lock().unwrap()[2].get("tracestate").unwrap().to_owned();
    assert_eq!(state, format!("mtimer={},a=1", wait.begin));
}

#[tokio::test]
async fn a_delivery_without_an_outcome_ends_with_its_timeout_or_its_broker() {
    let (broker, kept, client) = traced().await;
    let entered = Arc::new(AtomicUsize::new(0));
    let count = entered.clone();
    let _registration = client
        .on(dest("a"), move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<()>()
        })
        .unwrap();
    let schedule = || Schedule::after(dest("a"), Duration::ZERO).header("traceparent", PARENT).retry([]);
    let short = client.schedule(schedule().callback_timeout(Duration::from_millis(100))).await.unwrap().id;
    until("it has timed out", || !outcomes(&kept.all(), short).is_empty()).await;
    let error = "no answer within the callback timeout".to_owned();
    assert_eq!(outcomes(&kept.all(), short), [(1, DeliveryOutcome::Dead, error)]);
    let long = client.schedule(schedule()).await.unwrap().id;
    until("it runs", || entered.load(Ordering::SeqCst) == 2).await;
    broker.stop().await.unwrap();
    assert_eq!(outcomes(&kept.all(), long), [(1, DeliveryOutcome::Unknown, String::new())]);
}
