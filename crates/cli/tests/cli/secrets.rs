//! Secrets are planted in every place that has some, and looked for in everything that is shown.

use std::fmt::Debug;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mtimer_broker::config::PartialConfig;
use mtimer_broker::{AccessOptions, PeerToken};
use mtimer_client::{Client, TlsOptions};
use mtimer_store_redis::RedisOptions;
use mtimer_store_redis::test_support::{Server, ServerOptions};
use mtimer_tls::test_support::{Authority, Issued};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{Ended, Running, end, mtimer, run, wait_for};
use crate::tls::{block_on, connect};
use crate::token::{TokensFile, write_private};

const PASSWORD: &str = "PLANTEDpassword";
const OTHER_PASSWORD: &str = "PLANTEDother";
/// A password that is not percent-encoded, although it should be. Its parts are secret, too.
const RAW_PASSWORD: &str = "PLANTEDcomma,PLANTEDmiddle@PLANTEDtail";
const PAYLOAD: &str = "{\"authorization\":\"Bearer PLANTEDpayload\",\"cookie\":\"PLANTEDcookie\"}";
const HEADER: &str = "authorization=Bearer PLANTEDheader";
const NO_KEY: &str = "PLANTEDnokey";
/// What the collector of traces asks for.
const COLLECTOR: &str = "PLANTEDcollector";

/// Everything that was shown, and by what.
#[derive(Default)]
struct Seen(Vec<(String, String)>);

impl Seen {
    fn note(&mut self, what: &str, ended: Ended) {
        self.0.push((what.to_owned(), ended.out + &ended.err));
    }

    fn debug(&mut self, what: &str, shown: &impl Debug) {
        self.0.push((what.to_owned(), format!("{shown:?} {shown:#?}")));
    }

    /// Fails if one of the secrets was shown.
    fn check(&self, secrets: &[String]) {
        for secret in secrets {
            assert!(secret.len() >= 10, "too short to be told from other text: {secret}");
            for (what, text) in &self.0 {
                assert!(!text.contains(secret.as_str()), "{what} shows {secret}: {text}");
            }
        }
    }
}

/// The part of a token that nobody may see.
fn secret(token: &str) -> String {
    token.trim().rsplit_once('_').unwrap().1.to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A cluster of one broker, with TLS, tokens and a Redis that has a password.
struct Planted {
    redis: Server,
    tokens: TokensFile,
    authority: Authority,
    issued: Issued,
    peer: String,
}

impl Planted {
    fn new() -> Self {
        let extra = vec!["--requirepass".to_owned(), PASSWORD.to_owned()];
        let redis = Server::start_with(ServerOptions { extra, ..ServerOptions::default() });
        let (tokens, authority) = (TokensFile::new(), Authority::new());
        let issued = authority.issue("broker");
        let peer = tokens.create("brokers", "broker,read:*")["token"].as_str().unwrap().to_owned();
        Self { redis, tokens, authority, issued, peer }
    }

    fn url(&self, password: &str) -> String {
        self.redis.url().replace("redis://", &format!("redis://:{password}@"))
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.tokens.dir.path().join(name);
        write_private(&path, content);
        path
    }

    /// A broker of which nothing is said about Redis and its own token.
    fn bare(&self, more: &[&str]) -> Command {
        self.bare_with_key(&self.issued.key, more)
    }

    fn bare_with_key(&self, key: &Path, more: &[&str]) -> Command {
        let (tokens, ca) = (self.tokens.path(), self.authority.certificate());
        let args = ["broker", "--json", "--listen", "127.0.0.1:0", "--startup-timeout", "2s"];
        let log = ["--log-format", "json", "--log-level", "debug", "--tokens", text(&tokens)];
        let tls = ["--tls-cert", text(&self.issued.certificate), "--tls-key", text(key)];
        let mut command = mtimer(&[&args[..], &log, &tls, &["--tls-ca", text(&ca)], more].concat());
        command.env("MTIMER_HTTP", "127.0.0.1:0");
        command.env("OTEL_EXPORTER_OTLP_HEADERS", format!("authorization=Bearer {COLLECTOR}"));
        command
    }

    /// A broker with both in its environment.
    fn broker(&self, more: &[&str]) -> Command {
        let mut command = self.bare(more);
        command.env("MTIMER_REDIS", self.url(PASSWORD)).env("MTIMER_PEER_TOKEN", &self.peer);
        command
    }
}

/// A broker that runs.
struct Broker {
    running: Running,
    addr: String,
    http: String,
    log: PathBuf,
    ca: PathBuf,
}

impl Broker {
    fn start(planted: &Planted) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let log = planted.tokens.dir.path().join(format!("log-{n}"));
        let mut running = Running::spawn_logging_to(File::create(&log).unwrap(), planted.broker(&[]));
        let line = running.line();
        let ready: Value = serde_json::from_str(&line)
            .unwrap_or_else(|e| panic!("{e}: {line:?} {}", fs::read_to_string(&log).unwrap()));
        let address = |name: &str| ready[name].as_str().unwrap().to_owned();
        let (addr, http) = (address("listening"), address("http"));
        Self { running, addr, http, log, ca: planted.authority.certificate() }
    }

    fn run(&self, token: &Path, args: &[&str]) -> Ended {
        let at = ["--broker", &self.addr, "--tls-ca", text(&self.ca)];
        run(&[args, &at, &["--token-file", text(token)]].concat())
    }

    /// The whole answer to a GET over TLS.
    fn get(&self, authority: &Authority, path: &str, token: &str) -> String {
        block_on(async {
            let mut stream = connect(&self.http, authority, None).await;
            let request = format!("GET {path} HTTP/1.1\r\nHost: b\r\nAuthorization: Bearer {token}\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            let mut answer = Vec::new();
            // Some servers end without saying goodbye.
            let _ = stream.read_to_end(&mut answer).await;
            String::from_utf8_lossy(&answer).into_owned()
        })
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

const SCHEDULE: [&str; 7] = ["schedule", "--group", "g", "--app", "a", "--in", "1h"];

#[test]
fn planted_secrets_are_shown_nowhere() {
    let planted = Planted::new();
    let (_, shop) = planted.tokens.create_in_file("shop", "schedule,register:g/*");
    let (_, reader) = planted.tokens.create_in_file("reader", "read,operate:*");
    let unknown = format!("mtimer_0123456789abcdef_{}", "5e".repeat(32));
    let (shop_token, reader_token) =
        (fs::read_to_string(&shop).unwrap(), fs::read_to_string(&reader).unwrap());
    let wrong_secret = format!("{}_{}", shop_token.rsplit_once('_').unwrap().0, "7a".repeat(32));
    let key = fs::read_to_string(&planted.issued.key).unwrap();
    let mut seen = Seen::default();

    settings(&planted, &mut seen);
    options(&planted, &shop_token, &mut seen);
    raw_passwords(&planted, &mut seen);
    mistakes(&planted, &mut seen);

    let broker = Broker::start(&planted);
    wait_for("joined", || (broker.run(&reader, &["ping", "--ready"]).code == 0).then_some(()));
    // Payloads: stored, delivered, failed for good.
    seen.note(
        "a schedule",
        broker.run(&shop, &[&SCHEDULE[..], &["--payload", PAYLOAD, "--header", HEADER]].concat()).ok(),
    );
    let due =
        ["schedule", "--group", "g", "--app", "b", "--in", "1ms", "--payload", PAYLOAD, "--header", HEADER];
    seen.note("a schedule", broker.run(&shop, &due).ok());
    // Its output has the payload, as it should.
    broker.run(&shop, &["listen", "--group", "g", "--app", "b", "--outcome", "fail", "--count", "1"]).ok();
    let denied =
        ["schedule", "--group", "bank", "--app", "a", "--in", "1h", "--payload", PAYLOAD, "--header", HEADER];
    seen.note("denied", broker.run(&shop, &denied).code(4));
    seen.note("status", broker.run(&reader, &["status", "--json", "--counters"]).ok());
    seen.note("cluster status", broker.run(&reader, &["cluster", "status", "--json"]).ok());
    seen.note("cluster status for people", broker.run(&reader, &["cluster", "status"]).ok());
    seen.note("token list", planted.tokens.run(&["list", "--json"]).ok());

    // Connections that are refused.
    for (what, token) in [("an unknown token", unknown.as_str()), ("a wrong secret", &wrong_secret)] {
        seen.note(what, broker.run(&planted.file("bad-token", token), &["status"]).code(4));
    }
    let ca = ["--tls-ca", text(&broker.ca)];
    let ping = ["ping", "--broker", &broker.addr];
    seen.note("a token that is none", run(&[&ping[..], &ca, &["--token", PASSWORD]].concat()).code(4));
    seen.note("no token", run(&[&ping[..], &ca].concat()).code(4));
    let in_clear = run(&[&ping[..], &["--token", shop_token.trim()]].concat());
    assert_ne!(in_clear.code, 0);
    seen.note("a client without TLS", in_clear);

    // HTTP.
    for path in ["/metrics", "/healthz", "/readyz", "/nothing"] {
        for token in ["", reader_token.trim(), shop_token.trim(), &unknown] {
            let answer = broker.get(&planted.authority, path, token);
            assert!(answer.starts_with("HTTP/1.1 "), "{path}: {answer}");
            seen.0.push((path.to_owned(), answer));
        }
    }
    assert!(seen.0.iter().any(|(what, text)| what == "/metrics" && text.contains("mtimer_sessions")));

    // The files are read again, and one of them cannot be.
    planted.file("tokens.toml", &format!("[[token]]\nid = \"{unknown}\"\n"));
    broker.running.signal("HUP");
    let told = || broker.log().contains("the tokens were not read again").then_some(());
    wait_for("told of", told);
    let log = broker.log();
    for line in log.lines() {
        let parsed = serde_json::from_str::<Value>(line);
        assert!(parsed.is_ok_and(|parsed| parsed["level"].is_string()), "no JSON: {line}");
    }
    assert!(log.contains("DEBUG"), "{log}");
    seen.0.push(("the log".to_owned(), log));
    drop(broker);

    let mut secrets: Vec<String> =
        [PASSWORD, OTHER_PASSWORD, "PLANTEDpayload", "PLANTEDcookie", "PLANTEDheader", NO_KEY, COLLECTOR]
            .into_iter()
            .chain(RAW_PASSWORD.split([',', '@']))
            .map(str::to_owned)
            .collect();
    secrets.extend([&planted.peer, &unknown, &wrong_secret, &shop_token, &reader_token].map(|t| secret(t)));
    secrets.extend(key.lines().filter(|line| !line.starts_with("-----")).map(str::to_owned));
    seen.check(&secrets);
}

/// `--print-config` with the secrets in flags, the environment and the file.
fn settings(planted: &Planted, seen: &mut Seen) {
    let print = ["--print-config"];
    seen.note("print-config, environment", end(planted.broker(&print), b"").ok());
    let peer = planted.file("peer", &planted.peer);
    let more = ["--print-config", "--redis", &planted.url(PASSWORD), "--peer-token-file", text(&peer)];
    seen.note("print-config, flags", end(planted.bare(&more), b"").ok());
    let content = format!("redis = [\"{}\"]\n", planted.url(PASSWORD));
    let file = planted.file("settings.toml", &content);
    let more = ["--print-config", "--config", text(&file), "--peer-token-file", text(&peer)];
    seen.note("print-config, file", end(planted.bare(&more), b"").ok());
    // Mistakes of which the library would show the line, or the value.
    for content in [content.replace(']', ""), content.replace('"', ""), content + "nonsense = 1\n"] {
        let file = planted.file("settings.toml", &content);
        let more = ["--config", text(&file), "--peer-token-file", text(&peer)];
        seen.note("a settings file that is not right", end(planted.bare(&more), b"").code(2));
    }
}

/// Addresses whose password is not percent-encoded: parts of it look like another address, or like
/// a host.
fn raw_passwords(planted: &Planted, seen: &mut Seen) {
    let peer = planted.file("peer", &planted.peer);
    let peer = ["--peer-token-file", text(&peer)];
    for (url, is_one) in [
        (format!("redis://u:{RAW_PASSWORD}@h:1"), false),
        (format!("redis-sentinel://u:{RAW_PASSWORD}@h:1?master=shop"), false),
        (format!("unix:///nowhere?pass={RAW_PASSWORD}"), false),
        (format!("unix:///nowhere?pass={}", RAW_PASSWORD.replace(',', "@")), true),
    ] {
        let print = [&peer[..], &["--print-config"]].concat();
        let variable = |more: &[&str]| {
            let mut command = planted.bare(more);
            command.env("MTIMER_REDIS", &url);
            command
        };
        seen.note("print-config, raw password", end(variable(&print), b"").code(if is_one { 0 } else { 2 }));
        let code = if is_one { 13 } else { 2 };
        let refused = end(variable(&peer), b"").code(code);
        let shown = refused.out.clone() + &refused.err;
        assert!(is_one || shown.contains("%40 %2F"), "no word on percent-encoding: {refused:?}");
        seen.note("a raw password", refused);
        for (content, code) in [(format!("redis = \"{url}\"\n"), code), (format!("\"{url}\" = 1\n"), 2)] {
            let file = planted.file("settings.toml", &content);
            let more = [&peer[..], &["--config", text(&file)]].concat();
            seen.note("a settings file with a raw password", end(planted.bare(&more), b"").code(code));
        }
        let vars = [("MTIMER_REDIS".to_owned(), url.clone())];
        let partial = PartialConfig::from_env(vars).unwrap();
        seen.debug("PartialConfig", &partial);
        seen.debug("Config", &partial.resolve());
        let urls = |separator: char| url.split(separator).map(str::to_owned).collect::<Vec<_>>();
        seen.debug("store options", &RedisOptions::new(urls(','), "test"));
        seen.debug("store options", &RedisOptions::new([url], "test"));
    }
}

/// What types with options show of themselves.
fn options(planted: &Planted, token: &str, seen: &mut Seen) {
    let url = planted.url(PASSWORD);
    let vars = [("MTIMER_REDIS", &url), ("MTIMER_PEER_TOKEN", &planted.peer)];
    let vars = vars.map(|(name, value)| (name.to_owned(), value.clone()));
    let partial = PartialConfig::from_env(vars).unwrap();
    seen.debug("PartialConfig", &partial);
    let config = partial.resolve().unwrap();
    seen.debug("Config", &config);
    seen.debug("StoreConfig", &config.store);
    seen.debug("BrokerOptions", &config.broker);
    let peer_token = PeerToken::Value(planted.peer.clone());
    seen.debug("AccessOptions", &AccessOptions { peer_token, ..AccessOptions::default() });
    seen.debug("store options", &RedisOptions::new([url.clone()], "test"));
    let key = fs::read_to_string(&planted.issued.key).unwrap();
    let certificate = fs::read_to_string(&planted.issued.certificate).unwrap();
    let tls = TlsOptions::ca_pem(certificate.clone()).certificate_pem(certificate, key);
    seen.debug("TlsOptions", &tls);
    let builder = Client::builder().token(token.trim()).tls(tls).connect_timeout(Duration::ZERO);
    seen.debug("ClientBuilder", &builder);
    let error = block_on(builder.brokers(["127.0.0.1:1"]).connect()).unwrap_err();
    seen.debug("ConnectError", &error);
    seen.0.push(("ConnectError".to_owned(), error.to_string()));
}

/// Brokers that do not start.
fn mistakes(planted: &Planted, seen: &mut Seen) {
    seen.note("a bad setting", end(planted.broker(&["--preload", "nonsense"]), b"").code(2));
    let mut wrong = planted.bare(&[]);
    wrong.env("MTIMER_REDIS", planted.url(OTHER_PASSWORD)).env("MTIMER_PEER_TOKEN", &planted.peer);
    let refused = end(wrong, b"");
    assert_ne!(refused.code, 0);
    seen.note("a wrong password", refused);
    let away = format!("redis://:{PASSWORD}@127.0.0.1:1");
    let mut command = planted.bare(&["--startup-timeout", "100ms"]);
    command.env("MTIMER_REDIS", away).env("MTIMER_PEER_TOKEN", &planted.peer);
    let refused = end(command, b"");
    assert_ne!(refused.code, 0);
    seen.note("Redis is away", refused);
    let mistyped = planted.file("mistyped", &planted.peer[1..]);
    let more = ["--redis", &planted.url(PASSWORD), "--peer-token-file", text(&mistyped)];
    seen.note("a peer token that is none", end(planted.bare(&more), b"").code(2));
    let mut command = planted.bare(&[]);
    command.env("MTIMER_REDIS", planted.url(PASSWORD)).env("MTIMER_PEER_TOKEN", &planted.peer[1..]);
    seen.note("a peer token in the environment that is none", end(command, b"").code(2));
    for content in
        [NO_KEY.to_owned(), format!("-----BEGIN PRIVATE KEY-----\n{NO_KEY}\n-----END PRIVATE KEY-----\n")]
    {
        let key = planted.file("no.key", &content);
        let mut command = planted.bare_with_key(&key, &["--redis", &planted.url(PASSWORD)]);
        command.env("MTIMER_PEER_TOKEN", &planted.peer);
        let refused = end(command, b"").code(2);
        assert!(refused.out.contains("private key") || refused.err.contains("private key"), "{refused:?}");
        seen.note("a key that is none", refused);
        let url = planted.url(PASSWORD).replace("redis://", "rediss://");
        let redis_tls =
            ["--redis-tls-cert", text(&planted.issued.certificate), "--redis-tls-key", text(&key)];
        for print in [&[][..], &["--print-config"]] {
            let mut command = planted.bare(&[&redis_tls[..], &["--redis", &url], print].concat());
            command.env("MTIMER_PEER_TOKEN", &planted.peer);
            let ended = end(command, b"");
            assert_eq!(ended.code == 0, !print.is_empty(), "{ended:?}");
            seen.note("a key for Redis that is none", ended);
        }
    }
}
