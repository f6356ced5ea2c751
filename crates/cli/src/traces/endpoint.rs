//! Which collector the environment names.

/// Names the collector, the second one before the first.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

/// The variable that names a collector, and its value.
pub(super) fn endpoint() -> Option<(&'static str, String)> {
    let named = |name| std::env::var(name).ok().filter(|value| !value.is_empty()).map(|value| (name, value));
    ENDPOINTS.into_iter().rev().find_map(named)
}
