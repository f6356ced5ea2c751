//! Nobody answers: every client command ends in the time that it was given to connect.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::harness::run;

const LIMIT: &str = "300ms";
/// A loaded machine is slow; without a limit it would be 5 s to connect and more.
const SLACK: Duration = Duration::from_secs(3);
const ID: &str = "00000000000000000000000000";

fn every_command(addr: SocketAddr) {
    let addr = addr.to_string();
    let commands: [&[&str]; 17] = [
        &["schedule", "--group", "g", "--app", "a", "--in", "1h"],
        &["schedule", "--file", "-"],
        &["get", ID],
        &["cancel", ID],
        &["reschedule", ID, "--in", "1h"],
        &["list"],
        &["destinations"],
        &["count"],
        &["listen", "--group", "g", "--app", "a"],
        &["dead", "list"],
        &["dead", "unconfirmed"],
        &["dead", "get", ID],
        &["dead", "replay", "--all"],
        &["dead", "purge", "--all", "--yes"],
        &["status"],
        &["status", "--all"],
        &["cluster", "status"],
    ];
    let drain: &[&str] = &["cluster", "drain", "b:1", "--yes"];
    for command in commands.into_iter().chain([drain]) {
        let began = Instant::now();
        let ended = run(&[command, &["--broker", &addr, "--connect-timeout", LIMIT]].concat());
        let took = began.elapsed();
        assert_eq!(ended.code, 3, "{command:?}: {ended:?}");
        assert!(ended.err.contains(&addr), "{command:?}: {ended:?}");
        assert!(took < Duration::from_millis(300) + SLACK, "{command:?}: {took:?}");
    }
}

#[test]
fn a_port_that_accepts_and_says_nothing() {
    // The kernel accepts for it.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    every_command(deaf.local_addr().unwrap());
}

#[test]
fn an_address_that_swallows_packets() {
    let full = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let addr = full.local_addr().unwrap();
    // Whoever comes when nobody else has a place is not answered.
    let connect = || TcpStream::connect_timeout(&addr, Duration::from_millis(200));
    let places: Vec<TcpStream> = std::iter::from_fn(|| connect().ok()).take(16).collect();
    assert!(places.len() < 16, "the backlog is never full");
    every_command(addr);
}
