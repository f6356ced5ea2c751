//! `deploy/mtimer.toml` and `docs/settings.md` have every setting of the list in
//! `broker/src/config/list.rs`; the sample is valid, and says the defaults.
//!
//! With `WRITE_DOCUMENTS=1` the parts of both files that come from the list are written.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;

use mtimer_broker::config::{PartialConfig, SETTINGS, Setting, StoreConfig};
use mtimer_types::limits::WRITE_LOG_BYTES;

/// Columns of a line.
const WIDTH: usize = 100;
const SAMPLE: &str = "deploy/mtimer.toml";
const PAGE: &str = "docs/settings.md";

fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(file)
}

fn sample() -> String {
    std::fs::read_to_string(path(SAMPLE)).unwrap()
}

/// The settings by the groups that they are listed in.
fn groups() -> impl Iterator<Item = &'static [Setting]> {
    SETTINGS.chunk_by(|a, b| a.group == b.group)
}

/// The settings of a broker that is given none.
fn defaults() -> PartialConfig {
    PartialConfig::default().resolve().unwrap().settings().clone()
}

/// What it is, in sentences, and the default that its help tells.
fn description(setting: &Setting) -> (String, Option<String>) {
    let (help, details) = (setting.help(), setting.details());
    let (help, default) = match help.split_once(" [default: ") {
        Some((help, default)) => (help, Some(default.trim_end_matches(']').to_owned())),
        None => (help.as_str(), None),
    };
    (format!("{help}. {details}").trim_end().to_owned(), default)
}

/// The same text as comment lines of the sample, where settings have no dashes before their names.
fn comment(text: &str) -> String {
    let mut lines = vec!["#".to_owned()];
    for word in text.split(' ').map(|word| word.strip_prefix("--").unwrap_or(word)) {
        if lines.last().unwrap().len() + 1 + word.len() > WIDTH {
            lines.push("#".to_owned());
        }
        let line = lines.last_mut().unwrap();
        *line += " ";
        *line += word;
    }
    lines.join("\n")
}

fn sample_settings() -> String {
    let toml::Value::Table(defaults) = toml::Value::try_from(defaults()).unwrap() else { panic!() };
    let mut text = String::new();
    for group in groups() {
        let title = format!("# --- {} ", group[0].group);
        writeln!(text, "{title:-<WIDTH$}\n").unwrap();
        for setting in group {
            let name = setting.name();
            let value = match setting.sample() {
                Some(sample) => sample.to_owned(),
                None => defaults[&name].to_string(),
            };
            writeln!(text, "{}\n#{name} = {value}\n", comment(&description(setting).0)).unwrap();
        }
    }
    text
}

fn tables() -> String {
    let mut text = String::new();
    for group in groups() {
        writeln!(text, "## {}\n\n| setting | default | what it is |\n|---|---|---|", group[0].group).unwrap();
        for setting in group {
            let (what, told) = description(setting);
            let default = setting.show(&defaults()).or(told).map(|default| format!("`{default}`"));
            let default = default.unwrap_or_else(|| "none".to_owned());
            writeln!(text, "| `{}` | {default} | {} |", setting.name(), what.replace('|', "\\|")).unwrap();
        }
        text.push('\n');
    }
    text
}

/// Compares what stands in a file between two lines with what comes from the list.
fn compare(file: &str, from: &str, to: &str, made: &str) {
    let text = std::fs::read_to_string(path(file)).unwrap();
    let (from, to) = (text.find(from).unwrap(), text.find(to).unwrap());
    if text[from..to] == *made {
        return;
    }
    if std::env::var_os("WRITE_DOCUMENTS").is_some() {
        return std::fs::write(path(file), [&text[..from], made, &text[to..]].concat()).unwrap();
    }
    panic!(
        "{file} is not what comes from broker/src/config/list.rs: change it there, and run\n  \
         WRITE_DOCUMENTS=1 cargo test -p mtimer-broker --test sample_config"
    );
}

#[test]
fn files_have_what_comes_from_the_list() {
    compare(SAMPLE, "# --- Addresses", "# --- Single destinations", &sample_settings());
    compare(PAGE, "## Addresses", "## Single destinations", &tables());
}

/// A setting that is commented out: `#` and no space.
fn setting(line: &str) -> Option<&str> {
    line.strip_prefix('#').filter(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '['))
}

fn read(text: &str) -> PartialConfig {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    PartialConfig::from_file(file.path()).unwrap()
}

/// The sample with every setting set.
fn all_set() -> PartialConfig {
    let text: String = sample().lines().map(|line| setting(line).unwrap_or(line).to_owned() + "\n").collect();
    read(&text)
}

#[test]
fn as_it_is_it_changes_nothing() {
    assert_eq!(read(&sample()), PartialConfig::default());
}

#[test]
fn every_setting_is_in_it_once() {
    let all = all_set();
    assert_eq!((all.destination.len(), all.group_limit.len()), (1, 1));
    let known: BTreeSet<String> = SETTINGS.iter().map(Setting::name).collect();
    assert!(known.contains("listen") && known.len() > 20, "{known:?}");
    // Reading has refused what is not known or there twice, so names are compared one way only.
    let text = sample();
    let (general, _) = text.split_once("#[[destination]]").unwrap();
    let names: BTreeSet<String> = general
        .lines()
        .filter_map(setting)
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, _)| name.to_owned())
        .collect();
    let missing: Vec<_> = known.difference(&names).collect();
    assert!(missing.is_empty(), "deploy/mtimer.toml does not have {missing:?}: add each with its default");
}

#[test]
fn what_it_shows_is_valid_and_the_default() {
    let all = all_set();
    let (data, disk_watermark, disk_reserve) = (all.data.clone(), all.disk_watermark, all.disk_reserve);
    assert!(data.is_some() && disk_watermark.is_some() && disk_reserve.is_some());
    let data = PartialConfig { data, disk_watermark, disk_reserve, ..PartialConfig::default() };
    assert_eq!(data.resolve().unwrap().store, PartialConfig::default().resolve().unwrap().store);
    // Redis servers and a folder are not given together.
    let on_redis = PartialConfig { data: None, disk_watermark: None, disk_reserve: None, ..all };
    let shown = on_redis.clone().resolve().unwrap();
    let StoreConfig::Redis(redis) = &shown.store else { panic!("not on Redis") };
    assert!(redis.replication.is_some() && redis.tls.authorities.is_some());
    assert_eq!(redis.write_log_bytes, WRITE_LOG_BYTES);
    // Those are examples: they have no default, or one that depends on the store.
    let plain = PartialConfig { advertise: None, redis: None, destination: Vec::new(), ..on_redis };
    let plain = PartialConfig { group_limit: Vec::new(), ..plain };
    let plain = PartialConfig { tokens: None, peer_token_file: None, ..plain };
    let plain = PartialConfig { tls_cert: None, tls_key: None, tls_ca: None, tls_client_ca: None, ..plain };
    let plain = PartialConfig { redis_tls_ca: None, redis_tls_cert: None, redis_tls_key: None, ..plain };
    let plain = PartialConfig { redis_write_log: None, ..plain };
    let plain =
        PartialConfig { durability: None, replicas: None, replicas_within: None, partitions: None, ..plain };
    let (shown, default) = (plain.resolve().unwrap(), PartialConfig::default().resolve().unwrap());
    assert_eq!(format!("{:#?}", shown.broker), format!("{:#?}", default.broker));
    assert_eq!((shown.log_format, shown.log_level), (default.log_format, default.log_level));
}
