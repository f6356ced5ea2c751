//! Traces: the spans that the client makes, and the context that timers carry.

#![allow(clippy::unwrap_used)]

mod fake;

use std::time::Duration;

use fake::{Broker, delivery, dest, until};
use mtimer_client::{Headers, Outcome, Schedule};
use mtimer_protocol::ops;
use mtimer_protocol::ops::ScheduleReply;
use mtimer_protocol::{Delivery, OpReply, RequestOp};
use mtimer_types::TraceContext;
use opentelemetry::trace::{SpanKind, Status, TracerProvider as _};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tracing::Instrument as _;
use tracing::instrument::WithSubscriber as _;
use tracing_subscriber::layer::SubscriberExt as _;

/// A subscriber that exports into memory.
struct Exported {
    spans: InMemorySpanExporter,
    provider: SdkTracerProvider,
}

impl Exported {
    fn new() -> Self {
        let spans = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build();
        Self { spans, provider }
    }

    fn subscriber(&self) -> impl tracing::Subscriber + Send + Sync + use<> {
        let layer = tracing_opentelemetry::layer().with_tracer(self.provider.tracer("test"));
        tracing_subscriber::registry().with(layer)
    }

    fn named(&self, name: &str) -> Vec<SpanData> {
        let all = self.spans.get_finished_spans().unwrap();
        all.into_iter().filter(|span| span.name == name).collect()
    }

    fn one(&self, name: &str) -> SpanData {
        let mut found = self.named(name);
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        found.remove(0)
    }
}

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    span.attributes.iter().find(|a| a.key.as_str() == name).map(|a| a.value.to_string())
}

fn context(headers: &Headers) -> TraceContext {
    TraceContext::parse(headers.get("traceparent").unwrap()).unwrap()
}

/// Whether a header names a span.
fn names(headers: &Headers, span: &SpanData) -> bool {
    let (context, of) = (context(headers), &span.span_context);
    context.trace.to_be_bytes() == of.trace_id().to_bytes()
        && context.span.to_be_bytes() == of.span_id().to_bytes()
}

fn soon() -> Schedule {
    Schedule::after(dest(), Duration::from_secs(5)).payload("secret").header("tenant", "secret")
}

#[tokio::test(start_paused = true)]
async fn a_schedule_has_a_span_and_its_timer_carries_it() {
    let exported = Exported::new();
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let outer = async {
        let span = tracing::info_span!("outer");
        client.schedule(soon()).instrument(span).await
    };
    let (answer, headers) = tokio::join!(outer.with_subscriber(exported.subscriber()), async {
        let request = peer.request().await;
        peer.scheduled(&request).await;
        let RequestOp::Schedule(ops::Schedule { timer, .. }) = &request.ops[0] else { panic!("{request:?}") };
        timer.headers.clone()
    });
    let id = answer.unwrap().id;
    let span = exported.one("mtimer.schedule");
    assert!(names(&headers, &span) && context(&headers).is_sampled());
    assert_eq!(headers.get("tenant"), Some("secret"));
    assert_eq!((span.span_kind.clone(), &span.status), (SpanKind::Producer, &Status::Unset));
    assert_eq!(span.parent_span_id, exported.one("outer").span_context.span_id());
    let of = |name| attribute(&span, name).unwrap();
    assert_eq!([of("group"), of("app"), of("id")], [dest().group(), dest().app(), &id.to_string()]);
    assert!(!format!("{:?}", exported.spans.get_finished_spans()).contains("secret"));
}

#[tokio::test(start_paused = true)]
async fn many_schedules_share_a_span_and_a_context_of_ones_own_stays() {
    let exported = Exported::new();
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let many = client.schedule_all(vec![soon(), soon().header("traceparent", own), soon()]);
    let (answers, headers) = tokio::join!(many.with_subscriber(exported.subscriber()), async {
        let request = peer.request().await;
        let replies = vec![
            OpReply::Schedule(ScheduleReply::Scheduled { new: true, replaced: None }),
            OpReply::Schedule(ScheduleReply::Conflict),
            OpReply::Schedule(ScheduleReply::Conflict),
        ];
        peer.send(mtimer_protocol::ServerMessage::Reply { corr: request.corr, replies }).await;
        let headers = |op: &RequestOp| match op {
            RequestOp::Schedule(ops::Schedule { timer, .. }) => timer.headers.clone(),
            _ => panic!("{op:?}"),
        };
        request.ops.iter().map(headers).collect::<Vec<_>>()
    });
    assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 2);
    let span = exported.one("mtimer.schedule_all");
    assert!(matches!(span.status, Status::Error { .. }));
    assert!(names(&headers[0], &span) && names(&headers[2], &span));
    assert_eq!(headers[1].get("traceparent"), Some(own));
}

#[tokio::test(start_paused = true)]
async fn a_handlers_span_is_the_child_of_the_timers() {
    let exported = Exported::new();
    let _default = tracing::subscriber::set_default(exported.subscriber());
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let inner = client.clone();
    let _registration = client
        .on(dest(), move |callback| {
            let client = inner.clone();
            async move {
                tracing::info_span!("work").in_scope(|| {});
                if callback.id.random() == 2 {
                    // A timer that it schedules belongs to the same trace.
                    client.schedule(soon()).await.unwrap();
                    return Outcome::ok();
                }
                Outcome::retry("later")
            }
        })
        .unwrap();
    let (number, _) = peer.registration(&dest()).await;
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = Headers::new([("traceparent", parent), ("tracestate", "mtimer=17,other=1")]).unwrap();
    peer.deliver(number, vec![Delivery { headers: headers.clone(), attempt: 3, ..delivery(1) }]).await;
    peer.settle(1).await;
    until("the span has ended", || exported.named("mtimer.callback").len() == 1).await;
    let span = exported.one("mtimer.callback");
    assert_eq!(span.parent_span_id.to_string(), "b7ad6b7169203331");
    assert_eq!(span.span_context.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(
        (span.span_kind.clone(), attribute(&span, "attempt").unwrap()),
        (SpanKind::Consumer, "3".into())
    );
    assert!(matches!(span.status, Status::Error { .. }), "{:?}", span.status);
    assert_eq!(exported.one("work").parent_span_id, span.span_context.span_id());

    peer.deliver(number, vec![Delivery { headers, ..delivery(2) }]).await;
    let request = peer.request().await;
    peer.scheduled(&request).await;
    let RequestOp::Schedule(ops::Schedule { timer, .. }) = &request.ops[0] else { panic!("{request:?}") };
    assert_eq!(context(&timer.headers).trace, TraceContext::parse(parent).unwrap().trace);
    assert_eq!(timer.headers.get("tracestate"), Some("other=1"), "the brokers' entry is of the other timer");
    peer.settle(1).await;
    until("the span has ended", || exported.named("mtimer.callback").len() == 2).await;

    // Without a trace the span is the first of its own.
    peer.deliver(number, vec![delivery(3)]).await;
    peer.settle(1).await;
    until("the span has ended", || exported.named("mtimer.callback").len() == 3).await;
    let last = exported.named("mtimer.callback").pop().unwrap();
    assert_eq!(last.parent_span_id, opentelemetry::trace::SpanId::INVALID);
}

#[tokio::test(start_paused = true)]
async fn without_a_subscriber_nothing_is_carried() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let plain = Schedule::after(dest(), Duration::from_secs(5));
    let (answer, headers) = tokio::join!(client.schedule(plain), async {
        let request = peer.request().await;
        peer.scheduled(&request).await;
        let RequestOp::Schedule(ops::Schedule { timer, .. }) = &request.ops[0] else { panic!("{request:?}") };
        timer.headers.clone()
    });
    answer.unwrap();
    assert_eq!(headers, Headers::NONE);
}
