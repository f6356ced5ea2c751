//! `mtimer list`: the timers that wait, in the order in which they fire, and those that do not.

use clap::{Args, ValueEnum};
use mtimer_client::{Client, ListCursor, ListedTimer, Time, TimerList};
use serde_json::{Map, Value};

use super::args::{ClientArgs, DEFAULT_BROKER};
use super::aside::{AsideRow, AsideRows, AsideState};
use super::exit::Failure;
use super::filter::{FilterArgs, PendingArgs};
use super::output::{Output, TextTable, counted, note, plain, shell_quoted};
use super::{moment, view};

/// Lists the timers that wait, in the order in which they fire
///
/// Shows timers that wait for their due time or for a retry, or are being delivered (in-flight).
/// All conditions must hold. With --state others are shown, one state after the other: in each
/// partition in the order in which they were parked (by priority), taken, given up, or died. Their
/// --from and --until are about when they died or were given up, or were due if they are parked or
/// taken.
///
/// If there are more timers than --limit, the end of the output says how to go on. --cursor is a
/// position in the order of timers: it does not expire, and is valid also after a broker was lost.
/// With --json every row of a timer that waits has a "cursor", which goes on behind that row.
///
/// A timer that keeps its fire time meanwhile is listed exactly once. One that is rescheduled or
/// retried meanwhile may be missing, or be listed twice.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer list --group shop --app orders --limit 20\n  \
    mtimer list --group shop --key-prefix order- --until 2030-01-31T12:00:00Z\n  \
    mtimer list --header tenant=acme --json | jq -r .id\n  \
    mtimer list --retrying --payloads\n  mtimer list --state parked,dead --group shop")]
pub(crate) struct ListCommand {
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    pending: PendingArgs,
    /// Where the timers are
    #[arg(long, value_enum, value_delimiter = ',', default_value = "waiting")]
    state: Vec<ListedState>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Go on at this position, which an earlier list has shown
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<ListCursor>,
    /// Show payloads, too
    #[arg(long)]
    payloads: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// Where timers are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
enum ListedState {
    /// Wait for their due time or a retry, or are being delivered
    Waiting,
    /// Due, and nobody takes them
    Parked,
    /// Are being delivered at most once
    Taken,
    /// Were sent at most once, and never confirmed
    Unconfirmed,
    /// Dead letters
    Dead,
    /// Brought by an import that is not released yet
    Staged,
}

impl ListedState {
    /// `None`: it waits, or is staged.
    const fn aside(self) -> Option<AsideState> {
        match self {
            Self::Waiting | Self::Staged => None,
            Self::Parked => Some(AsideState::Parked),
            Self::Taken => Some(AsideState::Taken),
            Self::Unconfirmed => Some(AsideState::Unconfirmed),
            Self::Dead => Some(AsideState::Dead),
        }
    }
}

/// Rows of a table that are lined up together.
const TABLE_ROWS: u64 = 500;
/// Characters of a payload or an error in a table.
const TEXT_SHOWN: usize = 60;

impl ListCommand {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        self.check()?;
        self.client.looking(async |client| self.show_all(client, out).await).await
    }

    /// Refuses conditions that only timers that wait can meet.
    fn check(&self) -> Result<(), Failure> {
        let PendingArgs { retrying, first, .. } = &self.pending;
        let given = [("--retrying", *retrying), ("--first", *first), ("--cursor", self.cursor.is_some())];
        let have_others = self.state.iter().any(|state| state.aside().is_some());
        let are_both = [ListedState::Waiting, ListedState::Staged].iter().all(|one| self.state.contains(one));
        let cursor_of_two = self.cursor.is_some() && are_both;
        match given.iter().find(|(_, is_given)| *is_given && (have_others || cursor_of_two)) {
            Some((flag, _)) => Err(Failure::usage(format!(
                "{flag} is about timers that wait: leave it out, or leave out --state"
            ))),
            None => Ok(()),
        }
    }

    async fn show_all(&self, client: &Client, out: Output) -> Result<(), Failure> {
        let mut states = self.state.clone();
        states.sort_unstable();
        states.dedup();
        let mut left = self.limit;
        for state in states {
            if left == 0 {
                note("the other states are not shown: raise --limit");
                break;
            }
            left -= match state.aside() {
                None => self.show(client, state == ListedState::Staged, left, out).await?,
                Some(state) => self.show_aside(client, state, left, out).await?,
            };
        }
        Ok(())
    }

    /// Shows at most so many of those that wait, or are staged, and returns how many these are.
    async fn show(&self, client: &Client, staged: bool, limit: u64, out: Output) -> Result<u64, Failure> {
        let mut timers = self.timers(client);
        if staged {
            timers = timers.staged();
        }
        match out.json {
            true => self.objects(&mut timers, limit, out).await,
            false => self.tables(&mut timers, limit, out).await,
        }
    }

    fn timers(&self, client: &Client) -> TimerList {
        let page = u32::try_from(self.limit).unwrap_or(u32::MAX);
        let mut timers = client.list(self.filter.filter()).page(page);
        if let Some(from) = self.pending.from {
            timers = timers.from(from);
        }
        if let Some(until) = self.pending.until {
            timers = timers.until(until);
        }
        if let Some(retrying) = self.pending.retrying() {
            timers = timers.retrying(retrying);
        }
        if let Some(cursor) = self.cursor {
            timers = timers.after(cursor);
        }
        if self.payloads { timers.with_payloads() } else { timers }
    }

    /// Shows at most so many timers of a state, and returns how many these are.
    async fn show_aside(
        &self,
        client: &Client,
        state: AsideState,
        limit: u64,
        out: Output,
    ) -> Result<u64, Failure> {
        let PendingArgs { from, until, .. } = self.pending;
        let since = from.unwrap_or(Time::ZERO)..=until.unwrap_or(Time::MAX);
        let mut rows = AsideRows::of(client, state, self.filter.filter(), since).await?;
        let (mut shown, mut table) = (0, self.aside_table());
        while shown < limit {
            let Some(row) = rows.next().await? else { break };
            shown += 1;
            if out.json {
                out.object(&self.aside_object(&row))?;
                continue;
            }
            table.row(self.aside_cells(state, &row));
            if shown.is_multiple_of(TABLE_ROWS) {
                let full = std::mem::replace(&mut table, self.aside_table());
                full.lines().try_for_each(|line| out.text(&line))?;
            }
        }
        if !out.json && !shown.is_multiple_of(TABLE_ROWS) {
            table.lines().try_for_each(|line| out.text(&line))?;
        }
        let timers = counted(shown, &format!("{} timer", state.name()));
        if shown == limit && rows.next().await?.is_some() {
            note(&format!("{timers}, and there are more: raise --limit, or narrow it down"));
        } else if !out.json {
            note(&timers);
        }
        Ok(shown)
    }

    fn aside_object(&self, row: &AsideRow) -> Map<String, Value> {
        let mut object = row.object();
        if !self.payloads {
            object.remove("payload");
            object.remove("payload_base64");
        }
        object.insert("payload_bytes".to_owned(), row.timer().payload.len().into());
        object
    }

    fn aside_table(&self) -> TextTable<7> {
        let last = if self.payloads { "payload" } else { "last error" };
        TextTable::new(["since", "id", "destination", "key", "state", "attempts", last])
    }

    fn aside_cells(&self, state: AsideState, row: &AsideRow) -> [String; 7] {
        let timer = row.timer();
        let (attempts, error) = row.history();
        let last = match self.payloads {
            true => view::payload_shown(&timer.payload, TEXT_SHOWN),
            false => plain(error, TEXT_SHOWN),
        };
        [
            moment::shown(row.since()),
            timer.id.to_string(),
            plain(&timer.dest.to_string(), 40),
            timer.key.as_ref().map(|key| plain(key.as_str(), 30)).unwrap_or_default(),
            state.name().to_owned(),
            attempts.to_string(),
            last,
        ]
    }

    async fn objects(&self, timers: &mut TimerList, limit: u64, out: Output) -> Result<u64, Failure> {
        for shown in 0..limit {
            let Some(row) = timers.next().await? else { return Ok(shown) };
            out.object(&self.object(&row, timers.cursor()))?;
        }
        let cursor = timers.cursor();
        if timers.next().await?.is_some() {
            self.note_more(limit, cursor);
        }
        Ok(limit)
    }

    /// What `get` shows, and where the list goes on.
    fn object(&self, row: &ListedTimer, cursor: ListCursor) -> Map<String, Value> {
        let mut object = view::listed_object(row);
        if !self.payloads {
            object.remove("payload");
        }
        object.insert("cursor".to_owned(), cursor.to_string().into());
        object
    }

    async fn tables(&self, timers: &mut TimerList, limit: u64, out: Output) -> Result<u64, Failure> {
        let (mut shown, mut table) = (0, self.table());
        while shown < limit {
            let Some(row) = timers.next().await? else { break };
            shown += 1;
            table.row(self.cells(&row));
            if shown.is_multiple_of(TABLE_ROWS) {
                std::mem::replace(&mut table, self.table()).lines().try_for_each(|line| out.text(&line))?;
            }
        }
        if !shown.is_multiple_of(TABLE_ROWS) {
            table.lines().try_for_each(|line| out.text(&line))?;
        }
        let cursor = timers.cursor();
        if shown == limit && timers.next().await?.is_some() {
            self.note_more(shown, cursor);
        } else {
            note(&counted(shown, "timer"));
        }
        Ok(shown)
    }

    fn table(&self) -> TextTable<7> {
        let last = if self.payloads { "payload" } else { "bytes" };
        TextTable::new(["fires", "id", "destination", "key", "state", "attempts", last])
    }

    fn cells(&self, row: &ListedTimer) -> [String; 7] {
        let timer = &row.view.timer;
        let key = timer.key.as_ref().map(|key| plain(key.as_str(), 30)).unwrap_or_default();
        let last = match self.payloads {
            true => view::payload_shown(&timer.payload, TEXT_SHOWN),
            false => row.payload_bytes.to_string(),
        };
        [
            moment::shown(row.fire),
            timer.id.to_string(),
            plain(&timer.dest.to_string(), 40),
            key,
            view::state(row.view.state).to_owned(),
            row.view.failed.to_string(),
            last,
        ]
    }

    fn note_more(&self, shown: u64, cursor: ListCursor) {
        let command = self.going_on(cursor);
        note(&format!("{}, and there are more. Go on with:\n  {command}", counted(shown, "timer")));
    }

    /// The command that shows what follows, as it can be typed. Without tokens and the like.
    fn going_on(&self, cursor: ListCursor) -> String {
        let mut words = vec!["mtimer".to_owned(), "list".to_owned()];
        let FilterArgs { group, app, key_prefix, header } = self.filter.clone();
        let header = header.map(|(name, value)| format!("{name}={value}"));
        let broker = Some(&self.client.broker).filter(|broker| *broker != DEFAULT_BROKER);
        // Without --from: all that follows is behind it.
        let values = [
            ("--broker", broker.cloned()),
            ("--group", group),
            ("--app", app),
            ("--key-prefix", key_prefix),
            ("--header", header),
            ("--until", self.pending.until.map(moment::as_flag)),
            ("--limit", Some(self.limit.to_string())),
            ("--cursor", Some(cursor.to_string())),
        ];
        for (flag, value) in values {
            if let Some(value) = value {
                // A value may begin with a hyphen.
                words.push(shell_quoted(&format!("{flag}={value}")));
            }
        }
        if self.state == [ListedState::Staged] {
            words.push("--state=staged".to_owned());
        }
        let PendingArgs { retrying, first, .. } = self.pending;
        let switches = [("--retrying", retrying), ("--first", first), ("--payloads", self.payloads)];
        words.extend(switches.into_iter().filter(|(_, is_on)| *is_on).map(|(flag, _)| flag.to_owned()));
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser, Debug)]
    struct Typed {
        #[command(flatten)]
        list: ListCommand,
    }

    fn going_on(args: &[&str]) -> String {
        let cursor = "0000000005dc00000000000000000000000007".parse().unwrap();
        let typed = Typed::try_parse_from([&["list"][..], args].concat()).unwrap();
        typed.list.going_on(cursor)
    }

    #[test]
    fn the_command_that_goes_on_has_what_was_asked_for() {
        let cursor = "--cursor=0000000005dc00000000000000000000000007";
        // What is before the cursor is not listed anyway.
        let before = "00000000000000000000000000000000000001";
        let here = going_on(&["--broker", DEFAULT_BROKER, "--from", "1500", "--cursor", before, "--first"]);
        assert_eq!(here, format!("mtimer list --limit=100 {cursor} --first"));
        let all = [
            "--broker=b1:7400,b2:7400",
            "--group=shop's",
            "--app=-a",
            "--key-prefix=",
            "--header=tenant=acme=x",
            "--until=2030-01-31T12:00:00.000Z",
            "--limit=7",
            "--retrying",
            "--payloads",
        ];
        let [broker, _, app, prefix, header, until, limit, switches @ ..] = all;
        let switches = switches.join(" ");
        let group = r"'--group=shop'\''s'";
        let values = [broker, group, app, prefix, header, until, limit, cursor].join(" ");
        assert_eq!(going_on(&all), format!("mtimer list {values} {switches}"));
    }

    #[test]
    fn a_time_that_no_calendar_has_is_typed_in_milliseconds() {
        let last = Time::MAX.as_ms().to_string();
        let typed = going_on(&["--until", &last]);
        assert!(typed.contains(&format!("--until={last} ")), "{typed}");
    }
}
