//! Exports the spans of a broker by OpenTelemetry.
//!
//! Not in here: where a tracer's spans go. The program that runs the broker makes the provider;
//! nothing global is set.

use std::fmt;
use std::time::SystemTime;

use opentelemetry::trace::{
    Span, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId,
    TraceState, Tracer,
};
use opentelemetry::{Context, KeyValue};

use crate::traces::{DeliveryOutcome, SpanSink, TimerPart, TimerSpan};

/// Makes OpenTelemetry spans of a broker's spans, with a tracer.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use mtimer_broker::BrokerOptions;
/// use mtimer_broker::otel::OtelSink;
/// use opentelemetry::trace::TracerProvider;
///
/// fn traced(provider: &impl TracerProvider<Tracer: Send + Sync + 'static>) -> BrokerOptions {
///     let sink = OtelSink::new(provider.tracer("mtimer-broker"));
///     BrokerOptions { traces: Some(Arc::new(sink)), ..BrokerOptions::default() }
/// }
/// ```
pub struct OtelSink<T>(T);

impl<T: Tracer + Send + Sync> OtelSink<T> {
    /// Makes a sink that hands spans to this tracer. Its processor should be one that exports
    /// batches: it is called from the task that delivers timers.
    pub const fn new(tracer: T) -> Self {
        Self(tracer)
    }
}

impl<T> fmt::Debug for OtelSink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OtelSink")
    }
}

impl<T: Tracer + Send + Sync> SpanSink for OtelSink<T> {
    fn record(&self, span: TimerSpan) {
        let parent = SpanContext::new(
            TraceId::from_bytes(span.parent.trace.to_be_bytes()),
            SpanId::from_bytes(span.parent.span.to_be_bytes()),
            TraceFlags::new(span.parent.flags),
            true,
            TraceState::default(),
        );
        let name = match span.part {
            TimerPart::Wait => "mtimer.wait",
            TimerPart::Delivery { .. } => "mtimer.delivery",
        };
        let builder = SpanBuilder::from_name(name)
            .with_kind(SpanKind::Internal)
            .with_start_time(SystemTime::from(span.begin))
            .with_attributes(attributes(&span));
        let context = Context::new().with_remote_span_context(parent);
        let mut made = self.0.build_with_context(builder, &context);
        if let TimerPart::Delivery { outcome, error, .. } = &span.part
            && *outcome != DeliveryOutcome::Acknowledged
        {
            made.set_status(Status::error(error.to_string()));
        }
        made.end_with_timestamp(span.end.into());
    }
}

fn attributes(span: &TimerSpan) -> Vec<KeyValue> {
    let mut all = vec![KeyValue::new("id", span.id.to_string())];
    if let Some(dest) = &span.dest {
        all.push(KeyValue::new("group", dest.group().to_owned()));
        all.push(KeyValue::new("app", dest.app().to_owned()));
    }
    if let TimerPart::Delivery { epoch, attempt, outcome, .. } = &span.part {
        all.push(KeyValue::new("attempt", i64::from(*attempt)));
        all.push(KeyValue::new("epoch", epoch.to_string()));
        all.push(KeyValue::new("outcome", outcome.name()));
    }
    all
}
