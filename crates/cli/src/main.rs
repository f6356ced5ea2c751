//! The `mtimer` program: the command line around the broker and the client.
//!
//! Purpose: all commands of `mtimer`, each in a file of its own; here are their names and the
//! functions that run them.
//! Invariant: results go to standard output, everything else to standard error; the exit code tells
//! how it ended ([`exit::Exit`]).
//! Not in here: brokers and clients themselves (the broker's library, the client SDK).

mod args;
mod aside;
mod bench;
mod broker;
mod bulk;
mod cluster;
mod completions;
mod confirm;
mod dead;
mod demo;
mod destination;
mod destinations;
#[cfg(test)]
mod documented;
mod drain;
mod exec;
mod exec_check;
mod exit;
mod export;
mod exported;
mod file;
mod filter;
mod flags;
mod forecast;
mod import;
mod list;
mod listen;
mod load;
mod local;
mod logging;
mod man;
mod moment;
mod output;
mod ping;
mod printer;
mod problems;
mod progress;
mod query;
mod redis;
mod reload;
mod remove_cluster;
mod renewal;
mod repair;
mod schedule;
mod settings;
mod signals;
mod status;
mod store;
mod story;
mod tally;
mod token;
mod traces;
mod view;
mod window;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use serde_json::json;

use exit::{Exit, Failure};
use output::{Output, note_error, notes_as_json};

/// Frames, timers and answers are allocated by one thread and freed by another. In this it does
/// better than the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// mtimer calls your application back at the right time.
#[derive(Parser, Debug)]
#[command(
    name = "mtimer",
    version,
    max_term_width = 110,
    arg_required_else_help = true,
    long_about = "mtimer calls your application back at the right time.\n\n\
        You hand a broker a timer: a time, a destination (a group and an app), a payload. When it is due, the broker \
        calls back a client that listens for that destination, and goes on trying until the callback is acknowledged, the \
        retries are used up, or the timer's own deadline has passed.\n\n\
        Durations are written with a unit (250ms, 5s, 2h); times as RFC 3339 or as milliseconds since 1970; sizes in \
        bytes or with KiB, MiB, GiB.",
    after_help = "Start here:\n  mtimer demo                        see it work, in five seconds\n  \
        mtimer dev                         a broker to play with; prints what to type next\n  \
        mtimer help <command>              examples, units and defaults of a command"
)]
struct Cli {
    /// Results as JSON: one object, or one a line
    #[arg(long, global = true, help_heading = "Output")]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Demo(demo::Demo),
    Dev(broker::Dev),
    Broker(broker::BrokerCommand),
    Schedule(Box<schedule::ScheduleCommand>),
    #[command(flatten)]
    Timer(query::TimerCommand),
    Story(story::StoryCommand),
    List(Box<list::ListCommand>),
    Destinations(destinations::DestinationsCommand),
    #[command(subcommand)]
    Destination(Box<destination::DestinationCommand>),
    Count(destinations::CountCommand),
    Forecast(forecast::ForecastCommand),
    Listen(listen::Listen),
    #[command(subcommand)]
    Dead(dead::Dead),
    #[command(subcommand)]
    Bulk(Box<bulk::BulkCommand>),
    Export(Box<export::ExportCommand>),
    Import(import::ImportCommand),
    Ping(ping::Ping),
    Status(status::StatusCommand),
    Repair(repair::Repair),
    /// The cluster: who leads, who owns what, who is connected
    #[command(subcommand)]
    Cluster(cluster::Cluster),
    /// Tokens: who may do what at a broker
    #[command(subcommand)]
    Token(token::TokenCommand),
    #[command(subcommand)]
    Bench(bench::Bench),
    Completions(completions::Completions),
    Man(man::Man),
}

/// The command line with additions to its help: defaults and exit codes.
fn described() -> clap::Command {
    let help = format!(
        "Exit codes:\n{}\nWith --json a failure is printed as {{\"error\", \"message\", \"exit_code\"}} on standard output.",
        exit::table()
    );
    let command = Cli::command()
        .mut_subcommand("broker", |c| settings::described(c, &["durability"], &[]))
        .mut_subcommand("dev", |c| {
            flags::without_cluster(settings::described(c, &["durability", "data"], settings::OF_CLIENTS))
        });
    let more = command.get_after_help().map(|text| format!("{text}\n\n{help}")).unwrap_or(help);
    command.after_long_help(more)
}

/// The flags that matter even if the command line cannot be read.
struct Early {
    json: bool,
    log_is_json: bool,
}

impl Early {
    fn look() -> Self {
        let args: Vec<OsString> = std::env::args_os().skip(1).take_while(|arg| arg != "--").collect();
        let is_json = |at: usize| args.get(at).is_some_and(|value| value == "json");
        let flag = args.iter().position(|arg| arg == "--log-format").is_some_and(|at| is_json(at + 1));
        let variable = std::env::var_os("MTIMER_LOG_FORMAT").is_some_and(|value| value == "json");
        Self {
            json: args.iter().any(|arg| arg == "--json"),
            log_is_json: flag || variable || args.iter().any(|arg| arg == "--log-format=json"),
        }
    }

    /// Tells of an error, or shows the help that was asked for.
    fn tell(&self, error: &clap::Error) -> ExitCode {
        if !error.use_stderr() || !(self.json || self.log_is_json) {
            error.exit();
        }
        let text = error.to_string();
        let message = text.trim().strip_prefix("error: ").unwrap_or(text.trim());
        tell(Output::new(self.json), &Failure::usage(message))
    }
}

/// Reads the command line and runs the command.
fn main() -> ExitCode {
    let early = Early::look();
    if early.log_is_json {
        notes_as_json();
    }
    let parsed = described().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return early.tell(&error),
    };
    let out = Output::new(cli.json);
    match run(cli.command, out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => tell(out, &failure),
    }
}

fn run(command: Command, out: Output) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        // After so many polls of tasks a busy worker looks whether an alarm has expired. In `bench
        // lateness --rate 10000 --keyed 50 --at-most-once 20 --fail 2` p50 is 0.21 ms and p99 0.73;
        // with the default, 61, 0.29 and 0.95 (medians of five in turn).
        .event_interval(20)
        .build()
        .map_err(|e| Failure::new(Exit::Failed, format!("cannot start the runtime: {e}")))?;
    let result = runtime.block_on(async {
        match command {
            Command::Demo(demo) => demo.run(out).await,
            Command::Dev(dev) => dev.run(out).await,
            Command::Broker(broker) => broker.run(out).await,
            Command::Schedule(schedule) => schedule.run(out).await,
            Command::Timer(command) => command.run(out).await,
            Command::Story(story) => story.run(out).await,
            Command::List(list) => list.run(out).await,
            Command::Destinations(destinations) => destinations.run(out).await,
            Command::Destination(destination) => destination.run(out).await,
            Command::Count(count) => count.run(out).await,
            Command::Forecast(forecast) => forecast.run(out).await,
            Command::Listen(listen) => listen.run(out).await,
            Command::Dead(dead) => dead.run(out).await,
            Command::Bulk(bulk) => bulk.run(out).await,
            Command::Export(export) => export.run(out).await,
            Command::Import(import) => import.run(out).await,
            Command::Ping(ping) => ping.run(out).await,
            Command::Status(status) => status.run(out).await,
            Command::Repair(repair) => repair.run(out).await,
            Command::Cluster(cluster) => cluster.run(out).await,
            Command::Token(token) => token.run(out),
            Command::Bench(bench) => bench.run(out).await,
            Command::Completions(completions) => completions.run(described(), out),
            Command::Man(man) => man.run(described(), out),
        }
    });
    traces::finish();
    // A thread that still reads standard input must not hold up the end.
    runtime.shutdown_background();
    result
}

fn tell(out: Output, failure: &Failure) -> ExitCode {
    if !failure.message.is_empty() {
        if out.json {
            let exit = failure.exit;
            let object = json!({ "error": exit.name(), "message": failure.message, "exit_code": exit as u8 });
            // If it cannot be told, the exit code still says it.
            let _ = out.object(&object);
        } else {
            note_error(&failure.message);
        }
    }
    failure.exit.into()
}
