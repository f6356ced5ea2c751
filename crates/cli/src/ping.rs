//! `mtimer ping`: whether a broker is there. What health checks ask.

use std::time::Duration;

use clap::Args;
use mtimer_client::{Client, ConnectError, ErrorCode};
use serde_json::json;
use tokio::time::timeout;

use super::args::{ConnectTlsArgs, SOFTWARE, TokenArgs};
use super::exit::{Exit, Failure};
use super::logging::LogArgs;
use super::moment;
use super::output::Output;

/// Whether one broker is there
///
/// For health checks: connects to this broker and to no other, and has it answer a ping. That asks
/// no store, costs the same however many timers there are, and is answered also while Redis is
/// away. A broker that answers that it takes no more clients is there, too.
///
/// --ready: since its start it has joined its cluster besides, so a leader counts on it; it stays
/// ready when it loses the leader later. A broker that runs alone is ready once it answers. Exit
/// code 3: it is not there; 13: it is there and not ready.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  mtimer ping\n  mtimer ping --ready --broker 10.0.0.5:7400 --timeout 500ms"
)]
pub(crate) struct Ping {
    /// The broker's address, host:port
    #[arg(
        long,
        value_name = "ADDR",
        env = "MTIMER_BROKER",
        default_value = "127.0.0.1:7400",
        help_heading = "Connection"
    )]
    broker: String,
    #[command(flatten)]
    token: TokenArgs,
    #[command(flatten)]
    tls: ConnectTlsArgs,
    /// How long it may take altogether
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = moment::span, default_value = "2s")]
    #[arg(help_heading = "Connection")]
    timeout: Duration,
    /// Fail unless it has joined its cluster
    #[arg(long)]
    ready: bool,
    #[command(flatten)]
    log: LogArgs,
}

impl Ping {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        self.log.start()?;
        if self.broker.contains(',') {
            return Err(Failure::usage(format!("{:?} are several brokers: name one", self.broker)));
        }
        timeout(self.timeout, self.ask(out)).await.unwrap_or_else(|_| {
            let text = format!("no answer of {} within {} ms", self.broker, self.timeout.as_millis());
            Err(Failure::new(Exit::NoConnection, text))
        })
    }

    async fn ask(&self, out: Output) -> Result<(), Failure> {
        // The time for all of it is what bounds the parts.
        let builder = Client::builder()
            .brokers([self.broker.clone()])
            .token(self.token.read()?)
            .software(SOFTWARE)
            .connect_timeout(Duration::ZERO)
            .request_timeout(self.timeout);
        let mut probe = match self.tls.apply(builder)?.probe().await {
            Ok(probe) => probe,
            Err(ConnectError::Refused {
                code: ErrorCode::Overloaded | ErrorCode::LimitReached | ErrorCode::Stopping,
                message,
                ..
            }) if !self.ready => {
                let object = json!({ "broker": self.broker, "refused": message });
                return out.either(&object, || format!("{} is there: {message}", self.broker));
            }
            Err(error) => return Err(error.into()),
        };
        let took = probe.ping().await?;
        let joined = if self.ready { Some(probe.joined().await?) } else { None };
        if joined == Some(false) {
            let text = format!(
                "{} is there, but has not joined cluster {}: it waits for the leader",
                self.broker,
                probe.info().cluster
            );
            return Err(Failure::new(Exit::NotNow, text));
        }
        let info = probe.info();
        let object = json!({
            "broker": info.broker, "cluster": info.cluster, "software": info.software,
            "ping_us": u64::try_from(took.as_micros()).unwrap_or(u64::MAX), "ready": joined,
        });
        out.either(&object, || {
            let ready = if self.ready { "ready" } else { "there" };
            format!("{} of cluster {} is {ready}: {} us", info.broker, info.cluster, took.as_micros())
        })
    }
}
