//! The OpenMetrics format, for scrapers that ask for it: it has exemplars.
//!
//! Purpose: makes it of the text format, which differs from it in the names in the lines that
//! describe counters, and in its end. The library writes exemplars only of histograms that it counts
//! itself, under a lock.
//! Not in here: values of metrics.

use std::fmt::{self, Write};

use mtimer_core::figures::Exemplars;

use super::names::FIRE_LATENESS;

/// The format of a reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// The text format of Prometheus.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The format that a scraper wants, by its header `Accept`.
    pub(crate) fn accepted(accept: &str) -> Self {
        let quality = |wanted: &str| {
            let ranges = accept.split(',').filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let is_wanted = parts.next()?.eq_ignore_ascii_case(wanted);
                let quality = parts.find_map(|part| part.strip_prefix("q="));
                is_wanted.then(|| quality.map_or(1.0, |q| q.parse().unwrap_or(0.0)))
            });
            ranges.fold(0.0, f32::max)
        };
        let (open, text) = (quality("application/openmetrics-text"), quality("text/plain"));
        if open > 0.0 && open >= text { Self::OpenMetrics } else { Self::Text }
    }

    /// Its content type.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Makes OpenMetrics of metrics in the text format. `late`: exemplars of the lateness.
pub(super) fn open_metrics(text: &str, late: &Exemplars) -> Result<String, fmt::Error> {
    let mut out = String::with_capacity(text.len() + 2_048);
    let mut exemplars = late.buckets.iter();
    for line in text.lines() {
        let described = ["# HELP ", "# TYPE "].into_iter().find_map(|start| {
            let (name, rest) = line.strip_prefix(start)?.split_once(' ')?;
            Some((start, name.strip_suffix("_total")?, rest))
        });
        if let Some((start, name, rest)) = described {
            write!(out, "{start}{name} {rest}")?;
        } else {
            out.push_str(line);
        }
        // Buckets are in ascending order.
        let bucket = line.strip_prefix(FIRE_LATENESS.name).filter(|rest| rest.starts_with("_bucket{"));
        if let Some(exemplar) = bucket.and_then(|_| exemplars.next()?.as_ref()) {
            let (seconds, at) = (exemplar.ms as f64 / 1_000.0, exemplar.at.as_ms() as f64 / 1_000.0);
            write!(out, " # {{trace_id=\"{:032x}\"}} {seconds} {at}", exemplar.trace)?;
        }
        out.push('\n');
    }
    out.push_str("# EOF\n");
    Ok(out)
}

#[cfg(test)]
mod tests {
    use mtimer_core::figures::Exemplar;
    use mtimer_types::Time;

    use super::*;

    #[test]
    fn a_scraper_gets_open_metrics_if_it_prefers_that() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for open in [prometheus, "application/OpenMetrics-text", "text/plain, application/openmetrics-text"] {
            assert_eq!(Format::accepted(open), Format::OpenMetrics, "{open}");
        }
        let less = "text/plain;q=0.9, application/openmetrics-text;q=0.8";
        for text in ["", "*/*", "text/plain", "application/openmetrics-text; q=0", less, ";;,q=1,,"] {
            assert_eq!(Format::accepted(text), Format::Text, "{text}");
        }
    }

    #[test]
    fn exemplars_are_in_their_buckets_and_counters_are_described_by_their_families() {
        let text = "# HELP mtimer_fires_total Sent.\n# TYPE mtimer_fires_total counter\n\
                    mtimer_fires_total 3\n# TYPE mtimer_fire_lateness_seconds histogram\n\
                    mtimer_fire_lateness_seconds_sum 0.1\n\
                    mtimer_fire_lateness_seconds_bucket{le=\"0.001\"} 1\n\
                    mtimer_fire_lateness_seconds_bucket{le=\"0.002\"} 2\n";
        let mut late = Exemplars::default();
        late.buckets[1] = Some(Exemplar { trace: 0xab, ms: 2, at: Time::from_ms(1_700_000_000_123) });
        let expected = "# HELP mtimer_fires Sent.\n# TYPE mtimer_fires counter\n\
                        mtimer_fires_total 3\n# TYPE mtimer_fire_lateness_seconds histogram\n\
                        mtimer_fire_lateness_seconds_sum 0.1\n\
                        mtimer_fire_lateness_seconds_bucket{le=\"0.001\"} 1\n\
                        mtimer_fire_lateness_seconds_bucket{le=\"0.002\"} 2 # \
                        {trace_id=\"000000000000000000000000000000ab\"} 0.002 1700000000.123\n# EOF\n";
        assert_eq!(open_metrics(text, &late).unwrap(), expected);
    }
}
