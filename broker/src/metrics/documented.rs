//! The table of docs/metrics.md, as it comes from the list of metrics.
//!
//! With `WRITE_DOCUMENTS=1` it is written.

use std::fmt::Write;
use std::path::Path;

use super::names::{DOCUMENTED, Documented};

const HEAD: &str = "| name | type | unit | labels | meaning | look at it when |\n|---|---|---|---|---|---|\n";

fn row(Documented { metric, unit, meaning, when }: &Documented) -> String {
    let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
    let (first, rest) = metric.help.split_at(1);
    let help = first.to_lowercase() + rest;
    let meaning = if meaning.is_empty() { &help } else { *meaning };
    let cells =
        [&format!("`{}`", metric.name), metric.kind.as_str(), unit, &labels.join(", "), meaning, when];
    let cell = |text: &&str| if text.is_empty() { " |".to_owned() } else { format!(" {text} |") };
    format!("|{}\n", cells.iter().map(cell).collect::<String>())
}

#[test]
fn the_page_has_what_comes_from_the_list() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let from = page.find(HEAD).unwrap();
    let to = from + page[from..].find("\n\n").unwrap() + 1;
    let mut table = HEAD.to_owned();
    for metric in DOCUMENTED {
        write!(table, "{}", row(metric)).unwrap();
    }
    if page[from..to] == table {
        return;
    }
    if std::env::var_os("WRITE_DOCUMENTS").is_some() {
        return std::fs::write(path, [&page[..from], &table, &page[to..]].concat()).unwrap();
    }
    panic!(
        "docs/metrics.md is not what comes from broker/src/metrics/names.rs: change it there, and run\n  \
         WRITE_DOCUMENTS=1 cargo test -p mtimer-broker --lib documented"
    );
}
