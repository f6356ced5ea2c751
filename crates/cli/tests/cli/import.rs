//! export, import, bulk release, bulk withdraw.

use serde_json::{Value, json};

use crate::harness::{Dev, Ended};

/// An export of another cluster, in the order of its lines.
struct Export {
    dev: Dev,
    text: String,
}

impl Export {
    /// Of so many timers that are due in an hour, with the keys `order-0` and so on.
    fn of(timers: u64) -> Self {
        let dev = Dev::start();
        let order =
            |n: u64| json!({ "in": "1h", "group": "g", "app": "a", "key": format!("order-{n}") }).to_string();
        let lines: Vec<String> = (0..timers).map(order).collect();
        dev.run_with(&["schedule", "--file", "-"], lines.join("\n").as_bytes()).ok();
        let text = dev.run(&["export"]).ok().out;
        Self { dev, text }
    }

    /// Its first lines.
    fn begin(&self, lines: usize) -> String {
        self.text.lines().take(lines).map(|line| format!("{line}\n")).collect()
    }
}

impl Dev {
    fn import(&self, text: &str, flags: &[&str]) -> Ended {
        self.run_with(&[&["import", "-", "--json"], flags].concat(), text.as_bytes())
    }

    fn staged(&self) -> Value {
        self.run(&["count", "--json"]).ok().json()["staged"].clone()
    }
}

#[test]
fn a_file_has_a_header_a_line_for_each_timer_and_an_end() {
    let export = Export::of(3);
    let lines: Vec<Value> = export.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[0]["mtimer_export"]), (5, &json!(1)));
    assert_eq!((&lines[1]["state"], &lines[1]["group"]), (&json!("pending"), &json!("g")));
    let end = &lines[4];
    assert_eq!((&end["timers"], &end["consistent"], &end["why"]), (&json!(3), &json!(true), &json!([])));
    let some = export.dev.run(&["export", "--key-prefix", "order-2"]).ok();
    assert_eq!((some.out.lines().count(), some.err.starts_with("1 timer written (1 pending)")), (3, true));
    let path = export.dev.data.path().join("out.ndjson");
    let out = ["export", "--out", path.to_str().unwrap(), "--json"];
    assert_eq!(export.dev.run(&out).ok().json()["timers"], 3);
    assert!(export.dev.run(&out).code(1).out.contains("cannot create"), "it is not written over");
}

#[test]
fn an_import_is_staged_repeated_released_and_then_refused() {
    let (export, dev) = (Export::of(20), Dev::start());
    let first = dev.import(&export.text, &[]).ok().json();
    let id = first["import"].as_str().unwrap();
    assert_eq!((&first["staged"], &first["already"]), (&json!(20), &json!(0)));
    let again = dev.import(&export.text, &["--id", id]).ok().json();
    assert_eq!((&again["staged"], &again["already"]), (&json!(0), &json!(20)));
    let listed = dev.run(&["list", "--state", "staged", "--json"]).ok().lines();
    assert_eq!((listed.len(), &listed[0]["import"]), (20, &json!(id)));
    assert!(dev.run(&["list", "--json"]).ok().lines().is_empty());
    let one = listed[0]["id"].as_str().unwrap();
    assert_eq!(dev.run(&["get", one, "--json"]).ok().json()["state"], "staged");
    assert!(dev.run(&["cancel", one]).code(5).out.contains("not"), "it is nobody's");
    assert_eq!(dev.run(&["bulk", "cancel", "--all", "--yes", "--json"]).ok().json()["done"], 0);

    let dry = dev.run(&["bulk", "release", id, "--dry-run", "--json"]).ok().json();
    assert_eq!((&dry["action"], &dry["done"], &dry["import"]), (&json!("release"), &json!(20), &json!(id)));
    assert_eq!(dev.staged(), 20);
    let text = dev.run(&["bulk", "release", id, "--yes"]).ok();
    assert_eq!(text.out.trim(), "20 released");
    assert_eq!((dev.staged(), dev.run(&["list", "--json"]).ok().lines().len()), (json!(0), 20));
    let refused = dev.import(&export.text, &["--id", id]).code(7).json();
    assert_eq!((&refused["staged"], &refused["reasons"]), (&json!(0), &json!({ "exists": 20 })));
}

#[test]
fn what_was_not_staged_before_the_release_is_refused_after_it() {
    let (export, dev) = (Export::of(5), Dev::start());
    let some = dev.import(&export.begin(3), &["--incomplete"]).ok().json();
    let id = some["import"].as_str().unwrap();
    assert_eq!((&some["staged"], &some["consistent"]), (&json!(2), &json!(false)));
    let staged = dev.run(&["export", "--out", "-"]).ok();
    assert!(staged.err.contains("2 timers that an import has staged: left out"), "{staged:?}");
    dev.run(&["bulk", "release", id, "--yes"]).ok();
    let rest = dev.import(&export.text, &["--id", id]).code(7).json();
    assert_eq!(rest["reasons"], json!({ "exists": 2, "released": 3 }));
    assert_eq!(dev.staged(), 0);
}

#[test]
fn a_withdrawn_import_can_be_imported_again() {
    let (export, dev) = (Export::of(5), Dev::start());
    let id = dev.import(&export.text, &[]).ok().json()["import"].as_str().unwrap().to_owned();
    assert!(dev.run(&["bulk", "withdraw", &id]).code(2).err.contains("--yes"), "it asks first");
    assert_eq!(dev.run(&["bulk", "withdraw", &id, "--yes"]).ok().out.trim(), "5 withdrawn");
    assert_eq!(dev.staged(), 0);
    assert_eq!(dev.import(&export.text, &[]).ok().json()["staged"], 5);
}

#[test]
fn what_could_not_be_staged_is_named_with_the_reason() {
    let (export, dev) = (Export::of(4), Dev::start());
    let other = ["--incomplete", "--id", "000000000000000000000000000000ab"];
    dev.import(&export.begin(2), &other).ok();
    let map = dev.data.path().join("map.ndjson");
    let ended = dev.import(&export.text, &["--map", map.to_str().unwrap()]).code(9);
    let result = ended.json();
    assert_eq!((&result["staged"], &result["refused"]), (&json!(3), &json!(1)));
    assert_eq!(result["reasons"], json!({ "exists": 1 }));
    let map = std::fs::read_to_string(map).unwrap();
    let map: Vec<Value> = map.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((map.len(), map.iter().filter(|line| line["why"] == "exists").count()), (4, 1));
    assert_eq!(map.iter().filter(|line| line["new"].is_string()).count(), 3);
}

#[test]
fn a_timer_whose_key_is_taken_stays_staged() {
    let (export, dev) = (Export::of(4), Dev::start());
    let taken = dev.schedule(&["--in", "1h", "--key", "order-2"]);
    let result = dev.import(&export.text, &[]).ok().json();
    let id = result["import"].as_str().unwrap();
    let release = ["bulk", "release", id, "--yes", "--json"];
    let job = dev.run(&release).code(9).json();
    assert_eq!((&job["done"], &job["not_done"]), (&json!(3), &json!(1)), "{job}");
    assert_eq!(job["failures"][0]["why"], "key-taken");
    assert_eq!(dev.staged(), 1);
    dev.run(&["cancel", &taken]).ok();
    let job = dev.run(&release).ok().json();
    assert_eq!((&job["done"], &job["not_done"]), (&json!(1), &json!(0)), "{job}");
    assert_eq!(dev.staged(), 0);
}

#[test]
fn a_file_of_a_cluster_that_changed_is_refused_unless_that_is_asked_for() {
    let (export, dev) = (Export::of(2), Dev::start());
    let changed =
        export.text.replace("\"consistent\":true,\"why\":[]", "\"consistent\":false,\"why\":[\"x\"]");
    assert!(dev.import(&changed, &[]).code(4).out.contains("not consistent: x"), "{changed}");
    let result = dev.import(&changed, &["--inconsistent"]).ok().json();
    assert_eq!((&result["staged"], &result["consistent"]), (&json!(2), &json!(false)));
}

#[test]
fn the_cluster_of_the_export_takes_it_only_if_told_to() {
    let export = Export::of(3);
    assert!(export.dev.import(&export.text, &[]).code(4).out.contains("cluster of the export"));
    assert_eq!(export.dev.staged(), 0);
    let flags = ["--same-cluster"];
    assert_eq!(export.dev.import(&export.text, &flags).ok().json()["staged"], 3, "a dead one, say, is gone");
}

#[test]
fn a_check_finds_what_has_changed_since_an_export() {
    let export = Export::of(3);
    let path = export.dev.data.path().join("out.ndjson");
    let path = path.to_str().unwrap();
    export.dev.run(&["export", "--out", path, "--require-consistent"]).ok();
    let check = || export.dev.run(&["export", "--check", path, "--json"]);
    assert_eq!(check().ok().json()["consistent"], true);
    export.dev.schedule(&["--in", "1h"]);
    let changed = check().code(9).json();
    assert_eq!(changed["why"], json!(["scheduled_total rose by 1"]), "{changed}");
    std::fs::write(path, export.begin(2)).unwrap();
    assert!(check().code(4).out.contains("has no end"));
    std::fs::write(path, "{}").unwrap();
    assert!(check().code(4).out.contains("does not begin as an export"));
}

#[test]
fn a_file_that_is_not_whole_is_refused_unless_that_is_asked_for() {
    let (export, dev) = (Export::of(4), Dev::start());
    let refused = |text: &str, says: &str| {
        let ended = dev.import(text, &[]).code(4);
        assert!(ended.out.contains(says), "{says}: {ended:?}");
        assert_eq!(dev.staged(), 0);
    };
    refused("", "does not begin as an export does");
    refused("{\"in\":\"1h\"}\n", "the first line");
    refused(&export.begin(4), "has no end");
    let end = export.text.lines().last().unwrap();
    refused(&format!("{}{end}\n", export.begin(3)), "lines are missing");
    refused(&format!("{}{{}}\n", export.text), "not valid");
    let newer = export.text.replacen("\"mtimer_export\":1", "\"mtimer_export\":2", 1);
    refused(&newer, "format 2");
    let some = dev.import(&export.begin(4), &["--incomplete"]).ok().json();
    assert_eq!(some["staged"], 3);
    let bad = format!("{}{{\"id\":1}}\n", export.begin(5));
    let some = dev.import(&bad, &["--incomplete", "--skip-bad", "--id", some["import"].as_str().unwrap()]);
    let some = some.code(9).json();
    assert_eq!((&some["staged"], &some["already"], &some["bad"]), (&json!(1), &json!(3), &json!(1)));
}

#[test]
fn of_a_timer_with_several_lines_the_last_one_counts() {
    let (export, dev) = (Export::of(1), Dev::start());
    let lines: Vec<&str> = export.text.lines().collect();
    let mut moved: Value = serde_json::from_str(lines[1]).unwrap();
    moved["state"] = json!("dead");
    moved["reason"] = json!("failed");
    moved["died_ms"] = json!(1_700_000_000_000u64);
    let end = lines[2].replace("\"timers\":1", "\"timers\":2");
    let result = dev.import(&format!("{}\n{}\n{moved}\n{end}\n", lines[0], lines[1]), &[]).ok().json();
    assert_eq!((&result["timers"], &result["staged"]), (&json!(1), &json!(1)));
    let id = result["import"].as_str().unwrap();
    dev.run(&["bulk", "release", id, "--yes"]).ok();
    let counts = dev.run(&["count", "--json"]).ok().json();
    assert_eq!((&counts["dead"], &counts["pending"]), (&json!(1), &json!(0)));
}

#[test]
fn what_is_behind_the_end_is_no_part_of_the_export() {
    let (export, dev) = (Export::of(2), Dev::start());
    let more = Export::of(1);
    let text = format!("{}{}", export.text, more.text);
    assert!(dev.import(&text, &[]).code(4).out.contains("not valid"));
    let result = dev.import(&text, &["--skip-bad"]).code(9).json();
    assert_eq!((&result["timers"], &result["staged"], &result["bad"]), (&json!(2), &json!(2), &json!(3)));
    assert_eq!(dev.staged(), 2);
}

#[test]
fn the_same_file_is_the_same_import() {
    let (export, dev) = (Export::of(3), Dev::start());
    let first = dev.import(&export.text, &[]).ok().json();
    let again = dev.import(&export.text, &[]).ok().json();
    assert_eq!((&again["import"], &again["already"]), (&first["import"], &json!(3)));
    let other = ["--id", "000000000000000000000000000000ab"];
    assert_eq!(dev.import(&export.text, &other).code(7).json()["reasons"], json!({ "exists": 3 }));
}

#[test]
fn a_line_that_is_not_valid_supersedes_earlier_ones_of_its_timer() {
    let (export, dev) = (Export::of(2), Dev::start());
    let lines: Vec<&str> = export.text.lines().collect();
    let mut bad: Value = serde_json::from_str(lines[1]).unwrap();
    bad["state"] = json!("dead");
    let mut worse: Value = serde_json::from_str(lines[2]).unwrap();
    worse["colour"] = json!("red");
    let text = format!("{}{bad}\n{worse}\n", export.begin(3));
    let result = dev.import(&text, &["--incomplete", "--skip-bad"]).code(9).json();
    assert_eq!((&result["timers"], &result["staged"], &result["bad"]), (&json!(0), &json!(0), &json!(2)));
}
