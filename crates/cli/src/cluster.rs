//! `mtimer cluster`: the brokers, their partitions, the connected clients.

use std::time::Duration;

use clap::{Args, Subcommand};
use mtimer_client::{BrokerView, Client, ClusterView, PartitionId, PartitionView, Status};
use serde_json::{Value, json};

use super::args::ClientArgs;
use super::drain::Drain;
use super::exit::Failure;
use super::moment;
use super::output::{Output, TextTable, Tone, counted, grouped};
use super::problems;
use super::remove_cluster::RemoveCluster;
use super::signals::StopSignal;
use super::window::{self, Section, Window};

/// Partitions without an owner that are named.
const PARTITIONS_NAMED: usize = 10;

#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:\n  mtimer cluster status\n  mtimer cluster drain 10.0.0.6:7400")]
pub(crate) enum Cluster {
    Status(ClusterStatus),
    Drain(Drain),
    Remove(RemoveCluster),
}

/// Leader, brokers, partitions, clients
///
/// Shows problems first, then sums, then the brokers: what the leader says of the members, and each
/// of what it owns. Then partitions that have no owner, change it, or whose store cannot be reached
/// (with --partitions all of them), and who listens.
///
/// A row of --partitions: who is to own it (and, while it is handed over, who does), its epoch,
/// timers to come, overdue, in the owner's memory, delivered and not settled, to be retried, dead.
///
/// With --watch at a terminal it fits the window: what does not is counted. Where there is no
/// terminal everything is shown, with an empty line between two looks.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  mtimer cluster status --broker 10.0.0.5:7400\n  mtimer cluster status --watch 1s\n  \
    mtimer cluster status --partitions\n  \
    mtimer cluster status --json | jq '.brokers[] | {address, partitions}'"
)]
pub(crate) struct ClusterStatus {
    /// Again and again, until stopped [default pause: 2s]
    #[arg(long, value_name = "PAUSE", value_parser = moment::span, num_args = 0..=1, default_missing_value = "2s")]
    watch: Option<Duration>,
    /// Show every partition
    #[arg(long)]
    partitions: bool,
    #[command(flatten)]
    client: ClientArgs,
}

impl Cluster {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        match self {
            Self::Status(status) => status.run(out).await,
            Self::Drain(drain) => drain.run(out).await,
            Self::Remove(remove) => remove.run(out).await,
        }
    }
}

/// All that there is to show.
struct Picture {
    cluster: String,
    view: ClusterView,
    brokers: Vec<(String, Result<BrokerView, String>)>,
    /// Whether a broker that knows no topology is to get one from a leader.
    awaits_leader: bool,
    /// Problems that the brokers report.
    problems: Vec<String>,
}

impl ClusterStatus {
    async fn run(self, out: Output) -> Result<(), Failure> {
        let Some(pause) = self.watch else {
            let picture = self.client.looking(Picture::take).await?;
            return picture.show(out, self.partitions, None);
        };
        let stop = StopSignal::on_signals("stopping")?;
        let watch = async |client: &Client| {
            let mut is_first = true;
            while !stop.is_asked() {
                let picture = Picture::take(client).await?;
                // It may have another size by now.
                let window = Window::of_stdout();
                match window {
                    Some(_) => out.clear()?,
                    None if is_first || out.json => {}
                    None => out.text("")?,
                }
                is_first = false;
                picture.show(out, self.partitions, window)?;
                if stop.unless(tokio::time::sleep(pause)).await.is_none() {
                    break;
                }
            }
            Ok(())
        };
        self.client.looking(watch).await
    }
}

impl Picture {
    async fn take(client: &Client) -> Result<Self, Failure> {
        let view = match client.topology() {
            Some(_) => client.cluster().await?,
            None => ClusterView::default(),
        };
        let views = client.broker_views().await;
        let brokers = views.into_iter().map(|(address, view)| (address, view.map_err(|e| e.to_string())));
        let brokers = brokers.collect();
        // Without an answer other problems are unknown.
        let unanswered = |error| vec![format!("not all brokers have said what is wrong: {error}")];
        let status = client.status().await;
        // Only a broker that shares its store counts this.
        let counts = |status: &Status| status.counters.iter().any(|(name, _)| name == "campaigns_total");
        let awaits_leader = status.as_ref().is_ok_and(counts);
        let problems = status.map_or_else(unanswered, |status| problems::of_status(&status));
        let cluster = client.info().cluster.clone();
        let mut this = Self { cluster, view, brokers, awaits_leader, problems };
        this.problems.extend(this.own_problems());
        Ok(this)
    }

    /// Whether there is a cluster around the broker at all.
    fn clustered(&self) -> bool {
        self.view.topology.version > 0
    }

    fn owner(&self, partition: PartitionId) -> Option<(&str, &PartitionView)> {
        self.brokers.iter().find_map(|(address, view)| {
            let row = view.as_ref().ok()?.partitions.iter().find(|p| p.partition == partition)?;
            Some((address.as_str(), row))
        })
    }

    /// The counts of a partition, if its owner has answered and could count it.
    fn counted(&self, partition: PartitionId) -> Option<&PartitionView> {
        self.owner(partition).map(|(_, row)| row).filter(|row| row.reachable)
    }

    fn numbers(&self) -> Vec<PartitionId> {
        let owned =
            self.brokers.iter().filter_map(|(_, view)| view.as_ref().ok()).flat_map(|v| &v.partitions);
        let assigned = (0..).map(PartitionId).take(self.view.topology.owners.len());
        let mut all: Vec<_> = owned.map(|p| p.partition).chain(assigned).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Problems that only a look at the whole cluster shows.
    fn own_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (address, error) in self.brokers.iter().filter_map(|(a, v)| Some((a, v.as_ref().err()?))) {
            problems.push(format!("{address} does not answer: {error}"));
        }
        let nobodys: Vec<String> =
            self.numbers().into_iter().filter(|p| self.owner(*p).is_none()).map(|p| p.to_string()).collect();
        if !nobodys.is_empty() {
            let (count, shown) = (nobodys.len() as u64, nobodys.len().min(PARTITIONS_NAMED));
            let more = if nobodys.len() > shown { ", ..." } else { "" };
            problems.push(format!(
                "{} without an owner ({}{more}): their timers wait until a broker takes them",
                counted(count, "partition"),
                nobodys[..shown].join(", ")
            ));
        }
        for member in self.view.members.iter().filter(|m| m.held_back_ms > 0) {
            problems.push(format!(
                "{} comes and goes, and is given nothing for {} s",
                member.address,
                member.held_back_ms / 1_000
            ));
        }
        problems
    }

    fn show(&self, out: Output, partitions: bool, window: Option<Window>) -> Result<(), Failure> {
        if out.json {
            return out.object(&self.json());
        }
        let sections = self.sections(out, partitions, window.is_some());
        let lines = window.map_or_else(|| window::plain(&sections), |window| window::fit(&sections, window));
        lines.iter().try_for_each(|line| out.text(line))
    }

    fn json(&self) -> Value {
        let t = &self.view.topology;
        let brokers: Vec<Value> =
            self.brokers.iter().map(|(address, view)| self.broker_json(address, view)).collect();
        let partitions: Vec<Value> = self.numbers().into_iter().map(|p| self.partition_json(p)).collect();
        let rows = || self.brokers.iter().filter_map(|(_, v)| v.as_ref().ok()).flat_map(|v| &v.partitions);
        // A sum that lacks a partition would be less than there is.
        let is_whole = self.numbers().into_iter().all(|p| self.counted(p).is_some());
        let total = |count: fn(&PartitionView) -> u64| is_whole.then(|| rows().map(count).sum::<u64>());
        let mut clients = Vec::new();
        for (address, view) in &self.brokers {
            for c in view.iter().flat_map(|v| &v.clients) {
                clients.push(json!({
                    "group": c.dest.group(), "app": c.dest.app(), "broker": address, "sessions": c.sessions,
                    "credit": c.credit, "in_flight": c.in_flight, "waiting": c.waiting,
                }));
            }
        }
        json!({
            "cluster": self.cluster,
            "leader": self.clustered().then_some(&t.leader),
            "problems": self.problems,
            "term": t.term.0,
            "version": t.version,
            "pending": total(|p| p.pending),
            "overdue": total(|p| p.overdue),
            "in_flight": total(|p| p.in_flight),
            "retrying": total(|p| p.retrying),
            "parked": total(|p| p.parked),
            "dead": total(|p| p.dead),
            "brokers": brokers,
            "partitions": partitions,
            "clients": clients,
        })
    }

    fn broker_json(&self, address: &str, view: &Result<BrokerView, String>) -> Value {
        let t = &self.view.topology;
        let member = self.view.members.iter().find(|m| m.address == *address);
        // Of a broker that nobody hears of nothing is known, which is not 0.
        let load = view.as_ref().map(|v| v.load).ok().or_else(|| member.map(|m| m.load));
        let owned = view.as_ref().map(|v| v.partitions.len()).ok();
        json!({
            "address": address,
            "leads": self.clustered() && t.leader == *address,
            "software": member.map(|m| &m.software),
            "weight": member.map(|m| m.weight),
            "heartbeat_age_ms": member.map(|m| m.heartbeat_age_ms),
            "draining": t.brokers.iter().any(|b| b.address == *address && b.draining),
            "stopping": member.is_some_and(|m| m.stopping),
            "held_back_ms": member.map_or(0, |m| m.held_back_ms),
            "unreachable_partitions": member.map_or(0, |m| m.unreachable),
            "partitions": owned.or_else(|| member.map(|m| m.owned as usize)),
            "sessions": load.map(|load| load.sessions),
            "loaded": load.map(|load| load.loaded),
            "in_flight": load.map(|load| load.in_flight),
            "error": view.as_ref().err(),
        })
    }

    fn partition_json(&self, partition: PartitionId) -> Value {
        let owned = self.owner(partition);
        let row = owned.map(|(_, row)| *row).unwrap_or_default();
        // A partition that nobody could count is null, not 0.
        let counted = self.counted(partition);
        let stored = |count: fn(&PartitionView) -> u64| counted.map(count);
        let of_owner = |count: u64| owned.map(|_| count);
        json!({
            "partition": partition.0,
            "assigned": self.view.topology.owner(partition),
            "owner": owned.map(|(owner, _)| owner),
            "epoch": owned.map(|_| row.epoch.0),
            "reachable": row.reachable,
            "pending": stored(|p| p.pending),
            "overdue": stored(|p| p.overdue),
            "loaded": of_owner(row.loaded),
            "in_flight": of_owner(row.in_flight),
            "retrying": stored(|p| p.retrying),
            "parked": stored(|p| p.parked),
            "taken": stored(|p| p.taken),
            "dead": stored(|p| p.dead),
        })
    }

    /// The most important sections are first. `urgent_first`: partitions that need a look go before
    /// the others.
    fn sections(&self, out: Output, partitions: bool, urgent_first: bool) -> [Section; 5] {
        let t = &self.view.topology;
        let name = out.tone(Tone::Strong, &self.cluster);
        let mut head = vec![match self.clustered() {
            true => format!("cluster {name}: led by {}, term {}, topology {}", t.leader, t.term.0, t.version),
            false if self.awaits_leader => {
                format!("cluster {name}: this broker has not joined it, and knows of no leader")
            }
            false => format!("{name}: one broker alone on its store"),
        }];
        head.extend(problems::lines(&self.problems, out));
        let mut numbers = self.numbers();
        let is_settled = |partition: &PartitionId| self.mark(*partition).is_empty();
        if !partitions {
            numbers.retain(|partition| !is_settled(partition));
        } else if urgent_first {
            let is_due = |p: &PartitionId| self.owner(*p).is_some_and(|(_, row)| row.overdue > 0);
            numbers.sort_by_key(|p| (is_settled(p), !is_due(p)));
        }
        let shown =
            if numbers.is_empty() { Vec::new() } else { self.partitions_table(&numbers).lines().collect() };
        [
            Section::of_text("problems", head),
            Section::of_table("sums", self.sums_table().lines()),
            Section::of_table("brokers", self.brokers_table().lines()),
            Section::of_table("partitions", shown),
            Section::of_table("clients", self.clients_table().lines()),
        ]
    }

    fn sums_table(&self) -> TextTable<8> {
        let mut table = TextTable::new([
            "partitions",
            "without owner",
            "pending",
            "overdue",
            "in memory",
            "in flight",
            "retrying",
            "dead",
        ]);
        let numbers = self.numbers();
        let rows: Vec<&PartitionView> =
            numbers.iter().filter_map(|p| self.owner(*p)).map(|(_, row)| row).collect();
        let sum = |count: fn(&PartitionView) -> u64| grouped(rows.iter().map(|row| count(row)).sum());
        // A sum that lacks a partition would be less than there is.
        let is_whole = numbers.iter().all(|p| self.counted(*p).is_some());
        let stored = |count: fn(&PartitionView) -> u64| if is_whole { sum(count) } else { "?".to_owned() };
        table.row([
            grouped(numbers.len() as u64),
            grouped((numbers.len() - rows.len()) as u64),
            stored(|p| p.pending),
            stored(|p| p.overdue),
            sum(|p| p.loaded),
            sum(|p| p.in_flight),
            stored(|p| p.retrying),
            stored(|p| p.dead),
        ]);
        table
    }

    /// The problem of a partition, in a word; empty if it has none.
    fn mark(&self, partition: PartitionId) -> String {
        let owned = self.owner(partition);
        match (owned, self.view.topology.owner(partition)) {
            (None, Some(to)) => format!("nobody's yet, on its way to {to}"),
            (Some((now, _)), Some(to)) if now != to => format!("on its way to {to}"),
            (None, None) => "nobody can have it".to_owned(),
            (Some((_, row)), _) if !row.reachable => "its store cannot be reached".to_owned(),
            _ => String::new(),
        }
    }

    fn brokers_table(&self) -> TextTable<8> {
        let mut table = TextTable::new([
            "broker",
            "software",
            "heartbeat",
            "partitions",
            "sessions",
            "in memory",
            "in flight",
            "",
        ]);
        for (address, view) in &self.brokers {
            let b = self.broker_json(address, view);
            let number = |name: &str| b[name].as_u64().map_or_else(|| "?".to_owned(), grouped);
            let marks = [
                (b["leads"] == true, "leads"),
                (b["draining"] == true, "draining"),
                (b["stopping"] == true, "stopping"),
                (b["held_back_ms"].as_u64() > Some(0), "held back: comes and goes"),
                (b["unreachable_partitions"].as_u64() > Some(0), "cannot serve all partitions"),
            ];
            let marks: Vec<&str> = marks.iter().filter(|(on, _)| *on).map(|(_, mark)| *mark).collect();
            table.row([
                address.clone(),
                b["software"].as_str().unwrap_or("").to_owned(),
                b["heartbeat_age_ms"].as_u64().map_or_else(|| "-".to_owned(), |ms| format!("{ms} ms ago")),
                number("partitions"),
                number("sessions"),
                number("loaded"),
                number("in_flight"),
                marks.join(", "),
            ]);
        }
        table
    }

    fn partitions_table(&self, numbers: &[PartitionId]) -> TextTable<10> {
        let mut table = TextTable::new([
            "partition",
            "owner",
            "epoch",
            "pending",
            "overdue",
            "in memory",
            "in flight",
            "retrying",
            "dead",
            "",
        ]);
        for &partition in numbers {
            let owned = self.owner(partition);
            let row = owned.map(|(_, row)| *row).unwrap_or_default();
            let counted = self.counted(partition);
            let stored =
                |count: fn(&PartitionView) -> u64| counted.map(count).map_or_else(|| "?".to_owned(), grouped);
            let of_owner = |count: u64| owned.map_or_else(|| "-".to_owned(), |_| grouped(count));
            let (pending, overdue) = (stored(|p| p.pending), stored(|p| p.overdue));
            let (loaded, flying) = (of_owner(row.loaded), of_owner(row.in_flight));
            let (retrying, dead) = (stored(|p| p.retrying), stored(|p| p.dead));
            table.row([
                partition.to_string(),
                owned.map_or("-", |(owner, _)| owner).to_owned(),
                row.epoch.to_string(),
                pending,
                overdue,
                loaded,
                flying,
                retrying,
                dead,
                self.mark(partition),
            ]);
        }
        table
    }

    fn clients_table(&self) -> TextTable<7> {
        let mut table =
            TextTable::new(["group", "app", "broker", "sessions", "credit", "in flight", "waiting"]);
        for (address, view) in &self.brokers {
            for c in view.iter().flat_map(|v| &v.clients) {
                table.row([
                    c.dest.group().to_owned(),
                    c.dest.app().to_owned(),
                    address.clone(),
                    grouped(c.sessions.into()),
                    grouped(c.credit),
                    grouped(c.in_flight),
                    grouped(c.waiting),
                ]);
            }
        }
        table
    }
}
