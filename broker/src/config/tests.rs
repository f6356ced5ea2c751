use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use mtimer_tls::ClientFiles;
use mtimer_types::Destination;
use mtimer_types::limits::WRITE_LOG_BYTES;

use super::*;
use crate::options::BrokerOptions;

fn flags(given: &[(&str, &str)]) -> PartialConfig {
    let mut config = PartialConfig::default();
    for (name, value) in given {
        let setting = SETTINGS.iter().find(|setting| setting.name() == *name).unwrap();
        setting.read(&mut config, value).unwrap();
    }
    config
}

fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut f = tempfile::NamedTempFile::new().unwrap();
    f.write_all(text.as_bytes()).unwrap();
    f
}

#[test]
fn flags_over_environment_over_file_over_defaults() {
    let file = file(
        "cluster = \"file\"\nheartbeat = \"1s\"\npreload = \"2s\"\nmemory = \"64MiB\"\nretry = [\"1s\", \"2s\"]\n\
         [[destination]]\ngroup = \"g\"\napp = \"a\"\nretry = []\n",
    );
    let vars =
        env(&[("MTIMER_CLUSTER", "env"), ("MTIMER_HEARTBEAT", "2s"), ("MTIMER_TOKEN", "x"), ("HOME", "/")]);
    let flags = flags(&[("cluster", "flag"), ("park-after", "100ms")]);
    let config = PartialConfig::layered(flags, vars, Some(file.path())).unwrap().resolve().unwrap();
    let b = &config.broker;
    assert_eq!((b.cluster.as_str(), b.heartbeat.as_secs(), b.heartbeat_timeout.as_secs()), ("flag", 2, 6));
    assert_eq!((b.engine.preload_ms, b.engine.memory_bytes, b.engine.park_after_ms), (2_000, 64 << 20, 100));
    assert_eq!(b.engine.retry.0, [1_000, 2_000]);
    assert_eq!(b.engine.retry_by_dest[&Destination::new("g", "a").unwrap()].0, []);
    assert_eq!(b.listen, BrokerOptions::default().listen);
    let StoreConfig::Embedded { sync, partitions, .. } = config.store else { panic!("not embedded") };
    assert!(sync && partitions.is_none());
}

#[test]
fn unknown_keys_and_variables_are_errors() {
    let bad = file("clustre = \"x\"\n");
    let text = PartialConfig::from_file(bad.path()).unwrap_err().to_string();
    assert!(text.contains("clustre") && text.contains("cluster"), "{text}");
    let text = PartialConfig::from_env(env(&[("MTIMER_CLUSTRE", "x")])).unwrap_err().to_string();
    assert!(text.contains("MTIMER_CLUSTRE is not known") && text.contains("MTIMER_CLUSTER"), "{text}");
    let bad = file("[[destination]]\ngroup = \"g\"\nretry = []\n");
    assert!(PartialConfig::from_file(bad.path()).unwrap_err().to_string().contains("app"));
}

#[test]
fn errors_name_value_limit_and_fix() {
    let error = |vars: &[(&str, &str)]| match PartialConfig::from_env(env(vars)) {
        Ok(config) => config.resolve().unwrap_err().to_string(),
        Err(e) => e.to_string(),
    };
    assert_eq!(
        error(&[("MTIMER_PRELOAD", "soon")]),
        "the environment variable MTIMER_PRELOAD is not valid: \
         \"soon\" is not a duration: write a number and a unit, such as 250ms, 5s, 2h"
    );
    assert_eq!(
        error(&[("MTIMER_PARTITIONS", "2000")]),
        "partitions is 2000, allowed is 1 to 1024: 16 a core is plenty"
    );
    assert!(error(&[("MTIMER_LISTEN", "7400")]).contains("write host:port, such as 0.0.0.0:7400"));
    assert_eq!(
        error(&[("MTIMER_REPLICAS", "-1")]),
        "the environment variable MTIMER_REPLICAS is not valid: \"-1\" is not a number from 0 to 4294967295"
    );
    assert!(error(&[("MTIMER_REDIS_TLS_CA", "")]).contains("it is empty: write a path"));
    assert!(error(&[("MTIMER_DURABILITY", "redis")]).contains("the store is embedded"));
    assert!(error(&[("MTIMER_DURABILITY", "best")]).contains("write embedded-sync, embedded-fast, redis or"));
    let both = [("MTIMER_REDIS", "redis://h"), ("MTIMER_DATA", "/x")];
    assert!(error(&both).contains("leave one of them out"));
    assert!(error(&[("MTIMER_RETRY", "1s,90d")]).contains("retry tier 2 of 2"));
}

#[test]
fn redis_urls_choose_redis() {
    let vars = env(&[("MTIMER_REDIS", "redis://a,redis://b"), ("MTIMER_DURABILITY", "redis-replicated")]);
    let config = PartialConfig::from_env(vars).unwrap().resolve().unwrap();
    let urls = vec!["redis://a".to_owned(), "redis://b".to_owned()];
    assert_eq!(
        config.store,
        StoreConfig::Redis(RedisConfig {
            urls,
            tls: ClientFiles::default(),
            replication: Some(Replication::default()),
            write_log_bytes: WRITE_LOG_BYTES,
            partitions: None,
        })
    );
}

#[test]
fn files_for_tls_go_with_addresses_that_use_it() {
    let with = |more: &[(&'static str, &'static str)]| PartialConfig::from_env(env(more)).unwrap().resolve();
    let on_tls = ("MTIMER_REDIS", "redis://a,rediss://b");
    let files = [
        ("MTIMER_REDIS_TLS_CA", "/ca.pem"),
        ("MTIMER_REDIS_TLS_CERT", "/c.pem"),
        ("MTIMER_REDIS_TLS_KEY", "/c.key"),
    ];
    let all = [&[on_tls][..], &files].concat();
    let StoreConfig::Redis(redis) = with(&all).unwrap().store else { panic!("not on Redis") };
    let [authorities, certificate, key] = files.map(|(_, file)| Some(PathBuf::from(file)));
    assert_eq!(redis.tls, ClientFiles { authorities, certificate, key });
    let error = |more: &[(&'static str, &'static str)]| with(more).unwrap_err().to_string();
    assert_eq!(
        error(&[on_tls, files[1]]),
        "redis-tls-cert: /c.pem is given, but not its key: give redis-tls-key, too"
    );
    assert_eq!(
        error(&[on_tls, files[2]]),
        "redis-tls-key: /c.key is given, but not its certificate: give redis-tls-cert, too"
    );
    let plain = "redis-tls-ca: /ca.pem is given, but no server in redis begins with rediss:// or \
                 rediss-sentinel://: write that, or leave it out";
    assert_eq!(error(&[("MTIMER_REDIS", "redis://u:secret@a"), files[0]]), plain);
    assert_eq!(error(&files[..1]), plain);
}

#[test]
fn memory_for_the_last_writes_has_a_unit_and_is_enough_for_some() {
    let with = |value: &'static str| {
        let vars = env(&[("MTIMER_REDIS", "redis://a"), ("MTIMER_REDIS_WRITE_LOG", value)]);
        PartialConfig::from_env(vars).unwrap().resolve()
    };
    let bytes = |value| match with(value).unwrap().store {
        StoreConfig::Redis(redis) => redis.write_log_bytes,
        StoreConfig::Embedded { .. } => panic!("not on Redis"),
    };
    assert_eq!((bytes("0"), bytes("1MiB"), bytes("2GiB")), (0, 1 << 20, 2 << 30));
    let error = with("64").unwrap_err().to_string();
    assert_eq!(error, "redis-write-log: 64 bytes: allowed are 0 (none), or 1MiB and more");
    let embedded = PartialConfig::from_env(env(&[("MTIMER_REDIS_WRITE_LOG", "1MiB")])).unwrap();
    assert!(embedded.resolve().unwrap_err().to_string().contains("give redis URLs, or leave it out"));
}

#[test]
fn the_watermark_of_the_disk_is_above_its_reserve() {
    let with = |more: &[(&'static str, &'static str)]| PartialConfig::from_env(env(more)).unwrap().resolve();
    let limits = |more: &[(&'static str, &'static str)]| match with(more).unwrap().store {
        StoreConfig::Embedded { disk_watermark, disk_reserve, .. } => (disk_watermark, disk_reserve),
        StoreConfig::Redis(_) => panic!("not embedded"),
    };
    let (watermark, reserve) = ("MTIMER_DISK_WATERMARK", "MTIMER_DISK_RESERVE");
    assert_eq!(limits(&[]), (1 << 30, 256 << 20));
    assert_eq!(limits(&[(watermark, "0"), (reserve, "64MiB")]), (0, 64 << 20));
    assert_eq!(limits(&[(reserve, "2GiB")]), (2 << 30, 2 << 30));
    let error = |more: &[(&'static str, &'static str)]| with(more).unwrap_err().to_string();
    assert_eq!(
        error(&[(watermark, "1000"), (reserve, "64MiB")]),
        "disk-watermark: 1000 bytes is less than disk-reserve, 67108864 bytes: give it at least as much, or 0 for no \
         warning"
    );
    for (given, bytes) in [("0", 0), ("63MiB", 66_060_288)] {
        assert_eq!(
            error(&[(reserve, given)]),
            format!(
                "disk-reserve: {bytes} bytes: give it at least 64MiB, so that delivering can go on when the disk is \
                 full, or leave it out for 256MiB"
            )
        );
    }
    for setting in [watermark, reserve] {
        let told = error(&[("MTIMER_REDIS", "redis://a"), (setting, "1MiB")]);
        assert!(told.starts_with("disk-") && told.contains("leave it out"), "{told}");
    }
}

#[test]
fn replicas_are_counted_and_bounded() {
    let with = |more: &[(&'static str, &'static str)]| {
        let vars = [&[("MTIMER_REDIS", "redis://a")][..], more].concat();
        PartialConfig::from_env(env(&vars)).unwrap().resolve()
    };
    let level = ("MTIMER_DURABILITY", "redis-replicated");
    let config = with(&[level, ("MTIMER_REPLICAS", "2"), ("MTIMER_REPLICAS_WITHIN", "500ms")]).unwrap();
    let replication = Some(Replication { replicas: 2, within: Duration::from_millis(500) });
    assert!(
        matches!(config.store, StoreConfig::Redis(RedisConfig { replication: r, .. }) if r == replication)
    );
    for (more, fix) in [
        (&[level, ("MTIMER_REPLICAS", "0")][..], "allowed are 1 to 16"),
        (&[level, ("MTIMER_REPLICAS_WITHIN", "5m")][..], "allowed are 10ms to 60s"),
        (&[("MTIMER_REPLICAS", "1")][..], "write redis-replicated"),
    ] {
        assert!(with(more).unwrap_err().to_string().contains(fix), "{more:?}");
    }
}

#[test]
fn a_heartbeat_beyond_all_bounds_is_refused() {
    let heartbeat = format!("{}s", u64::MAX).parse().unwrap();
    let config = PartialConfig { heartbeat: Some(heartbeat), ..PartialConfig::default() };
    assert!(config.resolve().is_err());
}

const ON_TLS: &str = "redis = [\"rediss://a\"]\nredis-tls-ca = \"ca.pem\"\nredis-tls-cert = \"c.pem\"\n\
                      redis-tls-key = \"c.key\"\n";

fn resolved(text: &str) -> Config {
    PartialConfig::from_file(file(text).path()).unwrap().resolve().unwrap()
}

#[test]
fn what_is_shown_can_be_read_again() {
    for text in [
        "",
        "listen = \"127.0.0.1:1\"\nhttp = \"off\"\nmetrics-destinations = 7\nretry = [\"1s\", \"2m\"]\ndurability = \"embedded-fast\"\npartitions = 8\n\
         disk-watermark = \"71MiB\"\ndisk-reserve = \"70MiB\"\n\
         startup-timeout = \"3s\"\nmemory = \"64MiB\"\nadvertise = \"h:1\"\nlog-format = \"json\"\n\
         [[destination]]\ngroup = \"g\"\napp = \"a\"\nretry = []\n\
         [[group-limit]]\ngroup = \"*\"\nschedules = 5\npayload = \"4KiB\"\n",
        "redis = [\"redis://a\", \"redis://b\"]\ndurability = \"redis-replicated\"\nreplicas = 3\n\
         redis-write-log = \"8MiB\"\n",
        ON_TLS,
    ] {
        let first = resolved(text).to_toml().unwrap();
        assert_eq!(resolved(&first).to_toml().unwrap(), first);
    }
}

#[test]
fn every_setting_is_shown() {
    let names = |text| -> Vec<String> {
        match toml::from_str(&resolved(text).to_toml().unwrap()).unwrap() {
            toml::Value::Table(all) => all.into_iter().map(|(name, _)| name).collect(),
            other => panic!("{other}"),
        }
    };
    let on_redis = "redis = [\"redis://a\"]\ndurability = \"redis-replicated\"\npartitions = 8\n\
                    advertise = \"h:1\"\ntokens = \"t\"\npeer-token-file = \"p\"\n\
                    tls-cert = \"c\"\ntls-key = \"k\"\ntls-client-ca = \"cc\"\ntls-ca = \"a\"\n";
    let shown: BTreeSet<String> = [on_redis, "", ON_TLS].into_iter().flat_map(names).collect();
    let known: BTreeSet<String> = SETTINGS.iter().map(Setting::name).collect();
    assert_eq!(shown, known);
}

#[test]
fn limits_of_groups_are_read_from_the_file() {
    let text = "[[group-limit]]\ngroup = \"shop\"\nschedules = 5\nburst = 9\npending = 7\npayload = \"4KiB\"\n\
                [[group-limit]]\ngroup = \"*\"\npayload = 0\n";
    let limits = resolved(text).broker.group_limits;
    assert_eq!(limits["shop"].to_string(), "schedules=5,burst=9,pending=7,payload=4096");
    assert_eq!(limits["*"].to_string(), "payload=0");
    let error =
        |text: &str| PartialConfig::from_file(file(text).path()).unwrap().resolve().unwrap_err().to_string();
    let twice = "[[group-limit]]\ngroup = \"a\"\n".repeat(2);
    assert_eq!(error(&twice), "group-limit: a is there twice: write it once");
    assert!(
        error("[[group-limit]]\ngroup = \"\"\n").contains("group-limit: the group"),
        "{}",
        error("[[group-limit]]\ngroup = \"\"\n")
    );
    let large = "[[group-limit]]\ngroup = \"a\"\npayload = \"1MiB\"\n";
    assert!(error(large).contains("the limit payload is 1048576, allowed is 0 to 65536"), "{}", error(large));
}

#[test]
fn passwords_are_not_shown() {
    let shown = resolved("redis = [\"redis://u:s3cret@h:1\", \"redis://u:s3\"]\n").settings().redis.clone();
    let expected = ["redis://u:***@h:1", "***"].map(|url| RedisUrl(url.to_owned()));
    assert_eq!(shown, Some(CommaList(expected.into())));
    let partial = flags(&[("redis", "redis://u:s3cret@h:1")]);
    let resolved = partial.clone().resolve().unwrap();
    assert!(!format!("{partial:?} {resolved:?}").contains("s3cret"));
    // Mistakes that would have the library show the line, or the value.
    for text in ["redis = redis://u:s3cret@h:1\n", "cluster = \"a\"\nredis = [\"redis://u:s3cret@h:1\"\n"] {
        let error = PartialConfig::from_file(file(text).path()).unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(shown.contains("is not valid: line ") && !shown.contains("s3cret"), "{shown}");
    }
}

#[cfg(unix)]
#[test]
fn a_file_with_a_password_is_private() {
    use std::os::unix::fs::PermissionsExt;

    let read = |text: &str, mode: u32| {
        let file = file(text);
        std::fs::set_permissions(file.path(), PermissionsExt::from_mode(mode)).unwrap();
        // The file's random name may be like the secret.
        let named = |error: ConfigError| error.to_string().replace(file.path().to_str().unwrap(), "/FILE");
        PartialConfig::from_file(file.path()).map(drop).map_err(named)
    };
    for secret in ["redis://u:s3cret@h", "unix:///s?pass=s3cret", "redis://u:s3"] {
        let text = format!("redis = [\"redis://h\", \"{secret}\"]\n");
        for mode in [0o600, 0o400, 0o440, 0o640] {
            read(&text, mode).unwrap();
        }
        for mode in [0o644, 0o604, 0o660] {
            let error = read(&text, mode).unwrap_err();
            let words = ["holds the password of Redis", &format!("mode {mode:04o}"), "run chmod 600 /FILE"];
            assert!(words.iter().all(|word| error.contains(word)) && !error.contains("s3"), "{error}");
        }
    }
    read("redis = [\"redis://u@h\", \"unix:///s?user=u\"]\n", 0o644).unwrap();
}

#[test]
fn a_text_is_taken_where_a_list_is_expected() {
    let with = |text: &str| PartialConfig::from_file(file(text).path()).unwrap();
    let urls = |text: &str| with(text).redis.unwrap().0.into_iter().map(|url| url.0).collect::<Vec<_>>();
    assert_eq!(urls("redis = \"redis://a:1\""), ["redis://a:1"]);
    assert_eq!(
        urls("redis = \"redis://a:1,redis://b:2\""),
        urls("redis = [\"redis://a:1\", \"redis://b:2\"]")
    );
    assert_eq!(with("retry = \"1s, 5s\"").retry, with("retry = [\"1s\", \"5s\"]").retry);
    let one = with("[[destination]]\ngroup = \"g\"\napp = \"a\"\nretry = \"1s\"");
    assert_eq!(one.destination[0].retry.0.len(), 1);
}

#[test]
fn errors_in_a_file_name_line_setting_and_an_example() {
    for (text, expected) in [
        (
            "retry = 5",
            "line 1, retry: invalid type: integer `5`, expected an array of texts, or a text with commas; \
                       for example: retry = [\"1s\", \"5s\"]",
        ),
        (
            "\nweight = \"x\"",
            "line 2, weight: invalid type: string \"x\", expected u16; for example: weight = 16",
        ),
        (
            "heartbeat = 5",
            "line 1, heartbeat: invalid type: integer `5`, expected a string; for example: heartbeat = \"5s\"",
        ),
        ("memory = \"lots\"", "for example: memory = \"256MiB\""),
        ("redis = [1]", "for example: redis = [\"redis://10.0.0.5:6379\"]"),
    ] {
        let error = PartialConfig::from_file(file(text).path()).unwrap_err().to_string();
        assert!(error.ends_with(expected), "{text}: {error}");
    }
    for setting in SETTINGS {
        PartialConfig::from_file(file(&setting.example()).path()).unwrap();
    }
}

#[test]
fn an_address_of_redis_may_be_a_host_and_what_is_none_is_explained() {
    let with = |text: &str| PartialConfig::from_env(env(&[("MTIMER_REDIS", text)])).unwrap().resolve();
    let urls = |text| match with(text).unwrap().store {
        StoreConfig::Redis(redis) => redis.urls,
        StoreConfig::Embedded { .. } => panic!("not on Redis"),
    };
    assert_eq!(urls("127.0.0.1:6379"), ["redis://127.0.0.1:6379"]);
    assert_eq!(
        urls("r-1.x:1,[::1]:7000,rediss://c"),
        ["redis://r-1.x:1", "redis://[::1]:7000", "rediss://c"]
    );
    for (text, part) in [
        ("http://127.0.0.1:6379", "redis: an address begins with \"http://\": write redis://HOST:6379"),
        ("u:s3cret@127.0.0.1:6379", "redis: an address begins with no redis://: write redis://HOST:6379"),
        ("u:s3cret://h", "redis: an address begins with no redis://"),
        ("redis://u:a,s3cret,c@h", "redis: an address begins with no redis://"),
        ("localhost", "redis: an address begins with no redis://"),
    ] {
        let error = with(text).unwrap_err().to_string();
        assert!(error.contains(part) && !error.contains("s3cret"), "{text}: {error}");
    }
    with("redis-sentinel://h?master=m").unwrap();
}
