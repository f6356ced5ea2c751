//! The state of a broker over HTTP: metrics in the text format of Prometheus or as OpenMetrics, and
//! whether it is ready.
//!
//! Purpose: one scrape reads the counters where they are kept, asks the engine's task for an
//! [`Observed`](crate::observed::Observed), has the store counted if the last count is too old
//! ([`stored`]), and writes all of it as metrics of one registry.
//! Invariant: nothing is counted for metrics that takes a lock or memory for each timer; labels
//! come from fixed lists, but for the names of destinations, whose number is a setting.
//! Not in here: HTTP.

mod collect;
#[cfg(test)]
mod documented;
mod names;
mod open_metrics;
mod process;
mod stored;
mod write;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mtimer_store::{Census, Store};
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use self::collect::Scrape;
pub(crate) use self::open_metrics::Format;
use self::open_metrics::open_metrics;
pub(crate) use self::stored::LastCount;
use crate::access::AccessControl;
use crate::counters::ShellCounters;
use crate::frames::ReceiveBudget;
use crate::inbox::Gate;
use crate::outbox::Outboxes;
use crate::shell::Control;

/// How long the engine's task may take to answer: it looks at waiting requests every few
/// milliseconds.
const ENGINE_WITHIN: Duration = Duration::from_secs(2);

/// The source of answers to scrapes and probes.
pub(crate) struct MetricsSource {
    pub(crate) control: mpsc::Sender<Control>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) counters: Arc<ShellCounters>,
    pub(crate) gate: Gate,
    pub(crate) receiving: Arc<ReceiveBudget>,
    pub(crate) outboxes: Arc<Outboxes>,
    /// Destinations that have metrics of their own.
    pub(crate) destinations: usize,
    pub(crate) access: Arc<AccessControl>,
    pub(crate) started: SystemTime,
    pub(crate) stored: LastCount,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    /// The engine's task has ended.
    #[error("the broker has ended")]
    Ended,
    /// The engine's task does not answer in time.
    #[error("the engine has not answered within {} s", ENGINE_WITHIN.as_secs())]
    Silent,
    /// A value could not be written.
    #[error("a metric could not be written")]
    Write(#[from] fmt::Error),
}

impl MetricsSource {
    /// Asks whether the broker is ready: the reasons why it is not.
    pub(crate) async fn unready(&self) -> Result<Vec<String>, SourceError> {
        self.ask(Control::Unready).await
    }

    /// Reads everything and writes it as metrics.
    pub(crate) async fn scrape(&self, format: Format) -> Result<String, SourceError> {
        let top = self.destinations;
        let stored = self.stored.get(|| self.count());
        let (observed, stored) = tokio::join!(self.ask(|to| Control::Observe(top, to)), stored);
        let observed = observed?;
        let late = observed.engine.tallies.sent_after_of;
        let scrape = Scrape {
            observed,
            stored,
            shell: self.counters.read(),
            store: self.store.counters(),
            inbox: self.gate.used(),
            receiving: self.receiving.used(),
            outboxes: self.outboxes.used(),
            stale: self.access.stale(),
            expiries: self.access.expiries(),
            process: process::read(self.started),
        };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(scrape));
        let mut text = String::new();
        encode_registry(&mut text, &registry)?;
        match format {
            Format::Text => Ok(text),
            Format::OpenMetrics => Ok(open_metrics(&text, &late)?),
        }
    }

    /// Completes when the engine's task has ended.
    pub(crate) async fn ended(&self) {
        self.control.closed().await;
    }

    async fn count(&self) -> Option<Census> {
        let (to, stored) = oneshot::channel();
        self.control.send(Control::Stored(to)).await.ok()?;
        stored.await.ok().flatten()
    }

    async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Control) -> Result<T, SourceError> {
        let asked = async {
            let (to, answer) = oneshot::channel();
            self.control.send(question(to)).await.map_err(|_| SourceError::Ended)?;
            answer.await.map_err(|_| SourceError::Ended)
        };
        timeout(ENGINE_WITHIN, asked).await.unwrap_or(Err(SourceError::Silent))
    }
}
