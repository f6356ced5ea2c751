//! `mtimer cluster drain`: emptying a broker for maintenance.

use std::time::{Duration, Instant};

use clap::Args;
use mtimer_client::Client;
use serde_json::json;

use super::args::ClientArgs;
use super::confirm::Yes;
use super::exit::{Exit, Failure};
use super::moment;
use super::output::{Output, counted, note};

/// How often it is looked how far a broker is emptied.
const LOOK: Duration = Duration::from_millis(200);

/// Empty a broker for maintenance
///
/// The broker's partitions are handed over to the others gracefully, and it is given none until
/// this is undone or it is started again. It goes on serving its clients. Waits until it owns
/// nothing, unless told not to. Asks first; where nobody can be asked, it needs --yes.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  mtimer cluster drain 10.0.0.6:7400\n  mtimer cluster drain 10.0.0.6:7400 --yes\n  \
        mtimer cluster drain 10.0.0.6:7400 --undo"
)]
pub(crate) struct Drain {
    /// The broker's address, as `mtimer cluster status` shows it
    #[arg(value_name = "BROKER")]
    address: String,
    /// Give it partitions again
    #[arg(long)]
    undo: bool,
    /// Do not wait until it is done
    #[arg(long)]
    no_wait: bool,
    /// How long to wait
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = moment::span, default_value = "60s")]
    within: Duration,
    #[command(flatten)]
    yes: Yes,
    #[command(flatten)]
    client: ClientArgs,
}

impl Drain {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        if !self.undo {
            self.yes.confirm(&format!("this takes all partitions from {}", self.address))?;
        }
        let work = async |client: &Client| self.carry_out(client, out).await;
        self.client.looking(work).await
    }

    async fn carry_out(&self, client: &Client, out: Output) -> Result<(), Failure> {
        client.drain(&self.address, !self.undo).await?;
        let began = Instant::now();
        let mut left = owned_by(client, &self.address).await?;
        while !self.undo && !self.no_wait && left > 0 {
            if began.elapsed() > self.within {
                let text = format!(
                    "{} still owns {} after {} s; it goes on being emptied",
                    self.address,
                    partitions(left),
                    self.within.as_secs()
                );
                return Err(Failure::new(Exit::NotNow, text));
            }
            tokio::time::sleep(LOOK).await;
            let now = owned_by(client, &self.address).await?;
            if now != left && !out.json {
                note(&format!("{} left", partitions(now)));
            }
            left = now;
        }
        let done = json!({ "broker": self.address, "draining": !self.undo, "partitions": left });
        out.either(&done, || match (self.undo, left) {
            (true, _) => format!("{} is given partitions again", self.address),
            (false, 0) => format!("{} is empty: stop it, or end this with --undo", self.address),
            (false, n) => format!("{} is being emptied: {} left", self.address, partitions(n)),
        })
    }
}

fn partitions(n: usize) -> String {
    counted(n as u64, "partition")
}

/// How many partitions a broker is to own or does own.
async fn owned_by(client: &Client, address: &str) -> Result<usize, Failure> {
    let view = client.cluster().await?;
    let assigned = view.topology.partitions_of(address).count();
    let owned = view.members.iter().find(|m| m.address == address).map_or(0, |m| m.owned as usize);
    Ok(assigned.max(owned))
}
