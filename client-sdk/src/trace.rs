//! Spans of the client's work for an application, and the trace that a timer carries.
//!
//! Purpose: `mtimer.schedule` and `mtimer.schedule_all` around requests, `mtimer.callback` around
//! handlers, all at the level INFO with the target `mtimer_client::trace`. With the feature `otel`
//! the trace goes on in the timer: its headers get the context of the span that scheduled it, and
//! the handler's span becomes a child of that.
//! Invariant: spans never have payloads or values of headers.
//! Not in here: where spans go. That is up to the application's subscriber.

use mtimer_types::{HandlerOutcome, Headers, Timer};
use tracing::Span;
use tracing::field::Empty;

use crate::{Callback, Outcome, ScheduleError};

/// The span of one schedule.
pub(crate) fn schedule(timer: &Timer) -> Span {
    tracing::info_span!(
        "mtimer.schedule",
        group = timer.dest.group(),
        app = timer.dest.app(),
        id = %timer.id,
        otel.kind = "producer",
        otel.status_code = Empty,
    )
}

/// The span of many schedules.
pub(crate) fn schedule_all(timers: usize) -> Span {
    tracing::info_span!("mtimer.schedule_all", timers, otel.kind = "producer", otel.status_code = Empty)
}

/// The span of a handler.
pub(crate) fn callback(callback: &Callback) -> Span {
    let span = tracing::info_span!(
        parent: None,
        "mtimer.callback",
        group = callback.dest.group(),
        app = callback.dest.app(),
        id = %callback.id,
        attempt = callback.attempt,
        otel.kind = "consumer",
        otel.status_code = Empty,
    );
    if !span.is_disabled() && !callback.headers.is_empty() {
        propagation::adopt(&span, &callback.headers);
    }
    span
}

/// Says in a span that a schedule has failed.
pub(crate) fn scheduled<T>(span: &Span, result: &Result<T, ScheduleError>) {
    if result.is_err() {
        span.record("otel.status_code", "ERROR");
    }
}

/// Says in a span that a handler has failed.
pub(crate) fn concluded(span: &Span, outcome: &Outcome) {
    let is_failed = match &outcome.0 {
        HandlerOutcome::Retry { .. } | HandlerOutcome::Fail { .. } => true,
        HandlerOutcome::Ok | HandlerOutcome::Later { .. } | HandlerOutcome::NotBegun => false,
    };
    if is_failed {
        span.record("otel.status_code", "ERROR");
    }
}

/// The trace context that timers get.
#[derive(Debug, Default)]
pub(crate) struct Carried(Headers);

impl Carried {
    /// The context of a span or, if nobody traces it, the current context around it.
    pub(crate) fn of(span: &Span) -> Self {
        Self(propagation::context(span))
    }

    /// Puts the context into a timer, unless it has one. A timer whose headers leave no space for
    /// it goes without.
    pub(crate) fn inject(&self, timer: &mut Timer) {
        if self.0.is_empty() || timer.headers.get(mtimer_types::headers::TRACEPARENT).is_some() {
            return;
        }
        if let Ok(headers) = Headers::new(self.0.iter().chain(timer.headers.content())) {
            timer.headers = headers;
        }
    }
}

#[cfg(not(feature = "otel"))]
mod propagation {
    use super::*;

    pub(super) fn context(_: &Span) -> Headers {
        Headers::NONE
    }

    pub(super) fn adopt(_: &Span, _: &Headers) {}
}

#[cfg(feature = "otel")]
mod propagation {
    use mtimer_types::TraceContext;
    use mtimer_types::headers::{TRACEPARENT, TRACESTATE};
    use opentelemetry::Context;
    use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    use super::*;

    /// The brokers' key in `tracestate`. Its value of one timer means nothing for another.
    const BROKERS: &str = "mtimer";

    /// The context that goes into timers, as headers.
    pub(super) fn context(span: &Span) -> Headers {
        let own = span.context();
        let context = if own.span().span_context().is_valid() { own } else { Context::current() };
        let span = context.span();
        let from = span.span_context();
        if !from.is_valid() {
            return Headers::NONE;
        }
        let parent = TraceContext {
            trace: u128::from_be_bytes(from.trace_id().to_bytes()),
            span: u64::from_be_bytes(from.span_id().to_bytes()),
            flags: from.trace_flags().to_u8(),
        }
        .to_string();
        let state = from.trace_state().delete(BROKERS).unwrap_or_default().header();
        let parent = (TRACEPARENT, parent.as_str());
        let whole =
            Headers::new([parent].into_iter().chain((!state.is_empty()).then_some((TRACESTATE, &*state))));
        // A state that is too long is left out, as W3C allows.
        whole.or_else(|_| Headers::new([parent])).unwrap_or_default()
    }

    /// Makes a span a child of the one that a timer's headers name.
    pub(super) fn adopt(span: &Span, headers: &Headers) {
        let Some(parent) = headers.get(TRACEPARENT).and_then(TraceContext::parse) else { return };
        let state = headers.get(TRACESTATE).and_then(|state| state.parse::<TraceState>().ok());
        let from = SpanContext::new(
            TraceId::from_bytes(parent.trace.to_be_bytes()),
            SpanId::from_bytes(parent.span.to_be_bytes()),
            TraceFlags::new(parent.flags),
            true,
            state.unwrap_or_default(),
        );
        // Without a layer of OpenTelemetry there is no trace to go on with.
        let _ = span.set_parent(Context::new().with_remote_span_context(from));
    }
}
