//! `mtimer listen`: takes callbacks, prints them, and answers them.
//!
//! Invariant: a callback is settled only after its line was written, and every one that is
//! delivered is printed: with `--count N` no more credit is given than is needed for N. Every
//! broker of a cluster has credit for one at least, so the others may hand over one more each.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use mtimer_client::{Callback, Client, Destination, Outcome, limits};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::args::{ClientArgs, destination};
use super::exit::{Exit, Failure};
use super::output::{Output, Tone, note, to_line};
use super::printer::Printer;
use super::renewal::Renewal;
use super::signals::StopSignal;
use super::{exec, exec_check, moment, view};

/// Takes the callbacks of a destination and prints them
///
/// Registers for a group and an app, prints a line for each callback, and answers it: with
/// --outcome, or with the exit code of a command that --exec runs for it. Goes on until INT or TERM
/// (running handlers may finish), or until --count callbacks were taken. HUP does not end it: it
/// reads --token-file again, and connects with the new token once running handlers have ended.
///
/// With --json a line has: id, key, group, app, due_ms, received_ms, lateness_ms, attempt, epoch,
/// headers (an object), and payload (or payload_base64, if it is not text). Times are milliseconds
/// since 1970 by the cluster clock.
///
/// --exec CMD runs /bin/sh -c CMD with the payload on standard input and MTIMER_ID, MTIMER_KEY,
/// MTIMER_GROUP, MTIMER_APP, MTIMER_DUE_MS, MTIMER_ATTEMPT, MTIMER_EPOCH, MTIMER_MODE,
/// MTIMER_TIMEOUT_MS and MTIMER_LATENESS_MS in its environment. Headers are there as MTIMER_HEADERS
/// (a JSON object), and each as MTIMER_HEADER_NAME, with its name in capitals and _ for - and .
/// (those whose names differ by nothing else are in MTIMER_HEADERS only); the trace context also as
/// TRACEPARENT and TRACESTATE. Exit code 0 means done, 100 failed for good (dead letter), 80 not
/// now: deliver it again after --later, which uses no retry (at most 20 times in a row); 75 and
/// every other one: try again. At the callback timeout it gets TERM, with what it has started, and
/// 5 s later KILL. A CMD that cannot be run is refused at the start. With --json its output goes to
/// standard error.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer listen --group demo --app hello\n  \
    mtimer listen --group shop --app orders --json | jq -r .payload\n  \
    mtimer listen --group shop --app mail --exec './send-mail' --concurrency 4\n  \
    mtimer listen --group demo --app hello --outcome retry --retry-after 2s --count 3\n  \
    mtimer listen --group shop --app mail --exec './office-open || exit 80; ./send-mail' --later 1h")]
pub(crate) struct Listen {
    /// The destination's group key
    #[arg(long)]
    group: String,
    /// The destination's app key
    #[arg(long)]
    app: String,
    /// What every callback is answered with
    #[arg(long, value_enum, default_value_t = CallbackAnswer::Ok)]
    outcome: CallbackAnswer,
    /// With a retry: try again after this instead of the timer's own delay
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = moment::span)]
    retry_after: Option<Duration>,
    /// With the outcome later, or exit code 80 of --exec: deliver it again after this, at most 24h
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, default_value = "1m", value_parser = moment::later)]
    later: Duration,
    /// Run this for every callback; its exit code is the outcome
    #[arg(long, value_name = "CMD", conflicts_with = "outcome")]
    exec: Option<String>,
    /// End after so many callbacks; in a cluster every further broker may hand over one more
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// How many callbacks may be handled at once
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(limits::MAX_CREDIT)))]
    concurrency: u32,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum CallbackAnswer {
    /// Done
    Ok,
    /// Try again
    Retry,
    /// Not now: deliver it again after --later, without using a retry
    Later,
    /// It will never be done: dead letter
    Fail,
}

impl Listen {
    pub(crate) async fn run(self, out: Output) -> Result<(), Failure> {
        let dest = destination(&self.group, &self.app)?;
        if let Some(command) = &self.exec {
            exec_check::check(command)?;
        }
        let stop = StopSignal::on_signals("stopping: running handlers may finish")?;
        let mut renewal = Renewal::watch(&self.client)?;
        let mut client = self.client.connect().await?;
        if !out.json {
            note(&format!("listening for {dest} at {} (Ctrl-C ends it)", client.info().broker));
        }
        let (count, concurrency) = (self.count, self.concurrency);
        let (printer, closed) = Printer::start(io::stdout())?;
        let handler = Arc::new(Handler { settings: self, out, printer });
        let mut taken = 0;
        while count.is_none_or(|count| taken < count) {
            let round = ListenRound::new(count.map(|count| count - taken), concurrency);
            let end = RoundEnd { stop: &stop, closed: &closed, renewal: &mut renewal };
            taken += take(&client, &dest, &handler, round, end).await?;
            if stop.is_asked() || closed.is_cancelled() {
                break;
            }
            client = renewal.apply(client).await;
        }
        let settled = client.close().await;
        let written = handler.printer.end();
        written.map_err(|e| Failure::output(&e))?;
        settled?;
        if count.is_some_and(|count| taken < count) {
            return Err(Failure::silent(Exit::Interrupted));
        }
        Ok(())
    }
}

/// Events that end a round, besides its count.
struct RoundEnd<'a> {
    stop: &'a StopSignal,
    closed: &'a CancellationToken,
    renewal: &'a mut Renewal,
}

/// Takes callbacks until the round is over, and waits for their handlers; returns how many there
/// were.
async fn take(
    client: &Client,
    dest: &Destination,
    handler: &Arc<Handler>,
    round: ListenRound,
    end: RoundEnd<'_>,
) -> Result<u64, Failure> {
    let round = Arc::new(round);
    let registration = {
        let (handler, round) = (Arc::clone(handler), Arc::clone(&round));
        client.register(dest.clone()).concurrency(round.credit).on(move |callback| {
            let (handler, round) = (Arc::clone(&handler), Arc::clone(&round));
            async move {
                let last = round.entered();
                let outcome = handler.handle(callback).await;
                if last {
                    round.unregistered.cancelled().await;
                }
                outcome
            }
        })?
    };
    tokio::select! {
        () = round.reached.cancelled() => {}
        () = end.closed.cancelled() => {}
        () = end.stop.asked() => {}
        () = end.renewal.wanted() => {}
        refused = registration.refused() => return Err(refused.into()),
    }
    let ending = registration.stop();
    tokio::pin!(ending);
    // From its first poll on no more credit is given; only then may the last outcomes go.
    let ended = futures_util::poll!(&mut ending);
    round.unregistered.cancel();
    if ended.is_pending() {
        ending.await;
    }
    Ok(round.entered.load(Ordering::Acquire))
}

/// Takes up to a number of callbacks, and of a cluster of n brokers n - 1 more at most.
///
/// Credit comes back with an outcome. So no more than `limit - 1 + credit` callbacks can have been
/// sent before the outcome of callback `limit` is given; that one waits until the registration has
/// ended. The credit is shared out over the brokers and rounded up.
struct ListenRound {
    credit: u32,
    limit: u64,
    entered: AtomicU64,
    reached: CancellationToken,
    unregistered: CancellationToken,
}

impl ListenRound {
    /// `rest`: how many more are wanted. Takes them in a few rounds, the last of them one by one.
    fn new(rest: Option<u64>, concurrency: u32) -> Self {
        let credit = match rest {
            Some(rest) => u32::try_from(rest.div_ceil(2)).unwrap_or(u32::MAX).clamp(1, concurrency),
            None => concurrency,
        };
        let limit = rest.map_or(u64::MAX, |rest| rest - u64::from(credit - 1));
        let (reached, unregistered) = (CancellationToken::new(), CancellationToken::new());
        Self { credit, limit, entered: AtomicU64::new(0), reached, unregistered }
    }

    /// Counts a callback; whether its outcome has to wait.
    fn entered(&self) -> bool {
        let n = self.entered.fetch_add(1, Ordering::AcqRel) + 1;
        if n >= self.limit {
            self.reached.cancel();
        }
        n >= self.limit
    }
}

struct Handler {
    settings: Listen,
    out: Output,
    printer: Printer,
}

impl Handler {
    async fn handle(&self, callback: Callback) -> Outcome {
        let line = if self.out.json { json_line(&callback) } else { Ok(self.text_line(&callback)) };
        let line = match line {
            Ok(line) => line,
            Err(failure) => return Outcome::retry(failure),
        };
        if !self.printer.print(line).await {
            return Outcome::retry("the listener's output was closed");
        }
        let after = self.settings.retry_after;
        if let Some(command) = &self.settings.exec {
            let delays = exec::Delays { retry: after, later: self.settings.later };
            return exec::run(command, &callback, delays, self.out.json).await;
        }
        match (self.settings.outcome, after) {
            (CallbackAnswer::Ok, _) => Outcome::ok(),
            (CallbackAnswer::Retry, None) => Outcome::retry("mtimer listen --outcome retry"),
            (CallbackAnswer::Retry, Some(after)) => {
                Outcome::retry_after(after, "mtimer listen --outcome retry")
            }
            (CallbackAnswer::Later, _) => Outcome::later(self.settings.later),
            (CallbackAnswer::Fail, _) => Outcome::fail("mtimer listen --outcome fail"),
        }
    }

    fn text_line(&self, callback: &Callback) -> String {
        let key = callback
            .key
            .as_ref()
            .map(|key| format!(" {}", super::output::plain(key.as_str(), 80)))
            .unwrap_or_default();
        let again =
            if callback.attempt > 1 { format!(", attempt {}", callback.attempt) } else { String::new() };
        format!(
            "{} {}{key} {} {}",
            self.out.tone(Tone::Faint, &moment::shown(callback.received)),
            callback.id,
            self.out.tone(Tone::Faint, &format!("({} ms late{again})", callback.lateness_ms())),
            view::payload_shown(&callback.payload, 200),
        )
    }
}

fn json_line(callback: &Callback) -> Result<String, Failure> {
    let mut object = Map::new();
    let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
    put("id", json!(callback.id));
    put("key", json!(callback.key));
    put("group", callback.dest.group().into());
    put("app", callback.dest.app().into());
    put("due_ms", json!(callback.due));
    put("received_ms", json!(callback.received));
    put("lateness_ms", callback.lateness_ms().into());
    put("attempt", callback.attempt.into());
    put("epoch", json!(callback.epoch));
    put("headers", json!(callback.headers()));
    view::put_payload(&mut object, &callback.payload);
    to_line(&object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_never_take_more_than_is_wanted_and_come_to_an_end() {
        for (count, concurrency) in
            [(1, 1), (1, 64), (2, 64), (100, 64), (1_000, 64), (5, 10_000), (u64::MAX, 3)]
        {
            let (mut rest, mut rounds) = (count, 0);
            while rest > 0 {
                let round = ListenRound::new(Some(rest), concurrency);
                let most = round.limit - 1 + u64::from(round.credit);
                assert!(round.credit >= 1 && round.limit >= 1 && most <= rest, "{count} {rest}");
                rest -= round.limit.max(1);
                rounds += 1;
            }
            assert!(rounds <= 30, "{count} took {rounds} rounds");
        }
        let endless = ListenRound::new(None, 7);
        assert!(endless.credit == 7 && !endless.entered());
    }
}
