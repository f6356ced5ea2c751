//! What is wrong, in sentences: for `mtimer status` and `mtimer cluster status`.
//!
//! Brokers judge, and say it in numbers (`broker/src/reports.rs`, `/readyz`). Here are the words.

use mtimer_client::Status;
use mtimer_store::counters;

use super::output::{Output, Tone, counted, grouped};

/// Timers in memory take so much of the budget, in percent, that it is reported.
const NEAR_BUDGET: u64 = 90;

/// Returns the value of a counter.
type CounterLookup<'a> = &'a dyn Fn(&str) -> u64;
/// Says what the value of a counter means; another counter may have more to say.
type Sentence = fn(u64, CounterLookup<'_>) -> String;

/// Counters that are 0 while all is well, and the sentence for any other value.
const PROBLEMS: [(&str, Sentence); 15] = [
    ("store_unreachable_partitions", |partitions, _| {
        format!(
            "the store of {} cannot be reached: new timers are refused there; see the log of the broker, and Redis",
            counted(partitions, "partition")
        )
    }),
    ("not_ready", |_, _| {
        "not ready: a broker is stopping, has not joined its cluster, or does not have all of its partitions and their \
         stores; its /readyz says which"
            .to_owned()
    }),
    ("rolled_back_lately", |ownerships, _| {
        format!(
            "Redis has lost writes: {} of partitions ended by it, the last within this hour, and what was answered just \
             before may be lost: the broker's log says when",
            counted(ownerships, "ownership")
        )
    }),
    (counters::LOG_AT_RISK, |_, _| {
        "a failover of Redis may lose answered writes: see why replicas, or the append-only file, lag"
            .to_owned()
    }),
    (counters::UNPROTECTED_MASTERS, |_, _| {
        "Redis keeps no append-only file and has no replica: a restart of it loses timers; set appendonly yes there"
            .to_owned()
    }),
    (counters::DISK_LEVEL, |level, count| {
        let free = grouped(count(counters::DISK_FREE_BYTES));
        match level {
            1 => format!("the disk of the data directory is nearly full: {free} bytes are free"),
            _ => format!(
                "the disk of the data directory is full: {free} bytes are free, new timers are refused"
            ),
        }
    }),
    ("destinations_unserved", |destinations, _| {
        format!(
            "nobody is registered for {} with due timers, which are parked: mtimer cluster status shows who listens",
            counted(destinations, "destination")
        )
    }),
    ("destinations_behind", |destinations, _| {
        let verb = if destinations == 1 { "falls" } else { "fall" };
        format!("{} {verb} behind: handlers take less than what is due", counted(destinations, "destination"))
    }),
    ("destinations_failing", |destinations, _| {
        format!(
            "handlers of {} always fail: see their log, and mtimer dead list",
            counted(destinations, "destination")
        )
    }),
    ("dead_letters_lately", |timers, _| {
        format!("{} died within the last 10 s: mtimer dead list shows why", counted(timers, "timer"))
    }),
    ("timeouts_lately", |callbacks, _| {
        format!(
            "handlers gave no outcome in time: {} within the last 10 s; they hang, or need a longer callback timeout",
            counted(callbacks, "callback")
        )
    }),
    ("store_slow_lately", |calls, _| {
        format!(
            "the store answers slowly: {} took more than 100 ms within the last 10 s; see the load of Redis, or of the disk",
            counted(calls, "call")
        )
    }),
    ("clock_doubtful_lately", |_, _| {
        "the cluster's time is not known well: see the time service of the Redis hosts".to_owned()
    }),
    ("credentials_stale", |_, _| {
        "a file of tokens or certificates cannot be read, and what was read before is in use: the broker's log says why"
            .to_owned()
    }),
    ("credentials_expiring", |_, _| {
        "a certificate or the own token of a broker expires within 14 days, or has: its log says which"
            .to_owned()
    }),
];

/// What brokers say of themselves that is not as it should be.
pub(crate) fn of_status(status: &Status) -> Vec<String> {
    let count =
        |name: &str| status.counters.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count);
    let mut problems: Vec<String> = PROBLEMS
        .iter()
        .map(|(name, sentence)| (count(name), sentence))
        .filter(|(value, _)| *value > 0)
        .map(|(value, sentence)| sentence(value, &count))
        .collect();
    let budget = count("memory_budget_bytes");
    let percent = status.loaded_bytes.saturating_mul(100).checked_div(budget).unwrap_or(0);
    if percent >= NEAR_BUDGET {
        problems.push(format!(
            "timers take {percent} % of the budget in memory: raise --memory, or less is loaded ahead"
        ));
    }
    problems
}

/// The problems as lines for people, or that there is none.
pub(crate) fn lines(problems: &[String], out: Output) -> Vec<String> {
    match problems {
        [] => vec![out.tone(Tone::Good, "nothing is wrong")],
        all => all.iter().map(|problem| format!("{} {problem}", out.tone(Tone::Bad, "!"))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(counters: &[(&str, u64)]) -> Status {
        let counters = counters.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        Status { counters, loaded_bytes: 95, ..Status::default() }
    }

    #[test]
    fn each_problem_has_a_sentence_and_what_is_well_has_none() {
        let well = [("memory_budget_bytes", 1_000), ("store_disk_free_bytes", 5), ("scheduled_total", 9)];
        assert_eq!(of_status(&status(&well)), [""; 0]);
        assert_eq!(lines(&[], Output::new(true)), ["nothing is wrong"]);
        let all = [
            ("store_unreachable_partitions", 1, "the store of 1 partition cannot be reached"),
            ("not_ready", 2, "not ready: "),
            ("rolled_back_lately", 2, "has lost writes: 2 ownerships of partitions ended by it"),
            ("store_log_at_risk", 1, "may lose answered writes"),
            ("store_unprotected_masters", 1, "keeps no append-only file and has no replica"),
            ("store_disk_level", 1, "nearly full"),
            ("store_disk_level", 2, "new timers are refused"),
            ("destinations_unserved", 2, "nobody is registered for 2 destinations"),
            ("destinations_behind", 1, "1 destination falls behind"),
            ("destinations_failing", 2, "handlers of 2 destinations always fail"),
            ("dead_letters_lately", 3, "3 timers died"),
            ("timeouts_lately", 2, "no outcome in time: 2 callbacks"),
            ("store_slow_lately", 6, "the store answers slowly: 6 calls"),
            ("memory_budget_bytes", 100, "95 % of the budget"),
            ("clock_doubtful_lately", 1, "time is not known well"),
            ("credentials_stale", 1, "cannot be read"),
            ("credentials_expiring", 2, "expires within 14 days"),
        ];
        for (name, n, words) in all {
            let problems = of_status(&status(&[(name, n)]));
            assert!(problems.len() == 1 && problems[0].contains(words), "{name}: {problems:?}");
            assert_eq!(lines(&problems, Output::new(true)), [format!("! {}", problems[0])]);
        }
    }
}
