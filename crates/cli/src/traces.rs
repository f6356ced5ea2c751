//! Traces: to a collector of OpenTelemetry, if this build can (feature `otel`) and one is named by
//! `OTEL_EXPORTER_OTLP_ENDPOINT`.
//!
//! Purpose: the spans of clients and of brokers in this process go to one exporter.
//! Not in here: the spans themselves (the client's and the broker's), the log.

mod endpoint;
#[cfg(feature = "otel")]
mod exporter;
#[cfg(feature = "otel")]
mod http;

#[cfg(feature = "otel")]
pub(crate) use exporter::{finish, layer, sink};

/// Where a broker's spans go: nowhere.
#[cfg(not(feature = "otel"))]
pub(crate) fn sink() -> Option<std::sync::Arc<dyn mtimer_broker::traces::SpanSink>> {
    if let Some((name, _)) = endpoint::endpoint() {
        tracing::warn!(
            "{name} is set, but this mtimer was built without the feature otel: no traces are exported"
        );
    }
    None
}

/// Exports the remaining spans.
#[cfg(not(feature = "otel"))]
pub(crate) fn finish() {}
