//! `mtimer ping`: whether a broker is there. For health checks.

use std::time::Duration;

use clap::Args;
use futures_util::future::join_all;
use mtimer_client::{Client, ConnectError, ErrorCode};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::args::{ConnectTlsArgs, SOFTWARE, TokenArgs};
use super::exit::{Exit, Failure};
use super::logging::LogArgs;
use super::moment;
use super::output::{Output, note_error};

/// Whether a broker is there
///
/// For health checks: connects to this broker and to no other, and has it answer a ping. Of several
/// addresses each is asked, and the exit code is 0 only if all are there. That asks
/// no store, costs the same however many timers there are, and is answered also while Redis is
/// away. A broker that answers that it takes no more clients is there, too.
///
/// --ready: it can do its work, too: it says of itself what its /readyz says, such as that it has
/// joined its cluster and reaches Redis. If it cannot, the reasons are shown. Exit code 3: it is not
/// there; 13: it is there and not ready.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  mtimer ping\n  mtimer ping --ready --broker 10.0.0.5:7400 --timeout 500ms\n  \
        mtimer ping --broker 10.0.0.5:7400,10.0.0.6:7400"
)]
pub(crate) struct Ping {
    /// The broker's address, host:port; of several, separated by commas, each is asked
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
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = moment::timeout, default_value = "2s")]
    #[arg(help_heading = "Connection")]
    timeout: Duration,
    /// Fail unless it is ready, as its /readyz says
    #[arg(long)]
    ready: bool,
    #[command(flatten)]
    log: LogArgs,
}

impl Ping {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        self.log.start()?;
        let brokers: Vec<&str> = self.broker.split(',').map(str::trim).collect();
        let answers = join_all(brokers.iter().map(|broker| self.ping(broker))).await;
        if let [_] = &brokers[..] {
            return answers.into_iter().try_for_each(|answer| answer?.show(out));
        }
        let mut exits = Vec::new();
        for (broker, answer) in brokers.into_iter().zip(answers) {
            match answer {
                Ok(pong) => pong.show(out)?,
                Err(Failure { exit, message }) => {
                    exits.push(exit);
                    let object = json!({
                        "broker": broker, "error": exit.name(), "message": message, "exit_code": exit as u8,
                    });
                    if out.json { out.object(&object)? } else { note_error(&message) }
                }
            }
        }
        // The first that is not as it should be says which exit code.
        exits.first().map_or(Ok(()), |exit| Err(Failure::silent(*exit)))
    }

    /// Asks one broker, within the time.
    async fn ping(&self, broker: &str) -> Result<Pong, Failure> {
        timeout(self.timeout, self.ask(broker)).await.unwrap_or_else(|_| {
            let text = format!("no answer of {broker} within {} ms", self.timeout.as_millis());
            Err(Failure::new(Exit::NoConnection, text))
        })
    }

    async fn ask(&self, broker: &str) -> Result<Pong, Failure> {
        // The time for all of it bounds the parts.
        let builder = Client::builder()
            .brokers([broker])
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
                let object = json!({ "broker": broker, "refused": message });
                return Ok(Pong { object, text: format!("{broker} is there: {message}") });
            }
            Err(error) => return Err(error.into()),
        };
        let took = probe.ping().await?;
        let unready = if self.ready { probe.unready().await? } else { Vec::new() };
        if !unready.is_empty() {
            let text = format!("{broker} is there, but not ready: {}", unready.join("; "));
            return Err(Failure::new(Exit::NotNow, text));
        }
        let info = probe.info();
        let ready = self.ready.then_some(true);
        let object = json!({
            "broker": info.broker, "cluster": info.cluster, "software": info.software,
            "ping_us": u64::try_from(took.as_micros()).unwrap_or(u64::MAX), "ready": ready,
        });
        let ready = if self.ready { " and ready" } else { "" };
        let (broker, cluster, us) = (&info.broker, &info.cluster, took.as_micros());
        let text = format!("{broker} of cluster {cluster} is there{ready}: {us} us");
        Ok(Pong { object, text })
    }
}

/// A broker that is as it should be.
struct Pong {
    object: Value,
    text: String,
}

impl Pong {
    fn show(self, out: Output) -> Result<(), Failure> {
        out.either(&self.object, || self.text.clone())
    }
}
