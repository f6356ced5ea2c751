//! `mtimer status`: a broker's state in numbers.

use clap::Args;
use mtimer_client::{Client, LimitedDestination, ParkedDestination, PausedDestination};
use serde_json::{Map, Value, json};

use super::args::ClientArgs;
use super::exit::Failure;
use super::output::{Output, TextTable, Tone, counted, grouped};
use super::{destination, problems};

/// A broker's state in numbers
///
/// Shows problems first (looked for every ten seconds); then where the timers of its partitions
/// are (pending, retrying, parked, dead and so on), what is in
/// memory, and what was counted since it started. It is asked alone, also if it is one of a
/// cluster; of several addresses the first that answers. With --all the brokers of its cluster are
/// asked, too, and their numbers added up.
///
/// A broker counts in its store for this: to see whether it is there, use mtimer ping.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer status\n  mtimer status --counters\n  mtimer status --all\n  \
    mtimer status --json | jq .pending\n  mtimer status --all --json | jq .problems")]
pub(crate) struct StatusCommand {
    /// Show every counter, also those that are 0
    #[arg(long)]
    counters: bool,
    /// Add up the numbers of all brokers of the cluster that can be reached
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// Numbers that are counted in the store.
const STORED: [&str; 8] = ["pending", "retrying", "parked", "taken", "dead", "keys", "residue", "staged"];

impl StatusCommand {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        let ask = async |client: &Client| Ok((client.info(), client.status().await?));
        let asked =
            if self.all { self.client.looking(ask).await } else { self.client.looking_at_one(ask).await };
        let (info, status) = asked?;
        // Unknown counts are not shown as numbers.
        let unknown = problems::count(&status, "stored_unknown_partitions");
        let age_ms = problems::count(&status, "stored_age_ms");
        let numbers = [
            ("pending", status.pending, "first delivery to come"),
            ("retrying", status.retrying, "a further attempt to come"),
            ("ready", status.ready, "due, waiting for credit"),
            ("in_flight", status.in_flight, "delivered, not settled"),
            ("parked", status.parked, "due, and nobody takes them"),
            ("taken", status.taken, "at-most-once, sent or about to be; unconfirmed ones, too"),
            ("dead", status.dead, "dead letters"),
            ("keys", status.keys, "keys of live timers"),
            ("staged", status.staged, "brought by imports that are not released"),
            ("residue", status.residue, "left in the store without a timer"),
            ("loaded", status.loaded, "timers in memory"),
            ("loaded_bytes", status.loaded_bytes, "bytes of them"),
            (
                "sessions",
                status.sessions,
                if self.all { "clients, once at each broker" } else { "clients, and at the leader brokers" },
            ),
        ];
        let mut problems = problems::of_status(&status);
        let left_out = problems::count(&status, "brokers_unanswered");
        if left_out > 0 {
            problems.push(format!(
                "{} not connected, and left out of these numbers: mtimer cluster status names them",
                if left_out == 1 { "1 broker is".to_owned() } else { format!("{left_out} brokers are") }
            ));
        }
        if out.json {
            let mut object = Map::new();
            let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
            put("broker", if self.all { Value::Null } else { info.broker.clone().into() });
            put("cluster", info.cluster.clone().into());
            put("software", info.software.clone().into());
            put("store", info.store.clone().into());
            put("durability", info.durability.clone().into());
            put("partitions", info.partitions.into());
            for (name, value, _) in numbers {
                let is_known = unknown == 0 || !STORED.contains(&name);
                put(name, is_known.then_some(value).into());
            }
            put("stored_age_ms", (unknown == 0).then_some(age_ms).into());
            put("problems", json!(problems));
            put("parked_destinations", status.parked_destinations.iter().map(parked_object).collect());
            put("paused_destinations", status.paused_destinations.iter().map(paused_object).collect());
            put("limited_destinations", status.limited_destinations.iter().map(limited_object).collect());
            put("lost_brokers", status.lost_brokers.iter().map(lost_object).collect());
            put("unreached_leaders", status.unreached_leaders.iter().map(unreached_object).collect());
            put("counters", status.counters.into_iter().map(|(name, n)| (name, json!(n))).collect());
            return out.object(&object);
        }
        out.text(&format!(
            "cluster {} at {}: {}, store {} ({}), {}",
            out.tone(Tone::Strong, &info.cluster),
            if self.all { "all its brokers" } else { &info.broker },
            info.software,
            info.store,
            info.durability,
            counted(info.partitions.into(), "partition"),
        ))?;
        problems::lines(&problems, out).iter().try_for_each(|line| out.text(line))?;
        let mut table = TextTable::new(["what", "count", ""]);
        for (name, value, meaning) in numbers {
            let shown = match STORED.contains(&name) {
                true if unknown > 0 => "unknown".to_owned(),
                _ => grouped(value),
            };
            table.row([name.to_owned(), shown, meaning.to_owned()]);
        }
        for (name, value) in status.counters.into_iter().filter(|(_, n)| self.counters || *n > 0) {
            let when = if name.ends_with("_total") { "since start" } else { "now" };
            table.row([name, grouped(value), when.to_owned()]);
        }
        table.lines().try_for_each(|line| out.text(&line))
    }
}

fn paused_object(one: &PausedDestination) -> Value {
    let mut object = Map::new();
    object.insert("group".to_owned(), one.dest.group().into());
    object.insert("app".to_owned(), one.dest.app().into());
    destination::put_pause(&mut object, &one.pause);
    object.into()
}

fn limited_object(one: &LimitedDestination) -> Value {
    let mut object = Map::new();
    object.insert("group".to_owned(), one.dest.group().into());
    object.insert("app".to_owned(), one.dest.app().into());
    object.insert("waiting".to_owned(), one.waiting.into());
    object.insert("oldest_ms".to_owned(), one.oldest_ms.into());
    destination::put_limits(&mut object, &one.limits);
    object.into()
}

fn parked_object(one: &ParkedDestination) -> Value {
    let ParkedDestination { dest, parked, sessions } = one;
    json!({ "group": dest.group(), "app": dest.app(), "parked": parked, "sessions": sessions })
}

fn unreached_object((address, why): &(String, String)) -> Value {
    json!({ "address": address, "why": why })
}

fn lost_object((address, ms): &(String, u64)) -> Value {
    json!({ "address": address, "lost_ms_ago": ms })
}
