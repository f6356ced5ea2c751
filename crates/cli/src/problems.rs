//! Problems, in sentences: for `mtimer status` and `mtimer cluster status`.
//!
//! Brokers judge, and say it in numbers (`broker/src/reports.rs`, `/readyz`). Here are the words.

use std::time::Duration;

use mtimer_client::{
    Destination, LimitedDestination, MAX_LIMITED_DESTINATIONS, MAX_PAUSED_DESTINATIONS, ParkedDestination,
    PausedDestination, Status,
};
use mtimer_store::counters;

use super::destination;
use super::output::{Output, Tone, counted, grouped, plain};

/// Timers in memory take so much of the budget, in percent, that it is reported.
const NEAR_BUDGET: u64 = 90;

/// A destination whose limits have held back a timer for so long, in ms, is a problem.
const LONG_LIMITED_MS: u64 = 10_000;

/// Destinations, and brokers, that a sentence names.
const NAMED: usize = 5;

/// Says the meaning of a counter's value; other numbers may have more to say.
type Sentence = fn(u64, &Status) -> String;

/// Counters that are 0 while all is well, and the sentence for any other value. The gravest first.
const PROBLEMS: [(&str, Sentence); 28] = [
    ("clock_standstill_ms", |ms, status| {
        format!(
            "time has stood still for {} and goes on in {}: the deciding clock was set back (that of Redis; without it, \
             of the broker's host), and nothing becomes due meanwhile; set it right, or restart all brokers to go on from \
             it at once",
            span(ms),
            span(count(status, "clock_standstill_left_ms"))
        )
    }),
    ("store_unreachable_partitions", |partitions, _| {
        format!(
            "the store of {} cannot be reached, or takes no writes: new timers are refused there; see the log of the broker, \
             and Redis",
            counted(partitions, "partition")
        )
    }),
    (counters::EVICTING_MASTERS, |_, _| {
        "Redis may evict keys when its memory is full, and timers would vanish: new timers are refused there; set its \
         maxmemory-policy to noeviction"
            .to_owned()
    }),
    ("refused_unavailable_lately", |operations, _| {
        refused(operations, "the store is away or takes no writes: see the broker's log, and Redis")
    }),
    ("refused_store_full_lately", |operations, _| {
        refused(
            operations,
            "the store is full: give Redis more memory, or the disk more space, or let timers drain",
        )
    }),
    ("refused_overloaded_lately", |operations, _| {
        refused(operations, "more of them came than the store takes: slow down, or spread keys")
    }),
    ("refused_not_replicated_lately", |operations, _| {
        refused(
            operations,
            "too few replicas have confirmed in time; they may be stored: see the replicas of Redis",
        )
    }),
    ("address_unreached", |brokers, _| {
        let who = if brokers == 1 { "a broker".to_owned() } else { counted(brokers, "broker") };
        format!(
            "nobody reaches {who} at the advertised address, so clients may not either (one that was never reached there \
             does not lead and is given no partitions): correct --advertise, or the network; its log says why"
        )
    }),
    ("not_ready", |_, _| {
        "not ready: new timers may be refused, or wait; the broker's /readyz says why".to_owned()
    }),
    ("stored_unknown_partitions", |partitions, _| {
        format!(
            "what the store holds of {} is not known: it does not answer, or no broker has them now",
            counted(partitions, "partition")
        )
    }),
    ("stored_age_ms", |ms, _| {
        format!("the store could not be counted: what it holds is as of {} ago", span(ms))
    }),
    ("rolled_back_lately", |ownerships, status| {
        format!(
            "Redis has lost writes: {} of partitions ended by it {}, and what was answered just before may be lost: the \
             broker's log says more",
            counted(ownerships, "ownership"),
            when(status, "rolled_back")
        )
    }),
    ("lost_slots_lately", |slots, status| {
        let verb = if slots == 1 { "was" } else { "were" };
        format!(
            "Redis has lost timers: {} that had some {verb} found empty {}; the broker's log names the first: compare your own \
             records with mtimer get by key",
            counted(slots, "slot"),
            when(status, "lost_slots")
        )
    }),
    ("log_dropped_lately", |records, status| {
        format!(
            "{} of the last writes were dropped from the log {}: a failover of Redis may have lost them; see why \
             replicas lag, or raise redis-write-log",
            counted(records, "record"),
            when(status, "log_dropped")
        )
    }),
    ("unconfirmed_lately", |timers, status| {
        format!(
            "{} delivered at most once had no outcome {}: mtimer dead unconfirmed shows them",
            counted(timers, "timer"),
            when(status, "unconfirmed")
        )
    }),
    (counters::UNCONFIRMED_PARTITIONS, |partitions, _| {
        format!(
            "too few replicas confirm what is written to {}: schedules are answered \"stored, not confirmed\", and \
             what is due waits; see why replicas of Redis lag or are missing",
            counted(partitions, "partition")
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
    (counters::DISK_LEVEL, |level, status| {
        let free = grouped(count(status, counters::DISK_FREE_BYTES));
        match level {
            1 => format!("the disk of the data directory is nearly full: {free} bytes are free"),
            _ => format!(
                "new timers are refused: the disk of the data directory has {free} bytes free, and the store needs more; \
                 its log says how much"
            ),
        }
    }),
    ("destinations_unserved", |destinations, status| {
        format!(
            "nobody is registered for {} with due timers, which are parked{}: mtimer cluster status shows who listens",
            counted(destinations, "destination"),
            parked(status, |one| one.sessions == 0)
        )
    }),
    ("destinations_behind", |destinations, status| {
        let verb = if destinations == 1 { "falls" } else { "fall" };
        let parked = parked(status, |one| one.sessions > 0);
        let parked = if parked.is_empty() { parked } else { format!("; parked{parked}") };
        format!(
            "{} {verb} behind: handlers take less than what is due{parked}",
            counted(destinations, "destination")
        )
    }),
    ("destinations_failing", |destinations, _| {
        format!(
            "handlers of {} always fail: see their log, and mtimer dead list",
            counted(destinations, "destination")
        )
    }),
    ("dead_letters_lately", |timers, status| {
        format!(
            "{} died {}: mtimer dead list shows why",
            counted(timers, "timer"),
            when(status, "dead_letters")
        )
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

/// Problems that brokers report of themselves.
pub(crate) fn of_status(status: &Status) -> Vec<String> {
    let value = |name: &str| match name {
        // The broker looks at them every ten seconds only.
        "destinations_unserved" => {
            let unserved = unpaused(status).filter(|one| one.sessions == 0).count();
            count(status, name).max(unserved as u64)
        }
        // That is said in other words.
        "clock_doubtful_lately" if count(status, "clock_standstill_ms") > 0 => 0,
        _ => count(status, name),
    };
    let mut problems = lost_brokers(status);
    problems.extend(status.unreached_leaders.iter().map(|(address, why)| {
        format!(
            "the leader at {address} cannot be reached: {why}: correct that broker's --advertise, or the network between \
             the brokers"
        )
    }));
    problems.extend(
        PROBLEMS
            .iter()
            .map(|(name, sentence)| (value(name), sentence))
            .filter(|(value, _)| *value > 0)
            .map(|(value, sentence)| sentence(value, status)),
    );
    problems.extend(paused(status));
    problems.extend(limited(status));
    let budget = count(status, "memory_budget_bytes");
    let percent = status.loaded_bytes.saturating_mul(100).checked_div(budget).unwrap_or(0);
    if percent >= NEAR_BUDGET {
        problems.push(format!(
            "timers take {percent} % of the budget in memory: raise --memory, or less is loaded ahead"
        ));
    }
    problems
}

/// The destinations with parked timers that neither a pause nor limits hold back.
fn unpaused(status: &Status) -> impl Iterator<Item = &ParkedDestination> {
    let paused = status.paused_destinations.iter().map(|one| &one.dest);
    let limited = status.limited_destinations.iter().map(|one| &one.dest);
    let held_back: Vec<&Destination> = paused.chain(limited).collect();
    status.parked_destinations.iter().filter(move |one| !held_back.contains(&&one.dest))
}

/// The value of a counter.
pub(crate) fn count(status: &Status, name: &str) -> u64 {
    status.counters.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count)
}

/// Which brokers were lost, and when.
fn lost_brokers(status: &Status) -> Vec<String> {
    let lost = &status.lost_brokers;
    if lost.is_empty() {
        return Vec::new();
    }
    let name = |(address, ms): &(String, u64)| format!("{address} {} ago", span(*ms));
    let verb = if lost.len() == 1 { "was" } else { "were" };
    vec![format!(
        "{} {verb} lost and {verb} not seen again ({}): see why; what they owned is given to the others",
        counted(lost.len() as u64, "broker"),
        listed(lost.len(), lost.iter().map(name))
    )]
}

/// The destinations that are paused.
fn paused(status: &Status) -> Option<String> {
    let all = &status.paused_destinations;
    let name = |one: &PausedDestination| {
        let by =
            if one.pause.by.is_empty() { String::new() } else { format!(" by {}", plain(&one.pause.by, 40)) };
        format!("{}{by}", one.dest)
    };
    let verb = if all.len() == 1 { "is" } else { "are" };
    let least = if all.len() == MAX_PAUSED_DESTINATIONS { "at least " } else { "" };
    (!all.is_empty()).then(|| {
        format!(
            "{least}{} {verb} paused ({}), and what is due there waits: mtimer destination list shows why",
            counted(all.len() as u64, "destination"),
            listed(all.len(), all.iter().map(name))
        )
    })
}

/// The destinations of which their limits have held back a timer for [`LONG_LIMITED_MS`].
fn limited(status: &Status) -> Option<String> {
    let long = || status.limited_destinations.iter().filter(|one| one.oldest_ms >= LONG_LIMITED_MS);
    let name = |one: &LimitedDestination| {
        let waits = format!("{} due, the oldest for {}", grouped(one.waiting), span(one.oldest_ms));
        format!("{}: {waits}, limits {}", one.dest, destination::limits_shown(&one.limits))
    };
    let count = long().count();
    let (verb, whose) = if count == 1 { ("is", "its") } else { ("are", "their") };
    let least = if count == MAX_LIMITED_DESTINATIONS { "at least " } else { "" };
    (count > 0).then(|| {
        format!(
            "{least}{} {verb} held back by {whose} limits ({}): if that is not meant, raise them with \
             mtimer destination set",
            counted(count as u64, "destination"),
            listed(count, long().map(name))
        )
    })
}

/// The destinations with parked timers that neither a pause nor limits hold back, in brackets;
/// empty if there are none.
fn parked(status: &Status, which: fn(&ParkedDestination) -> bool) -> String {
    let all = || unpaused(status).filter(|one| which(one));
    let name = |one: &ParkedDestination| format!("{}: {}", one.dest, grouped(one.parked));
    let names = listed(all().count(), all().map(name));
    if names.is_empty() { names } else { format!(" ({names})") }
}

/// The first of some names.
fn listed(count: usize, names: impl Iterator<Item = String>) -> String {
    let shown: Vec<String> = names.take(NAMED).collect();
    let more = if count > shown.len() { ", ..." } else { "" };
    shown.join(", ") + more
}

/// Says why operations were refused.
fn refused(operations: u64, why: &str) -> String {
    let verb = if operations == 1 { "was" } else { "were" };
    format!("{} {verb} not answered OK within the last 10 s: {why}", counted(operations, "operation"))
}

/// When losses of this kind began and when the last one was.
fn when(status: &Status, kind: &str) -> String {
    let ago = |which: &str| count(status, &format!("{kind}_{which}_ms"));
    let (first, last) = (ago("first"), ago("last"));
    if first == last {
        return format!("{} ago", span(first));
    }
    format!("within the last {}, the last {} ago", span(first), span(last))
}

/// A duration in whole seconds.
fn span(ms: u64) -> String {
    humantime::format_duration(Duration::from_secs(ms.div_ceil(1_000))).to_string()
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
    use mtimer_client::DeliveryLimits;

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
            (
                "store_unreachable_partitions",
                1,
                "the store of 1 partition cannot be reached, or takes no writes",
            ),
            (
                "clock_standstill_ms",
                14_001,
                "time has stood still for 15s and goes on in 0s: the deciding clock was set back",
            ),
            (
                "store_evicting_masters",
                1,
                "new timers are refused there; set its maxmemory-policy to noeviction",
            ),
            ("address_unreached", 1, "nobody reaches a broker at the advertised address"),
            ("address_unreached", 2, "nobody reaches 2 brokers at the advertised address"),
            (
                "refused_unavailable_lately",
                1,
                "1 operation was not answered OK within the last 10 s: the store is away or takes no writes",
            ),
            (
                "refused_store_full_lately",
                2,
                "2 operations were not answered OK within the last 10 s: the store is full",
            ),
            ("refused_overloaded_lately", 1, "more of them came than the store takes"),
            ("refused_not_replicated_lately", 1, "too few replicas have confirmed in time"),
            ("stored_unknown_partitions", 3, "what the store holds of 3 partitions is not known"),
            ("stored_age_ms", 61_000, "what it holds is as of 1m 1s ago"),
            ("lost_slots_lately", 1, "Redis has lost timers: 1 slot that had some was found empty 0s ago"),
            ("log_dropped_lately", 2, "2 records of the last writes were dropped"),
            ("unconfirmed_lately", 1, "1 timer delivered at most once had no outcome"),
            ("not_ready", 2, "not ready: "),
            ("rolled_back_lately", 2, "has lost writes: 2 ownerships of partitions ended by it"),
            ("store_unconfirmed_partitions", 32, "too few replicas confirm what is written to 32 partitions"),
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

    #[test]
    fn what_was_lost_is_told_with_since_when() {
        let lately = |first, last| {
            let counters = [
                ("dead_letters_lately", 3),
                ("dead_letters_first_ms", first),
                ("dead_letters_last_ms", last),
            ];
            of_status(&status(&counters)).remove(0)
        };
        assert_eq!(lately(41_000, 41_000), "3 timers died 41s ago: mtimer dead list shows why");
        let words = "3 timers died within the last 1m 1s, the last 2s ago: mtimer dead list shows why";
        assert_eq!(lately(61_000, 2_000), words);
        let unreached_leaders = vec![("b1:1".to_owned(), "Connection refused".to_owned())];
        let unreached = of_status(&Status { unreached_leaders, ..Status::default() }).remove(0);
        let words =
            "the leader at b1:1 cannot be reached: Connection refused: correct that broker's --advertise";
        assert!(unreached.starts_with(words), "{unreached}");
        let lost = |n: u64| {
            let lost_brokers = (1..=n).map(|n| (format!("b{n}:1"), 60_000 * n)).collect();
            of_status(&Status { lost_brokers, ..Status::default() }).remove(0)
        };
        assert!(
            lost(1).starts_with("1 broker was lost and was not seen again (b1:1 1m ago): "),
            "{}",
            lost(1)
        );
        assert!(
            lost(2).starts_with("2 brokers were lost and were not seen again (b1:1 1m ago, b2:1 2m ago): ")
        );
        assert!(lost(6).contains("b5:1 5m ago, ...)"), "{}", lost(6));
    }

    #[test]
    fn parked_destinations_are_named_at_once() {
        let one = |app: &str, sessions| ParkedDestination {
            dest: Destination::new("g", app).expect("a destination"),
            parked: 1_200,
            sessions,
        };
        let of = |parked_destinations, behind| {
            let counters = vec![("destinations_behind".to_owned(), behind)];
            of_status(&Status { parked_destinations, counters, ..Status::default() })
        };
        let unserved = of(vec![one("a", 0), one("b", 1), one("c", 0)], 1);
        let named = "nobody is registered for 2 destinations with due timers, which are parked (g/a: 1,200, g/c: 1,200)";
        assert!(unserved[0].starts_with(named), "{unserved:?}");
        assert!(
            unserved[1].ends_with("handlers take less than what is due; parked (g/b: 1,200)"),
            "{unserved:?}"
        );
        assert_eq!(of(vec![one("b", 1)], 0), [""; 0], "it may take them at once");
    }

    #[test]
    fn destinations_at_their_limits_are_named_once_something_has_waited_for_long() {
        let limited = |app: &str, oldest_ms| LimitedDestination {
            dest: Destination::new("g", app).expect("a destination"),
            limits: DeliveryLimits { concurrency: Some(50), rate: None },
            waiting: 1_200,
            oldest_ms,
        };
        let of = |limited_destinations: Vec<LimitedDestination>| {
            let one = limited_destinations[0].dest.clone();
            let parked_destinations = vec![ParkedDestination { dest: one, parked: 1_000, sessions: 0 }];
            of_status(&Status { limited_destinations, parked_destinations, ..Status::default() })
        };
        assert_eq!(of(vec![limited("a", LONG_LIMITED_MS - 1)]), [""; 0]);
        let words = "1 destination is held back by its limits (g/a: 1,200 due, the oldest for 12s, limits \
                     50 at a time): if that is not meant, raise them with mtimer destination set";
        assert_eq!(of(vec![limited("a", 12_000), limited("b", 0)]), [words]);
        let two = of(vec![limited("a", 12_000), limited("b", 11_000)]);
        assert!(two[0].starts_with("2 destinations are held back by their limits (g/a: "), "{two:?}");
    }

    #[test]
    fn a_standstill_is_not_belittled_by_a_second_sentence() {
        let problems = of_status(&status(&[("clock_standstill_ms", 1), ("clock_doubtful_lately", 1)]));
        assert_eq!(problems.len(), 1, "{problems:?}");
    }
}
