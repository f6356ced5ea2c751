//! `mtimer destinations` and `mtimer count`: how many timers there are, and where.

use clap::Args;
use mtimer_client::{DestinationCounts, DestinationFilter, Destinations};
use serde_json::{Map, Value, json};

use super::args::ClientArgs;
use super::exit::Failure;
use super::output::{Output, TextTable, counted, grouped, note, plain};
use super::{moment, view};

/// Shows how many timers each destination has, and where they are
///
/// pending: wait for their first delivery. retrying: wait for another one. parked: nobody takes
/// their callbacks. in flight: are being delivered; these are among those before. unconfirmed: were
/// sent at most once, and never confirmed. dead: dead letters. oldest overdue: since when the
/// oldest timer is due that waits or is parked, as far as brokers know without looking. With --json
/// also taken: are being delivered at most once, and staged: brought by an import that is not
/// released.
///
/// Brokers keep these counts, so the command takes no longer if there are more timers. Partitions
/// are asked at different times, so the numbers show no one instant.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer destinations\n  mtimer destinations --group shop\n  \
    mtimer destinations --json | jq '.destinations[] | select(.dead > 0)'")]
pub(crate) struct DestinationsCommand {
    #[command(flatten)]
    which: WhichArgs,
}

/// Counts timers: of a destination, a group, an app, or all
///
/// Shows how many timers there are, and how many of them are where: see `mtimer destinations`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer count\n  mtimer count --group shop --app orders\n  \
    mtimer count --group shop --json | jq .timers")]
pub(crate) struct CountCommand {
    #[command(flatten)]
    which: WhichArgs,
}

#[derive(Args, Debug)]
struct WhichArgs {
    /// Only of this group
    #[arg(long)]
    group: Option<String>,
    /// Only of this app
    #[arg(long)]
    app: Option<String>,
    #[command(flatten)]
    client: ClientArgs,
}

impl WhichArgs {
    async fn ask(self) -> Result<Destinations, Failure> {
        let Self { group, app, client } = self;
        let filter = DestinationFilter { group, app };
        client.looking(async |client| Ok(client.destinations(filter).await?)).await
    }
}

impl DestinationsCommand {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        let Destinations { rows, uncounted } = self.which.ask().await?;
        if out.json {
            let rows: Vec<Value> = rows.iter().map(|row| named_object(row).into()).collect();
            return out.object(&json!({ "destinations": rows, "uncounted": uncounted }));
        }
        if !rows.is_empty() {
            let head = [
                "destination",
                "pending",
                "retrying",
                "parked",
                "in flight",
                "unconfirmed",
                "dead",
                "oldest overdue",
            ];
            let mut table = TextTable::new(head);
            rows.iter().for_each(|row| table.row(cells(row)));
            table.lines().try_for_each(|line| out.text(&line))?;
        }
        note(&counted(rows.len() as u64, "destination"));
        let staged = rows.iter().map(|row| row.staged).fold(0, u64::saturating_add);
        if staged > 0 {
            note(&format!(
                "and {} that imports have staged: mtimer list --state staged",
                counted(staged, "timer")
            ));
        }
        note_uncounted(uncounted);
        Ok(())
    }
}

impl CountCommand {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        let Destinations { rows, uncounted } = self.which.ask().await?;
        let parts = sum(&rows);
        let total = rows.iter().map(DestinationCounts::total).fold(0, u64::saturating_add);
        if out.json {
            let mut object = Map::from_iter([("timers".to_owned(), total.into())]);
            object.extend(parts.map(|(name, n)| (name.to_owned(), n.into())));
            object.insert("uncounted".to_owned(), uncounted.into());
            return out.object(&object);
        }
        let mut table = TextTable::new(["timers", &grouped(total)]);
        parts.iter().for_each(|(name, n)| table.row([name.replace('_', " "), grouped(*n)]));
        table.lines().try_for_each(|line| out.text(&line))?;
        note_uncounted(uncounted);
        Ok(())
    }
}

/// The counts of a destination by their names.
fn parts(row: &DestinationCounts) -> [(&'static str, u64); 8] {
    let DestinationCounts { pending, retrying, parked, in_flight, taken, unconfirmed, dead, staged, .. } =
        row;
    [
        ("pending", *pending),
        ("retrying", *retrying),
        ("parked", *parked),
        ("in_flight", *in_flight),
        ("taken", *taken),
        ("unconfirmed", *unconfirmed),
        ("dead", *dead),
        ("staged", *staged),
    ]
}

/// The counts of all destinations together.
fn sum(rows: &[DestinationCounts]) -> [(&'static str, u64); 8] {
    let names = ["pending", "retrying", "parked", "in_flight", "taken", "unconfirmed", "dead", "staged"];
    rows.iter().map(parts).fold(names.map(|name| (name, 0)), |mut sum, row| {
        sum.iter_mut().zip(row).for_each(|((_, sum), (_, n))| *sum = sum.saturating_add(n));
        sum
    })
}

fn named_object(row: &DestinationCounts) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("group".to_owned(), row.dest.group().into());
    object.insert("app".to_owned(), row.dest.app().into());
    object.insert("timers".to_owned(), row.total().into());
    object.extend(parts(row).map(|(name, n)| (name.to_owned(), n.into())));
    view::put_time(&mut object, "oldest_overdue", row.oldest_overdue);
    object
}

fn cells(row: &DestinationCounts) -> [String; 8] {
    let numbers = [row.pending, row.retrying, row.parked, row.in_flight, row.unconfirmed, row.dead];
    let [pending, retrying, parked, in_flight, unconfirmed, dead] = numbers.map(grouped);
    let oldest = row.oldest_overdue.map(moment::shown).unwrap_or_default();
    [plain(&row.dest.to_string(), 60), pending, retrying, parked, in_flight, unconfirmed, dead, oldest]
}

fn note_uncounted(uncounted: u64) {
    if uncounted > 0 {
        note(&uncounted_note(uncounted));
    }
}

pub(crate) fn uncounted_note(uncounted: u64) -> String {
    let (are, their) = if uncounted == 1 { ("is", "its partition") } else { ("are", "their partitions") };
    let timers = counted(uncounted, "timer");
    format!("{timers} {are} not counted yet: a broker has taken over {their} lately; ask again in a minute")
}

#[cfg(test)]
mod tests {
    use mtimer_client::Destination;

    use super::*;

    #[test]
    fn what_is_not_counted_is_told_with_what_to_do() {
        let rest = "not counted yet: a broker has taken over";
        let end = "lately; ask again in a minute";
        assert_eq!(uncounted_note(1), format!("1 timer is {rest} its partition {end}"));
        assert_eq!(uncounted_note(2_000), format!("2,000 timers are {rest} their partitions {end}"));
    }

    #[test]
    fn a_sum_has_the_parts_of_all_rows_and_of_none() {
        let row = |app, n| DestinationCounts {
            pending: n,
            retrying: 2 * n,
            parked: 3 * n,
            in_flight: 4 * n,
            taken: 5 * n,
            unconfirmed: 6 * n,
            dead: 7 * n,
            staged: 8 * n,
            ..DestinationCounts::none(Destination::new("g", app).unwrap())
        };
        assert_eq!(sum(&[]).map(|(_, n)| n), [0; 8]);
        assert_eq!(
            sum(&[row("a", 1), row("b", 10)]).map(|(_, n)| n),
            [1, 2, 3, 4, 5, 6, 7, 8].map(|n| 11 * n)
        );
        assert_eq!(sum(&[]).map(|(name, _)| name), parts(&row("a", 1)).map(|(name, _)| name));
        assert_eq!(row("a", 1).total(), 32, "those in flight are among the others");
    }
}
