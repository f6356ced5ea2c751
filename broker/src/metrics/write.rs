//! Writes metrics in the text format of Prometheus.

use std::fmt;

use mtimer_core::figures::{BUCKETS_MS, Durations};
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::exemplar::Exemplar;

use super::names::Metric;

/// Exemplars of a histogram: there are none.
type NoExemplars<'a> = Option<&'a std::collections::HashMap<usize, Exemplar<NoLabelSet, f64>>>;

/// Writes one metric after the other.
pub(super) struct MetricWriter<'a>(pub(super) DescriptorEncoder<'a>);

impl MetricWriter<'_> {
    /// Begins a metric.
    ///
    /// The library writes OpenMetrics, where a counter's samples have a suffix that its name has
    /// not. In the text format they have the same name, so names include the suffix and values of
    /// counters are written as those of gauges.
    fn begin(&mut self, metric: &'static Metric) -> Result<MetricEncoder<'_>, fmt::Error> {
        self.0.encode_descriptor(metric.name, metric.help, None, metric.kind)
    }

    /// A metric without labels.
    pub(super) fn one(&mut self, metric: &'static Metric, value: impl EncodeGaugeValue) -> fmt::Result {
        self.begin(metric)?.encode_gauge(&value)
    }

    /// A metric with one label.
    pub(super) fn by<'b, V: EncodeGaugeValue>(
        &mut self,
        metric: &'static Metric,
        values: impl IntoIterator<Item = (&'b str, V)>,
    ) -> fmt::Result {
        let mut family = self.begin(metric)?;
        for (kind, value) in values {
            family.encode_family(&[(label(metric), kind)])?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// A metric of destinations.
    pub(super) fn by_destination<'b, V: EncodeGaugeValue>(
        &mut self,
        metric: &'static Metric,
        values: impl IntoIterator<Item = ((&'b str, &'b str), V)>,
    ) -> fmt::Result {
        let mut family = self.begin(metric)?;
        for ((group, app), value) in values {
            family.encode_family(&[("group", group), ("app", app)])?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// A histogram without labels.
    pub(super) fn durations(&mut self, metric: &'static Metric, durations: &Durations) -> fmt::Result {
        write_durations(&mut self.begin(metric)?, durations)
    }

    /// Histograms with one label.
    pub(super) fn durations_by<'b>(
        &mut self,
        metric: &'static Metric,
        all: impl IntoIterator<Item = (&'b str, &'b Durations)>,
    ) -> fmt::Result {
        let mut family = self.begin(metric)?;
        for (kind, durations) in all {
            write_durations(&mut family.encode_family(&[(label(metric), kind)])?, durations)?;
        }
        Ok(())
    }
}

/// The name of its only label.
fn label(metric: &Metric) -> &'static str {
    metric.labels.first().copied().unwrap_or_default()
}

fn write_durations(encoder: &mut MetricEncoder<'_>, durations: &Durations) -> fmt::Result {
    let bounds = BUCKETS_MS.iter().map(|ms| *ms as f64 / 1_000.0).chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(durations.buckets).collect();
    let none: NoExemplars<'_> = None;
    encoder.encode_histogram(durations.sum_us as f64 / 1e6, durations.count(), &buckets, none)
}
