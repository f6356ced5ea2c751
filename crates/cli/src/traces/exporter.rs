//! The exporter, made from the variables that OpenTelemetry names.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mtimer_broker::otel::OtelSink;
use mtimer_broker::traces::SpanSink;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{SpanExporter, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

use super::endpoint::endpoint;
use super::http::Collector;
use crate::exit::Failure;

/// The one exporter of this process.
static PROVIDER: OnceLock<SdkTracerProvider> = OnceLock::new();
/// The client's spans.
const CLIENT: &str = "mtimer_client::trace";
/// The name of this service, unless `OTEL_SERVICE_NAME` gives one.
const SERVICE: &str = "mtimer";
/// How long the end of a command waits for the last spans to be exported.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// A layer that exports the client's spans; `None` if no collector is named. To be made inside the
/// runtime.
pub(crate) fn layer<S>() -> Result<Option<impl Layer<S> + Send + Sync>, Failure>
where
    S: Subscriber + for<'s> LookupSpan<'s> + Send + Sync,
{
    let Some((name, endpoint)) = endpoint() else { return Ok(None) };
    let provider = provider(name, &endpoint)?;
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("mtimer-client"))
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_filter(Targets::new().with_target(CLIENT, LevelFilter::INFO));
    let _ = PROVIDER.set(provider);
    Ok(Some(layer))
}

/// Where a broker's spans go; `None` if no collector is named.
pub(crate) fn sink() -> Option<Arc<dyn SpanSink>> {
    PROVIDER
        .get()
        .map(|provider| Arc::new(OtelSink::new(provider.tracer("mtimer-broker"))) as Arc<dyn SpanSink>)
}

/// Exports the remaining spans. Called outside of the runtime, while it runs.
pub(crate) fn finish() {
    if let Some(provider) = PROVIDER.get()
        && let Err(error) = provider.shutdown_with_timeout(LAST_SPANS)
    {
        tracing::debug!(%error, "the last spans were not exported");
    }
}

fn provider(name: &str, endpoint: &str) -> Result<SdkTracerProvider, Failure> {
    if !endpoint.starts_with("http://") {
        return Err(Failure::usage(format!(
            "{name} is {endpoint:?}: only http:// is spoken here; run a collector on this host that forwards \
             over https, and name it, such as http://127.0.0.1:4318"
        )));
    }
    let failed = |e: &dyn std::fmt::Display| Failure::usage(format!("traces cannot be exported: {e}"));
    let client = Collector::new(tokio::runtime::Handle::current());
    let exporter =
        SpanExporter::builder().with_http().with_http_client(client).build().map_err(|e| failed(&e))?;
    let mut resource = Resource::builder();
    if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
        resource = resource.with_service_name(SERVICE);
    }
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build())
}
