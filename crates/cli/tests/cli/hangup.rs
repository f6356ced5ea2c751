//! HUP: a broker and a listener go on and read again what they can; what somebody tries out at a
//! terminal ends with it.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use mtimer_store_redis::test_support::{Server, ServerOptions};
use serde_json::Value;

use crate::harness::{MTIMER, Running, command, run, wait_for};
use crate::token::{TokensFile, write_private};

/// Starts a broker; returns it, its address, and its log.
fn broker(dir: &Path, flags: &[&str]) -> (Running, String, PathBuf) {
    let (log, data) = (dir.join("log"), dir.join("data"));
    let args = ["broker", "--json", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()];
    let mut running = Running::logging_to(File::create(&log).unwrap(), &[&args[..], flags].concat());
    let ready: Value = serde_json::from_str(&running.line()).unwrap();
    (running, ready["listening"].as_str().unwrap().to_owned(), log)
}

fn logged(log: &Path, what: &str) {
    wait_for(what, || fs::read_to_string(log).unwrap().contains(what).then_some(()));
}

#[test]
fn a_broker_without_tokens_and_tls_goes_on_and_says_what_needs_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("mtimer.toml");
    fs::write(&config, "memory = \"64MiB\"\n").unwrap();
    let (running, addr, log) = broker(dir.path(), &["--config", config.to_str().unwrap()]);
    running.signal("HUP");
    logged(&log, "HUP: there are no tokens and no certificates to read again");
    fs::write(&config, "memory = \"65MiB\"\npark-after = \"2s\"\n").unwrap();
    running.signal("HUP");
    logged(&log, "memory, park-after");
    fs::write(&config, "memory = 64\nnonsense = 1\n").unwrap();
    running.signal("HUP");
    logged(&log, "the settings are not valid any more");
    run(&["ping", "--broker", &addr]).ok();
    running.signal("TERM");
    assert_eq!(running.wait().0, 0);
}

/// Existing connections stay as they are, so the server is made to ask for the password again.
#[test]
fn a_broker_reads_the_password_of_redis_again() {
    let user = ["--user", "mtimer", "on", ">one", "~*", "+@all"].map(str::to_owned).to_vec();
    let redis = Server::start_with(ServerOptions { extra: user, ..ServerOptions::default() });
    let dir = tempfile::tempdir().unwrap();
    let (config, log) = (dir.path().join("mtimer.toml"), dir.path().join("log"));
    let write = |password: &str| {
        let url = redis.url().replacen("://", &format!("://mtimer:{password}@"), 1);
        write_private(&config, &format!("redis = [\"{url}\"]\n"));
    };
    write("one");
    let args = ["broker", "--json", "--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()];
    let mut running = Running::logging_to(File::create(&log).unwrap(), &args);
    let ready: Value = serde_json::from_str(&running.line()).unwrap();
    let schedule = || {
        let at = ["--group", "g", "--app", "a", "--in", "1h"];
        run(&[&["schedule", "--broker", ready["listening"].as_str().unwrap()][..], &at].concat()).ok();
    };
    schedule();
    write("two");
    running.signal("HUP");
    logged(&log, "user and password of Redis were read again");
    redis.call::<()>(&["ACL", "SETUSER", "mtimer", "resetpass", ">two"]);
    redis.call::<()>(&["CLIENT", "KILL", "USER", "mtimer"]);
    schedule();
    running.signal("TERM");
    assert_eq!(running.wait().0, 0);
    assert!(!fs::read_to_string(&log).unwrap().contains("restart this broker"));
}

#[test]
fn a_listener_goes_on_and_takes_a_token_that_has_changed() {
    let file = TokensFile::new();
    let (first, token) = file.create_in_file("first", "schedule,register:g/*");
    let tokens = file.path();
    let (_running, addr, _) = broker(file.dir.path(), &["--tokens", tokens.to_str().unwrap()]);
    let with = ["--broker", &addr, "--token-file", token.to_str().unwrap()];
    let log = file.dir.path().join("listen-log");
    let listen = [&["listen", "--group", "g", "--app", "a", "--json"][..], &with].concat();
    let mut listener = Running::logging_to(File::create(&log).unwrap(), &listen);
    let call = |listener: &mut Running, payload: &str| {
        let schedule = ["schedule", "--group", "g", "--app", "a", "--in", "0s", "--payload", payload];
        run(&[&schedule[..], &with].concat()).ok();
        let line: Value = serde_json::from_str(&listener.line()).unwrap();
        assert_eq!(line["payload"], payload);
    };
    call(&mut listener, "one");
    listener.signal("HUP");
    logged(&log, "HUP: goes on: no other token to connect with");
    call(&mut listener, "two");
    let (_, second) = file.create_in_file("second", "schedule,register:g/*");
    wait_for("let in with the second token", || {
        let ping = ["ping", "--broker", &addr, "--token-file", second.to_str().unwrap()];
        (run(&ping).code == 0).then_some(())
    });
    write_private(&token, &fs::read_to_string(&second).unwrap());
    listener.signal("HUP");
    logged(&log, "connected with the new token");
    file.run(&["revoke", &first, "--yes"]).ok();
    call(&mut listener, "three");
    listener.signal("TERM");
    assert_eq!(listener.wait().0, 0);
}

#[test]
fn a_closed_terminal_ends_dev_gracefully_but_not_under_nohup() {
    let mut dev = Running::start(&["dev", "--listen", "127.0.0.1:0"]);
    dev.line();
    let folder = dev.line().split_whitespace().nth(1).unwrap().to_owned();
    dev.signal("HUP");
    assert_eq!(dev.wait().0, 0);
    assert!(!Path::new(&folder).exists(), "the temporary folder goes");

    // As `nohup` does it: HUP is ignored when the program begins.
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let args = ["dev", "--json", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()];
    let ignoring = ["-c", "trap '' HUP; exec \"$0\" \"$@\"", MTIMER];
    let mut shell = command("/bin/sh", &[&ignoring[..], &args].concat());
    shell.process_group(0);
    let mut dev = Running::spawn_logging_to(File::create(dir.path().join("log")).unwrap(), shell);
    let ready: Value = serde_json::from_str(&dev.line()).unwrap();
    dev.signal("HUP");
    let addr = ready["listening"].as_str().unwrap();
    run(&["ping", "--broker", addr]).ok();
    dev.signal("TERM");
    assert_eq!(dev.wait().0, 0);
}
