//! The log: to standard error, as text or JSON.

use std::io::{self, IsTerminal};

use clap::Args;
use mtimer_broker::config::LogFormat;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

use super::exit::Failure;
use super::flags::one_of;
use super::output::{colours, notes_as_json};

/// How the log looks.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct LogArgs {
    /// How log lines look on standard error
    #[arg(long, value_parser = one_of::<LogFormat>(), value_name = "FORMAT", default_value = LogFormat::Text.name(), help_heading = "Output")]
    log_format: LogFormat,
    /// What is logged: error, warn, info, debug, trace, or a filter such as
    /// info,mtimer_client=debug [default: MTIMER_LOG, RUST_LOG, else warn]
    #[arg(long, value_name = "FILTER", help_heading = "Output")]
    log_level: Option<String>,
}

impl LogArgs {
    /// Starts the log of a command.
    pub(crate) fn start(&self) -> Result<(), Failure> {
        start(self.log_format, &self.filter())
    }

    /// Starts the log of a measurement: its handlers fail on purpose, and that is not logged.
    pub(crate) fn start_for_bench(&self) -> Result<(), Failure> {
        start(self.log_format, &format!("mtimer_client::handler=error,{}", self.filter()))
    }

    /// What is logged.
    pub(crate) fn filter(&self) -> String {
        self.log_level.clone().or_else(from_env).unwrap_or_else(|| "warn".to_owned())
    }
}

/// The filter of the environment.
pub(crate) fn from_env() -> Option<String> {
    let variable = |name| std::env::var(name).ok().filter(|v| !v.is_empty());
    variable("MTIMER_LOG").or_else(|| variable("RUST_LOG"))
}

/// Libraries' messages about daily work are shown only if asked for by name.
const QUIET: &str = "fjall=warn,lsm_tree=warn";

/// Starts the log.
pub(crate) fn start(format: LogFormat, filter: &str) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(format!("{QUIET},{filter}")).map_err(|e| {
        Failure::usage(format!("the log filter {filter:?} is not valid: {e}; write info, for example"))
    })?;
    if format == LogFormat::Json {
        notes_as_json();
    }
    let log = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let log = match format {
        LogFormat::Json => log.json().flatten_event(true).with_filter(filter).boxed(),
        LogFormat::Text => log.with_ansi(colours(io::stderr().is_terminal())).with_filter(filter).boxed(),
    };
    let all = tracing_subscriber::registry().with(log);
    #[cfg(feature = "otel")]
    let all = all.with(super::traces::layer()?);
    all.try_init().map_err(|e| Failure::new(super::exit::Exit::Failed, format!("cannot start the log: {e}")))
}
