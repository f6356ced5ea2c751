//! Help, wrong flags, exit codes.

use serde_json::Value;

use crate::harness::{end, mtimer, run};

#[test]
fn help_lists_the_exit_codes_and_every_command_has_one_with_an_example() {
    let help = run(&["--help"]).ok().out;
    for part in ["Exit codes:", "6  too-late", "130  interrupted", "mtimer demo"] {
        assert!(help.contains(part), "{part}: {help}");
    }
    let mut ahead: Vec<String> = commands_of(&help).map(str::to_owned).collect();
    let mut seen = Vec::new();
    while let Some(command) = ahead.pop() {
        let args: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let help = run(&args).ok().out;
        ahead.extend(commands_of(&help).map(|below| format!("{command} {below}")));
        assert!(help.contains("--json") && help.contains("Usage: mtimer"), "{command}: {help}");
        let example = format!("mtimer {command}");
        assert!(help.lines().any(|line| line.trim_start().starts_with(&example)), "{command}: {help}");
        seen.push(command);
    }
    for some in ["schedule", "list", "destinations", "count", "dead purge", "bulk cancel", "bench single"] {
        assert!(seen.iter().any(|command| command == some), "{some} is not among {seen:?}");
    }
    assert!(run(&["bench", "--help"]).ok().out.contains("mtimer bench fire --fail 10"));
    assert!(run(&["broker", "--help"]).ok().out.contains("[default: 127.0.0.1:7400]"));
    assert_eq!(run(&["--version"]).ok().out.trim(), concat!("mtimer ", env!("CARGO_PKG_VERSION")));
}

/// The commands that a help lists.
fn commands_of(help: &str) -> impl Iterator<Item = &str> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed.take_while(|line| !line.is_empty()).filter_map(|line| line.strip_prefix("  "));
    // Lines that go on with a description begin with more spaces.
    names.filter_map(|line| line.split(' ').next()).filter(|name| !["", "help"].contains(name))
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let bad = [
        &[][..],
        &["nonsense"],
        &["schedule", "--group", "g"],
        &["schedule", "--group", "g", "--app", "a", "--in", "5", "--payload", "x"],
        &["schedule", "--group", "g", "--app", "a", "--in", "5s", "--at", "5"],
        &["schedule", "--group", "g", "--app", "a"],
        &["schedule", "--skip-bad"],
        &["get"],
        &["get", "too-short"],
        &["get", "--key", "k"],
        &["cancel", "00000000000000000000000000", "--key", "k", "--group", "g", "--app", "a"],
        &["reschedule", "00000000000000000000000000"],
        &["list", "--cursor", "order-17"],
        &["list", "--retrying", "--first"],
        &["list", "--limit", "0"],
        &["list", "--until", "tomorrow"],
        &["list", "--header", "tenant"],
        &["listen", "--group", "g"],
        &["listen", "--group", "", "--app", "a"],
        &["listen", "--group", "g", "--app", "a", "--count", "0"],
        &["listen", "--group", "g", "--app", "a", "--exec", "x", "--outcome", "ok"],
        &["ping", "--timeout", "10us"],
        &["status", "--request-timeout", "0s"],
        &["demo", "--redis", "http://127.0.0.1:6379"],
        &["bench", "fire", "--redis", "localhost"],
        &["broker", "--redis", "localhost", "--listen", "127.0.0.1:0"],
        &["schedule", "--group", "g", "--app", "a", "--at", "1896091200"],
        &["schedule", "--group", "g", "--app", "a", "--at", "2030-01-31T12:00:00+25:00"],
        &["listen", "--group", "g", "--app", "a", "--exec", "/no/such/program"],
        &["ping", "--broker", "127.0.0.1"],
        &["dead", "purge"],
        &["dead", "purge", "--all", "00000000000000000000000000"],
        &["bulk", "cancel"],
        &["bulk", "reschedule", "--all"],
        &["bulk", "show", "00000000000000000000000000"],
        &["demo", "--timers", "0"],
        &["demo", "--log-level", "a=b=c"],
        &["bench", "fire", "--tune-redis"],
        &["bench", "fire", "--broker", "127.0.0.1:1", "--partitions", "4"],
        &["bench", "lateness", "--rate", "0"],
        &["bench", "burst", "--keyed", "10"],
    ];
    for args in bad {
        let ended = run(args);
        assert_eq!(ended.code, 2, "{args:?}: {ended:?}");
        assert!(ended.out.is_empty() && !ended.err.is_empty(), "{args:?}: {ended:?}");
    }
}

#[test]
fn a_negative_duration_is_told_as_such_and_the_flag_is_named() {
    let schedule = ["schedule", "--group", "g", "--app", "a"];
    for (flags, named) in [
        (&["--in", "-5s"][..], "--in"),
        (&["--in=-5s"], "--in"),
        (&["--in", "5s", "--callback-timeout", "-5s"], "--callback-timeout"),
        (&["--in", "5s", "--deadline", "-5s"], "--deadline"),
        (&["--in", "5s", "--connect-timeout", "-5s"], "--connect-timeout"),
        (&["--in", "5s", "--request-timeout", "-5s"], "--request-timeout"),
    ] {
        let refused = run(&[&schedule[..], flags].concat()).code(2);
        assert!(refused.err.contains("\"-5s\" is negative: a duration is 0s or longer"), "{refused:?}");
        assert!(refused.err.contains(named), "{refused:?}");
    }
}

#[test]
fn usage_errors_are_json_if_results_are() {
    for args in [
        &["nonsense", "--json"][..],
        &["--json", "schedule", "--group", "g"],
        &["get", "too-short", "--json"],
        &["broker", "--json", "--memory", "much"],
        &["schedule", "--json", "--group", "g", "--app", "a"],
        &["dead", "purge", "--json"],
    ] {
        let refused = run(args).code(2);
        let told = refused.json();
        assert_eq!((&told["error"], &told["exit_code"]), (&"usage".into(), &2.into()), "{refused:?}");
        assert!(!told["message"].as_str().unwrap().is_empty() && refused.err.is_empty(), "{refused:?}");
    }
    // What is asked for is no error.
    assert!(run(&["get", "--help", "--json"]).ok().out.contains("Usage: mtimer get"));
}

#[test]
fn with_a_log_in_json_everything_on_standard_error_is_json() {
    let is_json = |err: &str| {
        assert!(!err.is_empty());
        for line in err.lines() {
            let line: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
            assert!(line["timestamp"].is_string() && line["level"].is_string(), "{line}");
        }
    };
    let nobody = ["--broker", "127.0.0.1:1", "--connect-timeout", "10ms"];
    let get = [&["get", "00000000000000000000000000", "--log-format", "json"][..], &nobody].concat();
    is_json(&run(&get).code(3).err);
    is_json(&run(&["get", "too-short", "--log-format=json"]).code(2).err);
    is_json(&run(&["dead", "purge", "--all", "--log-format", "json"]).code(2).err);
    is_json(&run(&["broker", "--log-format", "json", "--memory", "much"]).code(2).err);
    let mut command = mtimer(&["broker", "--memory", "much"]);
    command.env("MTIMER_LOG_FORMAT", "json");
    is_json(&end(command, b"").code(2).err);
}

#[test]
fn help_of_settings_has_groups_values_variables_and_only_what_there_is() {
    let words = |args: &[&str]| run(args).ok().out.split_whitespace().collect::<Vec<_>>().join(" ");
    let broker = words(&["broker", "--help"]);
    for part in [
        "Tokens and TLS: --tokens <FILE>",
        "Redis: --redis <URL>",
        "--listen <ADDR>",
        "--memory <SIZE> Budget for timers in memory [default: 256MiB] [env: MTIMER_MEMORY]",
        "--disk-watermark <SIZE>",
        "Dead letters: --dead-max-age <DURATION>",
        "Log: --log-format <FORMAT>",
    ] {
        assert!(broker.contains(part), "{part}: {broker}");
    }
    let dev = words(&["dev", "--help"]);
    assert!(dev.contains("--data <DIR>") && dev.contains("embedded-fast"), "{dev}");
    for part in
        ["--redis", "redis-replicated", "--replicas", "--lease-ttl", "--peer", "--weight", "--advertise"]
    {
        assert!(!dev.contains(part), "{part}: {dev}");
    }
    let refused = run(&["dev", "--redis", "127.0.0.1:6379"]).code(2).err;
    assert!(refused.contains("dev has an embedded store"), "{refused}");
}
