//! A broker with tokens: rotation under load, reload, roles in a cluster, and secrets that are
//! shown nowhere.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use mtimer_store_redis::test_support::{Server, ServerOptions};
use serde_json::Value;

use crate::harness::{Ended, Running, end, mtimer, run, wait_for, while_calling};
use crate::token::{TokensFile, write_private};

/// A broker that asks for tokens.
struct Guarded {
    running: Running,
    addr: String,
    log: PathBuf,
}

impl Guarded {
    fn start(file: &TokensFile) -> Self {
        let (tokens, data) = (file.path(), file.dir.path().join("data"));
        let args = ["broker", "--json", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()];
        Self::spawn(file, mtimer(&[&args[..], &["--tokens", tokens.to_str().unwrap()]].concat()))
    }

    fn spawn(file: &TokensFile, command: std::process::Command) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let log = file.dir.path().join(format!("log-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let mut running = Running::spawn_logging_to(File::create(&log).unwrap(), command);
        let line = running.line();
        let ready: Value = serde_json::from_str(&line)
            .unwrap_or_else(|e| panic!("{e}: {line:?} {}", fs::read_to_string(&log).unwrap()));
        let addr = ready["listening"].as_str().unwrap().to_owned();
        Self { running, addr, log }
    }

    fn run(&self, token: &Path, args: &[&str]) -> Ended {
        let more = ["--broker", &self.addr, "--token-file", token.to_str().unwrap()];
        run(&[args, &more].concat())
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// How many times it has read the tokens again.
    fn reloads(&self) -> usize {
        self.log().matches("the tokens were read again").count()
    }
}

const SCHEDULE: [&str; 7] = ["schedule", "--group", "g", "--app", "a", "--in", "1h"];

#[test]
fn a_token_is_replaced_under_load_without_a_failed_call() {
    let file = TokensFile::new();
    let (first, token) = file.create_in_file("shop", "schedule,register:g/*");
    let broker = Guarded::start(&file);
    while_calling(
        || _ = broker.run(&token, &SCHEDULE).ok(),
        |more_calls| {
            more_calls(2);
            let (_, second) = file.create_in_file("shop-new", "schedule,register:g/*");
            wait_for("let in with the second token", || {
                (broker.run(&second, &["ping"]).code == 0).then_some(())
            });
            // Both are valid now. Calls that begin from here on show the second one.
            let old = file.dir.path().join("old");
            fs::copy(&token, &old).unwrap();
            write_private(&token, &fs::read_to_string(&second).unwrap());
            more_calls(2);
            file.run(&["revoke", &first, "--yes"]).ok();
            broker.running.signal("HUP");
            wait_for("refused with the first token", || {
                (broker.run(&old, &["ping"]).code == 4).then_some(())
            });
            more_calls(2);
        },
    );
}

#[test]
fn tokens_are_read_again_on_hup_and_when_the_file_changes() {
    let file = TokensFile::new();
    let (_, _) = file.create_in_file("first", "read:*");
    let broker = Guarded::start(&file);
    assert_eq!(broker.reloads(), 0);
    // The file is the same: nothing but the signal can be the reason.
    broker.running.signal("HUP");
    wait_for("read again on HUP", || (broker.reloads() == 1).then_some(()));
    // No signal: nothing but the change can be the reason.
    let (_, second) = file.create_in_file("second", "read:*");
    wait_for("read again on change", || (broker.reloads() == 2).then_some(()));
    broker.run(&second, &["status"]).ok();
    // One that is not valid changes nothing.
    write_private(&file.path(), "nonsense");
    broker.running.signal("HUP");
    wait_for("told of", || broker.log().contains("the tokens were not read again").then_some(()));
    broker.run(&second, &["status"]).ok();
}

#[test]
fn who_is_refused_is_summed_up_in_the_log() {
    let file = TokensFile::new();
    let (revoked, token) = file.create_in_file("gone", "read:*");
    file.run(&["revoke", &revoked, "--yes"]).ok();
    let (denied, reader) = file.create_in_file("reader", "read:*");
    let broker = Guarded::start(&file);
    for _ in 0..2 {
        broker.run(&token, &["ping"]).code(4);
    }
    broker.run(&reader, &SCHEDULE).code(4);
    // The line of ten seconds may come between two of them.
    let count = |name: &str| -> u64 {
        let (log, name) = (broker.log(), format!("{name} "));
        let numbers = log.split(&name).skip(1).map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
        numbers.map(|n| n.unwrap().parse::<u64>().unwrap()).sum()
    };
    wait_for("summed up", || (count("auth_refused") + count("access_denied") >= 3).then_some(()));
    let log = broker.log();
    assert_eq!((count("auth_refused"), count("access_denied")), (2, 1), "{log}");
    for part in ["messages without permission, were refused", "peers=127.0.0.1 ", &revoked, &denied] {
        assert!(log.contains(part), "{part} in {log}");
    }
    let counters = broker.run(&reader, &["status", "--counters", "--json"]).ok().json()["counters"].take();
    assert_eq!((&counters["auth_refused_total"], &counters["access_denied_total"]), (&2.into(), &1.into()));
    let secret = fs::read_to_string(&token).unwrap();
    assert!(!log.contains(secret.trim()));
}

#[test]
fn a_listener_without_the_verb_is_told_so() {
    let file = TokensFile::new();
    let (_, token) = file.create_in_file("shop", "register:g/a");
    let broker = Guarded::start(&file);
    let refused = broker.run(&token, &["listen", "--group", "g", "--app", "b"]).code(4).err;
    assert!(
        refused.contains("may not register on g/b") && refused.contains("--grant 'register:g/b'"),
        "{refused}"
    );
}

/// Flags of a broker of a cluster.
fn of_cluster(redis: &str, file: &TokensFile, more: &[&str]) -> std::process::Command {
    let tokens = file.path();
    let args = ["broker", "--json", "--listen", "127.0.0.1:0", "--redis", redis, "--log-level", "debug"];
    mtimer(&[&args[..], &["--tokens", tokens.to_str().unwrap()], more].concat())
}

#[test]
fn brokers_show_their_token_to_each_other() {
    let redis = Server::start_with(ServerOptions::default());
    let file = TokensFile::new();
    let (_, peer) = file.create_in_file("brokers", "broker,read:*");
    let (_, stranger) = file.create_in_file("stranger", "read:*");
    let url = redis.url();
    let with = |token: &Path| {
        let command = of_cluster(&url, &file, &["--peer-token-file", token.to_str().unwrap()]);
        Guarded::spawn(&file, command)
    };
    let ready = |broker: &Guarded| broker.run(&peer, &["ping", "--ready"]).code;
    let first = with(&peer);
    wait_for("a leader", || (ready(&first) == 0).then_some(()));
    let second = with(&peer);
    wait_for("joined", || (ready(&second) == 0).then_some(()));
    // One with a token that lacks the verb gets no link to the leader, and so never joins.
    let log = file.dir.path().join("third");
    let third = of_cluster(&url, &file, &["--peer-token-file", stranger.to_str().unwrap()]);
    let _third = Running::spawn_logging_to(File::create(&log).unwrap(), third);
    let told = || fs::read_to_string(&log).unwrap().contains("may not broker on *");
    wait_for("refused by the leader", || told().then_some(()));
    let view = first.run(&peer, &["cluster", "status", "--json"]).ok().json();
    assert_eq!(view["brokers"].as_array().unwrap().len(), 2, "{view}");
    // Without a token of its own none starts.
    let refused = end(of_cluster(&url, &file, &[]), b"").code(2).out;
    assert!(refused.contains("peer-token-file") && refused.contains("MTIMER_PEER_TOKEN"), "{refused}");
}

/// The old token is revoked, so a link that is opened afterwards was opened with the new one.
#[test]
fn the_brokers_own_token_is_replaced_in_a_cluster_that_is_in_use() {
    let redis = Server::start_with(ServerOptions::default());
    let file = TokensFile::new();
    let (old_id, old) = file.create_in_file("old", "broker:*");
    let (_, shop) = file.create_in_file("shop", "schedule,read:*");
    let (url, own) = (redis.url(), file.dir.path().join("own"));
    write_private(&own, &fs::read_to_string(&old).unwrap());
    let with = |token: &Path| of_cluster(&url, &file, &["--peer-token-file", token.to_str().unwrap()]);
    let ready = |broker: &Guarded| (broker.run(&shop, &["ping", "--ready"]).code == 0).then_some(());
    let leader = Guarded::spawn(&file, with(&own));
    wait_for("a leader", || ready(&leader));
    let second = Guarded::spawn(&file, with(&own));
    wait_for("joined", || ready(&second));
    let links = || links_opened(&leader.log());
    assert_eq!(links(), 1, "{}", leader.log());

    while_calling(
        || _ = leader.run(&shop, &SCHEDULE).ok(),
        |more_calls| {
            more_calls(2);
            let (_, new) = file.create_in_file("new", "broker:*");
            write_private(&own, &fs::read_to_string(new).unwrap());
            file.run(&["revoke", &old_id, "--yes"]).ok();
            let revoked = "the token of this session was revoked";
            wait_for("the first link is closed", || leader.log().contains(revoked).then_some(()));
            // No signal, and no restart: both files are read again because they changed.
            wait_for("a second link", || (links() == 2).then_some(()));
            more_calls(2);
        },
    );

    // One that starts with the old token is not let in, one with the new token is.
    let log = file.dir.path().join("third");
    let _third = Running::spawn_logging_to(File::create(&log).unwrap(), with(&old));
    let told = || fs::read_to_string(&log).unwrap().contains("is not known").then_some(());
    wait_for("refused by the leader", told);
    drop(second);
    let again = Guarded::spawn(&file, with(&own));
    wait_for("joined again", || ready(&again));
    assert_eq!(links(), 3, "{}", leader.log());
}

/// How many connections other brokers have opened, by a log.
fn links_opened(log: &str) -> usize {
    log.lines().filter(|line| line.contains("session opened") && line.contains("role=Broker")).count()
}

#[test]
fn a_limit_that_is_reached_is_an_exit_code_of_its_own() {
    let file = TokensFile::new();
    let limits = ["--limit", "schedules=1,burst=1", "--limit", "payload=4,connections=1"];
    let create = ["create", "--json", "--name", "shop", "--grant", "schedule,register:g/*"];
    let made = file.run(&[&create[..], &limits].concat()).ok().json();
    let token = file.dir.path().join("shop");
    write_private(&token, made["token"].as_str().unwrap());
    let broker = Guarded::start(&file);
    let id = made["id"].as_str().unwrap();
    let long = broker.run(&token, &[&SCHEDULE[..], &["--payload", "12345"]].concat()).code(4).err;
    assert!(
        long.contains(&format!("payload and headers have 5 bytes, the limit payload of token {id} is 4")),
        "{long}"
    );
    // Five at once and no time to repeat them: one a second is let through.
    let lines = "{\"group\":\"g\",\"app\":\"a\",\"in\":\"1h\"}\n".repeat(5);
    let many = ["schedule", "--file", "-", "--request-timeout", "200ms", "--broker", &broker.addr];
    let many = mtimer(&[&many[..], &["--token-file", token.to_str().unwrap()]].concat());
    let partly = end(many, lines.as_bytes()).code(9).err;
    assert!(partly.contains(&format!("the limit schedules of token {id} is reached")), "{partly}");
    let listen = ["listen", "--group", "g", "--app", "a", "--broker", &broker.addr];
    let _listening = Running::start(&[&listen[..], &["--token-file", token.to_str().unwrap()]].concat());
    let second = || {
        let ended = broker.run(&token, &["ping", "--ready"]);
        (ended.code == 13).then_some(ended.err)
    };
    let told = wait_for("a second connection is refused", second);
    assert!(told.contains(&format!("the limit connections of token {id} is reached, 1 of 1")), "{told}");
    broker.running.signal("HUP");
    wait_for("the limits in the log", || broker.log().contains("because a limit was reached").then_some(()));
    let named = format!("schedules of token {id} ");
    assert!(broker.log().contains(&named), "{}", broker.log());
}

#[test]
fn a_hint_is_a_command_that_can_be_run_as_it_is_printed() {
    let file = TokensFile::new();
    let (_, token) = file.create_in_file("shop", "read:g/*");
    let broker = Guarded::start(&file);
    let with_hint = |refused: Ended| {
        let hint = refused.err.split('`').nth(1).unwrap_or_else(|| panic!("{refused:?}")).to_owned();
        let mut shell = std::process::Command::new("/bin/sh");
        let program = Path::new(env!("CARGO_BIN_EXE_mtimer")).parent().unwrap();
        let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
        shell.args(["-ec", &hint]).current_dir(file.dir.path()).env("PATH", path);
        shell.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        end(shell, b"").ok();
        broker.running.signal("HUP");
    };
    for (args, refused) in [
        (&SCHEDULE[..], "schedule"),
        (&["status"], "status"),
        (&["dead", "purge", "--yes", "--all"], "purge"),
    ] {
        with_hint(broker.run(&token, args).code(4));
        wait_for(refused, || (broker.run(&token, args).code == 0).then_some(()));
    }
}
