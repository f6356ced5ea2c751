//! The sample settings in `deploy/mtimer.toml` are complete, valid, and say the defaults.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use mtimer_broker::config::{PartialConfig, SETTINGS, Setting, StoreConfig};
use mtimer_types::limits::WRITE_LOG_BYTES;

fn sample() -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy/mtimer.toml");
    std::fs::read_to_string(path).unwrap()
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
