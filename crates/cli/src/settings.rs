//! A broker's settings as the command line sees them: reading the layers, and showing the result.

use std::path::Path;
use std::time::Duration;

use mtimer_broker::HttpListen;
use mtimer_broker::config::{Config, PartialConfig, RedisConfig, StoreConfig};
use redis::IntoConnectionInfo;
use serde_json::{Value, json};
use toml::Table;

use super::exec::CHILD_VARIABLES;
use super::exit::{Exit, Failure};
use super::logging;

/// Flags over environment over file over defaults.
pub(crate) fn read(flags: PartialConfig, file: Option<&Path>) -> Result<Config, Failure> {
    // Commands that `listen --exec` runs may start a broker: what describes their callback is no
    // setting.
    let ours = |name: &str| name == "MTIMER_LOG" || CHILD_VARIABLES.contains(&name);
    #[cfg(feature = "sabotage")]
    let ours = |name: &str| ours(name) || name == super::sabotage::VARIABLE;
    // A variable that is not UTF-8 is none of ours either.
    let vars = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| !ours(name));
    let layers = PartialConfig::layered(flags, vars, file)?;
    let logged = layers.log_level.is_some();
    let mut config = layers.resolve()?;
    if let Some(filter) = logging::from_env().filter(|_| !logged) {
        config.log_level = filter;
    }
    Ok(config)
}

/// The settings as JSON, under the names that they have in the file.
pub(crate) fn as_json(config: &Config) -> Value {
    let b = &config.broker;
    let mut all = json!({
        "listen": b.listen.to_string(),
        "http": http(b.http),
        "metrics-destinations": b.metrics_destinations,
        "cluster": b.cluster,
        "preload": ms(b.engine.preload_ms),
        "memory": size(b.engine.memory_bytes),
        "park-after": ms(b.engine.park_after_ms),
        "retry": tiers(&b.engine.retry.0),
        "jitter-percent": b.engine.jitter_percent,
        "callback-timeout": ms(b.engine.callback_timeout_ms.into()),
        "dead-max-age": ms(b.engine.dead_max_age_ms),
        "dead-max-count": b.engine.dead_max_count,
        "unconfirmed-max-age": ms(b.engine.unconfirmed_max_age_ms),
        "unconfirmed-max-count": b.engine.unconfirmed_max_count,
        "drain-timeout": span(b.drain_timeout),
        "startup-timeout": span(b.startup_timeout.unwrap_or_default()),
        "weight": b.membership.weight,
        "lease-ttl": span(b.membership.lease_ttl),
        "peer-heartbeat": span(b.membership.peer_heartbeat),
        "peer-timeout": span(b.membership.peer_timeout),
        "handover-timeout": span(b.membership.handover_timeout),
        "heartbeat": span(b.heartbeat),
        "heartbeat-timeout": span(b.heartbeat_timeout),
        "handshake-timeout": span(b.handshake_timeout),
        "max-handshakes": b.max_handshakes,
        "max-sessions": b.max_sessions,
        "receiving": size(b.receiving_bytes as u64),
        "session-outbox": size(b.session_outbox_bytes as u64),
        "outboxes": size(b.outboxes_bytes as u64),
        "log-format": config.log_format.name(),
        "log-level": config.log_level,
    });
    let partitions = match &config.store {
        StoreConfig::Embedded { data, sync, partitions } => {
            all["data"] = json!(data);
            all["durability"] = json!(if *sync { "embedded-sync" } else { "embedded-fast" });
            partitions
        }
        StoreConfig::Redis(RedisConfig { urls, tls, replication, write_log_bytes, partitions }) => {
            all["redis"] = urls.iter().map(|url| without_password(url)).collect();
            let files = [
                ("redis-tls-ca", &tls.authorities),
                ("redis-tls-cert", &tls.certificate),
                ("redis-tls-key", &tls.key),
            ];
            for (name, file) in files {
                if let Some(file) = file {
                    all[name] = json!(file);
                }
            }
            all["redis-write-log"] = json!(size(*write_log_bytes as u64));
            all["durability"] = json!(if replication.is_some() { "redis-replicated" } else { "redis" });
            if let Some(replication) = replication {
                all["replicas"] = json!(replication.replicas);
                all["replicas-within"] = json!(span(replication.within));
            }
            partitions
        }
    };
    if let Some(partitions) = partitions {
        all["partitions"] = json!(partitions);
    }
    if let Some(advertise) = &config.advertise {
        all["advertise"] = json!(advertise);
    }
    let mut destinations: Vec<_> = b.engine.retry_by_dest.iter().collect();
    destinations.sort_by_key(|(dest, _)| (*dest).clone());
    if !destinations.is_empty() {
        let one = |(dest, retry): (&mtimer_types::Destination, &mtimer_types::RetryTiers)| json!({ "group": dest.group(), "app": dest.app(), "retry": tiers(&retry.0) });
        all["destination"] = destinations.into_iter().map(one).collect();
    }
    all
}

/// The settings as a file that `--config` reads.
pub(crate) fn as_toml(config: &Config) -> Result<String, Failure> {
    let wrong =
        |e: &dyn std::error::Error| Failure::new(Exit::Failed, format!("cannot write the settings: {e}"));
    let table: Table = serde_json::from_value(as_json(config)).map_err(|e| wrong(&e))?;
    toml::to_string_pretty(&table).map_err(|e| wrong(&e))
}

/// An address of Redis with `***` in place of its password, which is in front of the last `@`, or
/// the value of `pass` in the query of a Unix socket's address. Text that is no address is not
/// shown: it may be part of one that was split at a comma in its password.
fn without_password(url: &str) -> String {
    let hide = |part: &str| if part.starts_with("pass=") { "pass=***".to_owned() } else { part.to_owned() };
    let url = match without_login(url) {
        Some(url) => url,
        None if url.into_connection_info().is_ok() => url.to_owned(),
        None => return "***".to_owned(),
    };
    let Some((address, query)) = url.split_once('?') else { return url };
    format!("{address}?{}", query.split('&').map(hide).collect::<Vec<_>>().join("&"))
}

/// The same of the password in front of the last `@`; `None` if there is none. A password that is
/// not percent-encoded may have `@`, `?` and `/` in it, a path of a Unix socket may, too.
fn without_login(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://").filter(|(scheme, _)| !scheme.ends_with("unix"))?;
    let (login, host) = rest.rsplit_once('@')?;
    let (user, _) = login.split_once(':')?;
    Some(format!("{scheme}://{user}:***@{host}"))
}

/// The command with the default of every setting in its help; `but` are told elsewhere.
pub(crate) fn with_defaults(command: clap::Command, but: &[&str]) -> clap::Command {
    let Ok(config) = PartialConfig::default().resolve() else { return command };
    let Value::Object(defaults) = as_json(&config) else { return command };
    let told = |name: &str| !but.contains(&name);
    defaults.into_iter().filter(|(name, _)| told(name)).fold(command, |command, (name, value)| {
        let shown = match value {
            Value::String(text) => text,
            Value::Array(parts) => parts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
            other => other.to_string(),
        };
        command.mut_arg(name.replace('-', "_"), |arg| {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            arg.help(format!("{help} [default: {shown}]"))
        })
    })
}

fn http(http: HttpListen) -> String {
    match http {
        HttpListen::Off => "off".to_owned(),
        HttpListen::Auto => "auto".to_owned(),
        HttpListen::At(addr) => addr.to_string(),
    }
}

fn tiers(ms_each: &[u32]) -> Vec<String> {
    ms_each.iter().map(|t| ms(u64::from(*t))).collect()
}

fn size(bytes: u64) -> String {
    match bytes {
        b if b.is_multiple_of(1 << 20) => format!("{}MiB", b >> 20),
        b => b.to_string(),
    }
}

fn ms(ms: u64) -> String {
    span(Duration::from_millis(ms))
}

fn span(span: Duration) -> String {
    humantime::format_duration(span).to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write;

    use clap::Args;
    use mtimer_broker::config::{SETTINGS, Setting};

    use super::*;
    use crate::flags::SettingFlags;

    const ON_TLS: &str = "redis = [\"rediss://a\"]\nredis-tls-ca = \"ca.pem\"\nredis-tls-cert = \"c.pem\"\n\
                          redis-tls-key = \"c.key\"\n";

    fn resolve(text: &str) -> Config {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        PartialConfig::from_file(file.path()).unwrap().resolve().unwrap()
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        for text in [
            "",
            "listen = \"127.0.0.1:1\"\nhttp = \"off\"\nmetrics-destinations = 7\nretry = [\"1s\", \"2m\"]\ndurability = \"embedded-fast\"\npartitions = 8\n\
             startup-timeout = \"3s\"\nmemory = \"64MiB\"\nadvertise = \"h:1\"\nlog-format = \"json\"\n\
             [[destination]]\ngroup = \"g\"\napp = \"a\"\nretry = []\n",
            "redis = [\"redis://a\", \"redis://b\"]\ndurability = \"redis-replicated\"\nreplicas = 3\n\
             redis-write-log = \"8MiB\"\n",
            ON_TLS,
        ] {
            let first = as_toml(&resolve(text)).unwrap();
            assert_eq!(as_toml(&resolve(&first)).unwrap(), first);
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        let all = [
            ("redis://h:1", "redis://h:1"),
            ("redis://u@h", "redis://u@h"),
            ("redis://@h", "redis://@h"),
            ("redis://h:1/2?protocol=resp3", "redis://h:1/2?protocol=resp3"),
            ("redis://:s3cret@h:1/2", "redis://:***@h:1/2"),
            ("redis://u:@h", "redis://u:***@h"),
            ("redis://u:%3Fs3%40cret%2F@h", "redis://u:***@h"),
            ("redis://u:s3%3Fpass=x%40@[::1]:1", "redis://u:***@[::1]:1"),
            ("rediss://u:s3@cret:x@h:1?protocol=resp3", "rediss://u:***@h:1?protocol=resp3"),
            ("rediss://u:a@b@c@h/#insecure", "rediss://u:***@h/#insecure"),
            ("redis://u:pa?ss@h", "redis://u:***@h"),
            ("redis://u:pa?ss@h?protocol=resp3", "redis://u:***@h?protocol=resp3"),
            ("redis://u:pa/ss#x@h/2", "redis://u:***@h/2"),
            ("redis://u:p?pass=x&y@h", "redis://u:***@h"),
            ("redis://h?pass=s3@cret", "redis://h?pass=***"),
            ("valkeys://u:s3cret@h", "valkeys://u:***@h"),
            ("unix:///run/r.sock", "unix:///run/r.sock"),
            ("unix:/run/r.sock?pass=s3cret", "unix:/run/r.sock?pass=***"),
            ("unix:///run/r.sock?user=u&pass=s3cret&db=1", "unix:///run/r.sock?user=u&pass=***&db=1"),
            ("unix:///run/r.sock?pass=s3@cret:x@y&db=1", "unix:///run/r.sock?pass=***&db=1"),
            ("unix:///run/a:b@c.sock?pass=s3?cret", "unix:///run/a:b@c.sock?pass=***"),
            ("redis+unix:///run/r.sock?pass=%26s3cret", "redis+unix:///run/r.sock?pass=***"),
            ("redis://u:s3", "***"),
            ("cret@h", "***"),
        ];
        for (url, shown) in all {
            assert_eq!(without_password(url), shown);
        }
        let (urls, shown): (Vec<&str>, Vec<&str>) = all.into_iter().unzip();
        assert_eq!(as_json(&resolve(&format!("redis = {urls:?}\n")))["redis"], json!(shown));
    }

    #[test]
    fn every_setting_is_shown() {
        let on_redis = "redis = [\"redis://a\"]\ndurability = \"redis-replicated\"\npartitions = 8\nadvertise = \"h:1\"\n";
        let keys = |text| match as_json(&resolve(text)) {
            Value::Object(all) => all.into_iter().map(|(name, _)| name).collect(),
            other => panic!("{other}"),
        };
        let shown: BTreeSet<String> = keys(on_redis);
        let shown = &(&shown | &keys("")) | &keys(ON_TLS);
        let known: BTreeSet<String> = SETTINGS.iter().map(Setting::name).collect();
        assert_eq!(shown, known);
    }

    #[test]
    fn every_setting_that_has_a_default_shows_it_in_its_help() {
        let flags = SettingFlags::augment_args(clap::Command::new("mtimer"));
        let without: Vec<String> = with_defaults(flags, &[])
            .get_arguments()
            .filter(|arg| !arg.get_help().is_some_and(|help| help.to_string().contains("[default: ")))
            .filter_map(|arg| arg.get_long().map(str::to_owned))
            .collect();
        let tls = ["redis-tls-ca", "redis-tls-cert", "redis-tls-key"];
        let without_default =
            [&["advertise", "redis"], &tls[..], &["replicas", "replicas-within", "partitions"]];
        assert_eq!(without, without_default.concat());
    }
}
