//! `docs/limits.md` has the numbers of the code.
//!
//! Invariant: every constant of `crates/types/src/limits.rs` is on the page; each constant that a
//! row names has the row's value; the ranges of settings are those that a broker refuses to leave.

use std::collections::BTreeMap;
use std::fs;

use mtimer_broker::config::{PartialConfig, SETTINGS};

use super::markdown::{files, prose, read, root};

const PAGE: &str = "docs/limits.md";

/// The unit of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unit {
    Plain,
    Bytes,
    Ms,
}

/// The cells of the rows of all tables.
fn rows() -> Vec<Vec<String>> {
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let text = prose(&read(PAGE));
    let rows = text.lines().filter_map(|line| line.strip_prefix('|')?.strip_suffix('|'));
    rows.map(cells).collect()
}

/// Reads `1,024 bytes`, `64 KiB`, `30 days`, `2^50`. `None`: it is no number alone.
fn number(cell: &str) -> Option<(u64, Unit)> {
    let (number, unit) = cell.split_once(' ').unwrap_or((cell, ""));
    let number: u64 = match number.split_once('^') {
        Some((base, power)) => base.parse::<u64>().ok()?.pow(power.parse().ok()?),
        None => number.replace(',', "").parse().ok()?,
    };
    let (factor, unit) = match unit {
        "" => (1, Unit::Plain),
        "bytes" => (1, Unit::Bytes),
        "KiB" => (1 << 10, Unit::Bytes),
        "MiB" => (1 << 20, Unit::Bytes),
        "GiB" => (1 << 30, Unit::Bytes),
        "ms" => (1, Unit::Ms),
        "s" => (1_000, Unit::Ms),
        "min" => (60_000, Unit::Ms),
        "h" => (3_600_000, Unit::Ms),
        "days" => (86_400_000, Unit::Ms),
        _ => return None,
    };
    Some((number * factor, unit))
}

/// The constants of the product that are written as numbers, by name, with their file.
fn constants() -> BTreeMap<String, Vec<(String, u64)>> {
    let mut found = BTreeMap::<_, Vec<_>>::new();
    let folders = ["broker/src", "client-sdk/src", "crates"];
    for path in folders.iter().flat_map(|folder| files(&root().join(folder), "rs")) {
        let file = path.strip_prefix(root()).unwrap().display().to_string();
        for line in fs::read_to_string(&path).unwrap().lines() {
            let Some((name, rest)) = line.split_once("const ").and_then(|(_, rest)| rest.split_once(": "))
            else {
                continue;
            };
            let value = rest.split_once(" = ").and_then(|(_, value)| value.strip_suffix(';'));
            if let Some(value) = value.and_then(evaluated) {
                found.entry(name.to_owned()).or_default().push((file.clone(), value));
            }
        }
    }
    found
}

/// The value of a product or a shift of numbers, perhaps within a type of its own.
fn evaluated(expression: &str) -> Option<u64> {
    let inner = expression.split_once('(').map_or(expression, |(_, inner)| inner.trim_end_matches(')'));
    let number = |text: &str| text.trim().replace('_', "").parse::<u64>().ok();
    match inner.split_once("<<") {
        Some((base, power)) => Some(number(base)? << number(power)?),
        None => inner.split('*').map(number).product(),
    }
}

#[test]
fn the_page_of_limits_has_the_constants() {
    let (constants, mut wrong, mut named) = (constants(), Vec::new(), Vec::new());
    for row in rows() {
        let [_, limit, _, names] = row.as_slice() else { continue };
        let is_constant = |name: &&str| name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        for name in names.split('`').skip(1).step_by(2).filter(is_constant) {
            named.push(name.to_owned());
            let Some((value, _)) = number(limit) else {
                wrong.push(format!("{limit:?} of {name} is no number"));
                continue;
            };
            match constants.get(name) {
                None => wrong.push(format!("{name} is no constant with a number")),
                Some(all) => wrong.extend(
                    all.iter()
                        .filter(|(_, found)| *found != value)
                        .map(|(file, found)| format!("{name} is {found} in {file}, and {limit} on the page")),
                ),
            }
        }
    }
    assert!(wrong.is_empty(), "{PAGE}:\n{}", wrong.join("\n"));
    let shared = read("crates/types/src/limits.rs");
    let shared = shared.lines().filter_map(|line| line.strip_prefix("pub const ")?.split_once(": "));
    // Lists are in the table of settings.
    let shared = shared.filter(|(_, rest)| !rest.starts_with('[')).map(|(name, _)| name.to_owned());
    let missing: Vec<_> = shared.filter(|name| !named.contains(name)).collect();
    assert!(named.len() > 50 && missing.is_empty(), "{PAGE} lacks {missing:?}");
}

/// The configuration with this value of a setting; `None`: it is refused.
fn resolved(setting: &str, value: Option<&str>) -> Option<String> {
    let given: &[_] = match setting {
        "replicas" | "replicas-within" | "redis-write-log" => {
            &[("redis", "redis://127.0.0.1:6379"), ("durability", "redis-replicated")]
        }
        // Its least value is three of the shortest heartbeats.
        "peer-timeout" => &[("peer-heartbeat", "50ms")],
        _ => &[],
    };
    let all = given.iter().copied().chain(value.map(|value| (setting, value)));
    let variable = |name: &str| format!("MTIMER_{}", name.to_uppercase().replace('-', "_"));
    let all = all.map(|(name, value)| (variable(name), value.to_owned()));
    let config = PartialConfig::from_env(all).ok()?.resolve().ok()?;
    Some(format!("{config:?}"))
}

#[test]
fn the_page_of_limits_has_the_ranges_of_settings() {
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for row in rows() {
        let [names, cells @ ..] = row.as_slice() else { continue };
        let is_setting = |name: &&str| SETTINGS.iter().any(|setting| setting.name() == *name);
        let Some(name) = names.split('`').nth(1).filter(is_setting) else { continue };
        assert_eq!(cells.len(), 3, "{row:?}");
        let text = |(value, unit)| if unit == Unit::Ms { format!("{value}ms") } else { format!("{value}") };
        let taken = |value| resolved(name, Some(&text(value))).is_some();
        let [default, least, most] = [0, 1, 2].map(|n| number(&cells[n]));
        checked += [default, least, most].iter().flatten().count();
        if default.is_some_and(|value| resolved(name, Some(&text(value))) != resolved(name, None)) {
            wrong.push(format!("{} is not the default of {name}", cells[0]));
        }
        for bound in [least, most].into_iter().flatten().filter(|bound| !taken(*bound)) {
            wrong.push(format!("{name} cannot be {}", text(bound)));
        }
        let below = least.and_then(|(value, unit)| Some((value.checked_sub(1)?, unit)));
        let above = most.map(|(value, unit)| (value + 1, unit));
        for beyond in [below, above].into_iter().flatten().filter(|beyond| taken(*beyond)) {
            wrong.push(format!("{name} can be {}", text(beyond)));
        }
    }
    assert!(wrong.is_empty(), "{PAGE}:\n{}", wrong.join("\n"));
    assert!(checked > 70, "{checked} values");
}
