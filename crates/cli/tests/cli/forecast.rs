//! forecast: how many timers are due when.

use crate::harness::Dev;

#[test]
fn timers_are_counted_by_when_they_are_due() {
    let dev = Dev::start();
    let none = dev.run(&["forecast"]).ok();
    assert_eq!(none.out, "");
    assert!(none.err.starts_with("0 timers in lines that begin up to "), "{}", none.err);

    let timers = |group: &str, due: &str, count: usize| {
        let line = format!("{{\"at\":\"{due}\",\"group\":\"{group}\",\"app\":\"a\"}}\n");
        dev.run_with(&["schedule", "--file", "-"], line.repeat(count).as_bytes()).ok();
    };
    timers("g", "2035-01-31T12:34:56Z", 30);
    timers("g", "2035-01-31T12:35:00.000Z", 3);
    timers("h", "2035-02-28T00:00:00.000Z", 1_000);
    let spans = |args: &[&str]| {
        let forecast = dev.run(&[&["forecast", "--for", "10000d", "--json"], args].concat()).ok().json();
        assert_eq!(forecast["uncounted"], 0);
        let rows = forecast["spans"].as_array().unwrap().clone();
        let row =
            |row: &serde_json::Value| (row["begin"].as_str().unwrap().to_owned(), row["timers"].as_u64());
        rows.iter().map(row).collect::<Vec<_>>()
    };
    let row = |begin: &str, timers| (begin.to_owned(), Some(timers));
    let last = row("2035-02-28T00:00:00.000Z", 1_000);
    let minutes = [row("2035-01-31T12:34:00.000Z", 30), row("2035-01-31T12:35:00.000Z", 3), last.clone()];
    assert_eq!(spans(&["--by", "minute"]), minutes);
    assert_eq!(spans(&[]), [row("2035-01-31T12:00:00.000Z", 33), last.clone()], "by hour");
    assert_eq!(spans(&["--by", "day"]), [row("2035-01-31T00:00:00.000Z", 33), last.clone()]);
    assert_eq!(spans(&["--group", "h"]), [last]);
    assert_eq!(spans(&["--group", "h", "--app", "b"]), []);

    let text = dev.run(&["forecast", "--by", "day", "--for", "10000d"]).ok();
    let lines: Vec<Vec<&str>> = text.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["from", "timers"]);
    assert_eq!(lines[1], ["2035-01-31T00:00:00.000Z", "33", "##"]);
    assert_eq!(lines[2], ["2035-02-28T00:00:00.000Z", "1,000", &"#".repeat(40)]);
    assert!(text.err.starts_with("1,033 timers in lines that begin up to "), "{}", text.err);
    // They are too far away for what is shown unless told otherwise.
    assert!(dev.run(&["forecast"]).ok().err.starts_with("0 timers in lines that begin up to "));
}
