//! Help, wrong flags, exit codes.

use crate::harness::run;

#[test]
fn help_lists_the_exit_codes_and_every_command_has_one_with_an_example() {
    let help = run(&["--help"]).ok().out;
    for part in ["Exit codes:", "6  too-late", "130  interrupted", "mtimer demo"] {
        assert!(help.contains(part), "{part}: {help}");
    }
    let commands = [
        "demo",
        "dev",
        "broker",
        "schedule",
        "get",
        "cancel",
        "reschedule",
        "listen",
        "dead",
        "ping",
        "status",
        "repair",
        "bench",
        "dead list",
        "dead get",
        "dead replay",
        "dead purge",
        "dead unconfirmed",
        "cluster",
        "cluster status",
        "cluster drain",
        "completions",
        "man",
        "bench schedule",
        "bench fire",
        "bench lifecycle",
        "bench lateness",
        "bench cancel",
        "bench reschedule",
        "bench burst",
        "bench memory",
        "bench idle",
        "bench single",
    ];
    for command in commands {
        let args: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let help = run(&args).ok().out;
        assert!(help.contains("--json") && help.contains("Usage: mtimer"), "{command}: {help}");
        let example = format!("mtimer {command}");
        assert!(help.lines().any(|line| line.trim_start().starts_with(&example)), "{command}: {help}");
    }
    assert!(run(&["bench", "--help"]).ok().out.contains("mtimer bench fire --fail 10"));
    assert!(run(&["broker", "--help"]).ok().out.contains("[default: 127.0.0.1:7400]"));
    assert_eq!(run(&["--version"]).ok().out.trim(), concat!("mtimer ", env!("CARGO_PKG_VERSION")));
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
        &["listen", "--group", "g"],
        &["listen", "--group", "", "--app", "a"],
        &["listen", "--group", "g", "--app", "a", "--count", "0"],
        &["listen", "--group", "g", "--app", "a", "--exec", "x", "--outcome", "ok"],
        &["ping", "--broker", "127.0.0.1:1,127.0.0.1:2"],
        &["ping", "--broker", "127.0.0.1"],
        &["dead", "purge"],
        &["dead", "purge", "--all", "00000000000000000000000000"],
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
