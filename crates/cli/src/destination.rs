//! `mtimer destination`: settings of destinations: pause and resume, the order of priorities.

mod limit;

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use mtimer_client::{
    Bulk, BulkAction, BulkId, Client, ConfiguredDestination, DeliveryLimits, DestinationSettings, Filter,
    Pause, PauseRequest, Time,
};
use serde_json::{Map, Value, json};

use super::args::{ClientArgs, destination};
use super::exit::{Exit, Failure};
use super::output::{Output, TextTable, counted, grouped, note, plain};
use super::signals::StopSignal;
use super::{moment, view};

/// How often it is looked whether the timers are moved.
const LOOK: Duration = Duration::from_millis(100);

/// Settings of a destination: pause it, resume it, see who has paused it, set its order
///
/// Settings belong to a destination, whoever schedules its timers. They are stored with the timers,
/// and hold until somebody changes them, also across restarts and takeovers.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Examples:\n  mtimer destination pause --group shop --app orders --reason \"database moves\"\n  \
    mtimer destination list\n  mtimer destination resume --group shop --app orders --over 5m"
)]
pub(crate) enum DestinationCommand {
    List(DestinationList),
    Get(DestinationGet),
    Pause(DestinationPause),
    Resume(DestinationResume),
    Set(DestinationSet),
}

/// Lists the destinations that have settings, and what these are
///
/// Those that were paused once are among them. Destinations that the token may not read are left
/// out. `mtimer destinations` counts the timers of all destinations.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer destination list\n  mtimer destination list --paused\n  \
    mtimer destination list --json | jq -r 'select(.paused) | .app'")]
pub(crate) struct DestinationList {
    /// Only those that are paused now
    #[arg(long)]
    paused: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// Shows the settings of a destination
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  mtimer destination get --group shop --app orders")]
pub(crate) struct DestinationGet {
    #[command(flatten)]
    dest: DestArgs,
    #[command(flatten)]
    client: ClientArgs,
}

/// Stops deliveries to a destination
///
/// When the command has ended with exit code 0 no delivery starts any more, by any broker. What is
/// being delivered is finished and settled. Timers can be scheduled, cancelled and rescheduled as
/// before. Those that come due wait: they use no attempts, and their deadlines run. `mtimer status`
/// shows that the destination is paused.
///
/// With exit code 8 or 9 the destination may be paused in a part of the cluster: repeat the
/// command. For a partition that has just changed hands it waits for about a second, until its
/// former owner is certain to send nothing more.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  mtimer destination pause --group shop --app orders --reason \"database moves\"\n  \
    mtimer destination pause --group shop --app orders --for 30m --over 5m\n  \
    mtimer destination pause --group shop --app orders --until 2030-01-31T12:00:00Z"
)]
pub(crate) struct DestinationPause {
    #[command(flatten)]
    dest: DestArgs,
    /// Deliveries begin again by themselves after so long
    #[arg(long = "for", value_name = "DURATION", allow_hyphen_values = true, value_parser = moment::span, conflicts_with = "until")]
    lasts: Option<Duration>,
    /// Deliveries begin again by themselves then: RFC 3339, or milliseconds since 1970
    #[arg(long, value_name = "TIME", value_parser = moment::time)]
    until: Option<Time>,
    /// If it ends by itself: let what has waited go evenly over so long
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = moment::span)]
    over: Option<Duration>,
    /// Why, for people; at most 256 bytes
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// Who pauses it, for people; your user name if it is left out
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    #[command(flatten)]
    client: ClientArgs,
}

/// Begins deliveries to a paused destination again
///
/// The timers that have waited go first come, first served, as fast as handlers take them, or
/// evenly over the time that --over says. What comes due after the resume does not wait for them.
///
/// --shift moves the timers that are not due yet by as long as the pause has lasted, and their
/// deadlines with them, before it resumes; those that have come due are not moved.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer destination resume --group shop --app orders\n  \
    mtimer destination resume --group shop --app orders --over 10m\n  \
    mtimer destination resume --group shop --app orders --shift")]
pub(crate) struct DestinationResume {
    #[command(flatten)]
    dest: DestArgs,
    /// Let what has waited go evenly over so long; at most 7 days
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = moment::span)]
    over: Option<Duration>,
    /// Move what is not due yet by as long as the pause has lasted
    #[arg(long)]
    shift: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// Sets limits of a destination, and the order in which its waiting timers go
///
/// What is not named stays as it is.
///
/// The limits hold for all brokers together, within a second or two. --concurrency: so many
/// deliveries at most are sent and not settled. A handler counts until it has answered or its
/// callback timeout has passed, also if its connection is lost. --rate: so many deliveries start in
/// a time, retries included; --burst: so many may start at once after a pause. What waits uses no
/// attempt, and `mtimer story` calls it limited. After a start of all brokers, and for the part of
/// a broker that has died, a concurrency limit lets nothing start until the callback timeout has
/// passed: handlers of before may still be at work.
///
/// --order: timers wait if handlers have no capacity for them. Each has a priority: urgent, high,
/// normal (if it was given none) or low. weighted: of 15 turns urgent ones have 8, high ones 4,
/// normal ones 2 and low ones 1, so that none waits forever. strict: always the most urgent first,
/// however long the others wait. Within a class they go in the order of time.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer destination set --group shop --app orders --concurrency 50\n  \
    mtimer destination set --group shop --app orders --rate 1000/s --burst 100\n  \
    mtimer destination set --group shop --app orders --rate none --concurrency none\n  \
    mtimer destination set --group shop --app orders --order strict")]
#[group(id = "setting", required = true, multiple = true, args = ["concurrency", "rate", "order"])]
pub(crate) struct DestinationSet {
    #[command(flatten)]
    dest: DestArgs,
    /// So many deliveries at the same time, 1 to 1,000,000; none: any number
    #[arg(long, value_name = "N", value_parser = limit::concurrency)]
    concurrency: Option<limit::ConcurrencyArg>,
    /// So many starts a second (s), minute (m), hour (h) or day (d), such as 1000/s; none: any
    /// number
    #[arg(long, value_name = "N/TIME", value_parser = limit::rate)]
    rate: Option<limit::RateArg>,
    /// So many starts at once after a pause, 1 to 1,000,000; if it is left out, as many as the rate
    /// allows in a tenth of a second, and one at least
    #[arg(long, value_name = "N", requires = "rate")]
    burst: Option<u32>,
    /// The order of those that wait
    #[arg(long, value_enum)]
    order: Option<OrderArg>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum OrderArg {
    /// Always the most urgent first
    Strict,
    /// Each class has its share of the turns
    Weighted,
}

#[derive(Args, Debug)]
struct DestArgs {
    /// The group key of the destination
    #[arg(long)]
    group: String,
    /// The app key of the destination
    #[arg(long)]
    app: String,
}

impl DestArgs {
    fn destination(&self) -> Result<mtimer_client::Destination, Failure> {
        destination(&self.group, &self.app)
    }
}

impl DestinationCommand {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        match self {
            Self::List(list) => list.run(out).await,
            Self::Get(get) => get.run(out).await,
            Self::Pause(pause) => pause.run(out).await,
            Self::Resume(resume) => resume.run(out).await,
            Self::Set(set) => set.run(out).await,
        }
    }
}

impl DestinationList {
    async fn run(self, out: Output) -> Result<(), Failure> {
        let look = async |client: &Client| Ok((client.all_destination_settings().await?, client.now()));
        let (mut all, now) = self.client.looking(look).await?;
        all.retain(|one| !self.paused || one.settings.is_paused(now));
        if out.json {
            return all.iter().try_for_each(|one| out.object(&object(one, now)));
        }
        if !all.is_empty() {
            let mut table =
                TextTable::new(["destination", "state", "since", "until", "by", "reason", "order", "limits"]);
            all.iter().for_each(|one| table.row(cells(one, now)));
            table.lines().try_for_each(|line| out.text(&line))?;
        }
        note(&format!("{} with settings", counted(all.len() as u64, "destination")));
        all.iter().filter(|one| !one.is_everywhere()).for_each(note_part);
        Ok(())
    }
}

impl DestinationGet {
    async fn run(self, out: Output) -> Result<(), Failure> {
        let dest = self.dest.destination()?;
        let look = async |client: &Client| Ok((client.destination_settings(&dest).await?, client.now()));
        let (one, now) = self.client.looking(look).await?;
        let object = object(&one, now);
        out.either(&object, || view::fields(&object, out))?;
        if !one.is_everywhere() {
            note_part(&one);
        }
        Ok(())
    }
}

impl DestinationPause {
    async fn run(self, out: Output) -> Result<(), Failure> {
        let dest = self.dest.destination()?;
        let by = self.by.or_else(|| std::env::var("USER").ok()).unwrap_or_default();
        let mut request = PauseRequest::new(by, self.reason).over(self.over.unwrap_or_default());
        request = match (self.lasts, self.until) {
            (Some(lasts), _) => request.ends_after(lasts),
            (None, Some(until)) => request.ends_at(until),
            (None, None) if self.over.is_some() => {
                return Err(Failure::usage(
                    "--over says how a pause ends by itself: give --for or --until, or give --over to resume",
                ));
            }
            (None, None) => request,
        };
        let version = self.client.with(async |client| Ok(client.pause(&dest, request).await?)).await?;
        out.either(&json!({ "group": dest.group(), "app": dest.app(), "version": version }), || {
            format!("{dest} is paused: no delivery to it starts any more")
        })
    }
}

impl DestinationResume {
    async fn run(self, out: Output) -> Result<(), Failure> {
        let dest = self.dest.destination()?;
        let stop =
            StopSignal::on_signals("the destination stays paused; give the same command again to go on")?;
        let over = self.over.unwrap_or_default();
        let (version, moved) = self
            .client
            .with(async |client| {
                let present = client.destination_settings(&dest).await?;
                let pause = present.settings.pause.clone().filter(|pause| !pause.is_over(client.now()));
                let mut moved = None;
                match &pause {
                    Some(pause) if self.shift => {
                        moved = Some(shift(client, &present, pause, &stop).await?);
                    }
                    Some(_) => {}
                    None => note(&format!("{dest} is not paused")),
                }
                Ok((client.resume(&dest, over).await?, moved))
            })
            .await?;
        let object = json!({ "group": dest.group(), "app": dest.app(), "version": version, "moved": moved });
        out.either(&object, || {
            let moved = moved.map_or_else(String::new, |n| format!("; {} were moved", counted(n, "timer")));
            format!("deliveries to {dest} have begun again{moved}")
        })
    }
}

impl DestinationSet {
    async fn run(self, out: Output) -> Result<(), Failure> {
        let dest = self.dest.destination()?;
        if self.burst.is_some() && self.rate == Some(limit::RateArg(None)) {
            return Err(Failure::usage("--burst belongs to a rate: leave it out with --rate none"));
        }
        let change = |settings: &mut DestinationSettings| {
            if let Some(limit::ConcurrencyArg(concurrency)) = self.concurrency {
                settings.limits.concurrency = concurrency;
            }
            if let Some(limit::RateArg(rate)) = self.rate {
                settings.limits.rate = rate.map(|rate| limit::with_burst(rate, self.burst));
            }
            if let Some(order) = self.order {
                settings.strict_priority = order == OrderArg::Strict;
            }
        };
        let set = async |client: &Client| {
            client.update_settings(&dest, change).await?;
            Ok((client.destination_settings(&dest).await?, client.now()))
        };
        let (one, now) = self.client.with(set).await?;
        let object = object(&one, now);
        out.either(&object, || {
            let order = order(one.settings.strict_priority);
            format!("{dest}: {}; order: {order}", limit::shown(&one.settings.limits))
        })
    }
}

const fn order(is_strict: bool) -> &'static str {
    if is_strict { "strict" } else { "weighted" }
}

/// Moves what is not due yet by as long as the pause has lasted. Returns how many were moved. The
/// job has the same id in every repeat of the command, so that nothing is moved twice.
async fn shift(
    client: &Client,
    present: &ConfiguredDestination,
    pause: &Pause,
    stop: &StopSignal,
) -> Result<u64, Failure> {
    let now = client.now();
    let ms = i64::try_from(now.ms_since(pause.since)).unwrap_or(i64::MAX);
    let id = BulkId(u128::from(present.version) << 64 | u128::from(pause.since.as_ms()));
    let filter = Filter::of(&present.dest);
    client.begin_bulk_as(id, Bulk { from: now, ..Bulk::new(BulkAction::Shift { ms }, filter) }).await?;
    loop {
        let Some(job) = client.bulk(id).await? else {
            return Err(Failure::new(
                Exit::Partly,
                format!("the bulk job {id}, which moves timers, is gone"),
            ));
        };
        if job.has_ended() {
            if job.not_done > 0 {
                note(&format!(
                    "{} could not be moved, as an attempt had begun: mtimer bulk show {id}",
                    counted(job.not_done, "timer")
                ));
            }
            return Ok(job.done);
        }
        if stop.is_asked() {
            return Err(Failure::new(
                Exit::Interrupted,
                format!("{} were moved so far; the bulk job {id} goes on", grouped(job.done)),
            ));
        }
        stop.unless(tokio::time::sleep(LOOK)).await;
    }
}

/// A change of this destination's settings has not come to its end.
fn note_part(one: &ConfiguredDestination) {
    note(&format!(
        "{}: only {} of {} partitions have these settings: a change was broken off; give the same command again",
        one.dest, one.partitions, one.of
    ));
}

fn object(one: &ConfiguredDestination, now: Time) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("group".to_owned(), one.dest.group().into());
    object.insert("app".to_owned(), one.dest.app().into());
    object.insert("version".to_owned(), one.version.into());
    object.insert("paused".to_owned(), one.settings.is_paused(now).into());
    object.insert("order".to_owned(), order(one.settings.strict_priority).into());
    limit::put(&mut object, &one.settings.limits);
    if let Some(pause) = &one.settings.pause {
        put_pause(&mut object, pause);
    }
    object.insert("partitions".to_owned(), one.partitions.into());
    object.insert("partitions_of_cluster".to_owned(), one.of.into());
    object
}

/// Adds the fields of a pause.
pub(crate) fn put_limits(object: &mut Map<String, Value>, limits: &DeliveryLimits) {
    limit::put(object, limits);
}

/// Limits for people.
pub(crate) fn limits_shown(limits: &DeliveryLimits) -> String {
    limit::shown(limits)
}

/// Adds the fields of a pause.
pub(crate) fn put_pause(object: &mut Map<String, Value>, pause: &Pause) {
    view::put_time(object, "since", Some(pause.since));
    view::put_time(object, "until", pause.until);
    if pause.over_ms > 0 {
        object.insert("over_ms".to_owned(), pause.over_ms.into());
    }
    object.insert("by".to_owned(), pause.by.clone().into());
    object.insert("reason".to_owned(), pause.reason.clone().into());
}

fn cells(one: &ConfiguredDestination, now: Time) -> [String; 8] {
    let pause = one.settings.pause.as_ref();
    let state = match pause {
        Some(pause) if !pause.is_over(now) => "paused",
        Some(_) => "resumed",
        None => "",
    };
    let shown = |time: Option<Time>| time.map(moment::shown).unwrap_or_default();
    [
        plain(&one.dest.to_string(), 60),
        state.to_owned(),
        shown(pause.map(|pause| pause.since)),
        shown(pause.and_then(|pause| pause.until)),
        pause.map(|pause| plain(&pause.by, 24)).unwrap_or_default(),
        pause.map(|pause| plain(&pause.reason, 60)).unwrap_or_default(),
        order(one.settings.strict_priority).to_owned(),
        limit::shown(&one.settings.limits),
    ]
}
