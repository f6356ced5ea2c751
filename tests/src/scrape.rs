//! What a broker process shows over HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::broker::Broker;

/// How long a page may take: a loaded machine is slow.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Where a broker serves HTTP.
///
/// # Panics
///
/// If it serves none: it was started without `--http 127.0.0.1:0`.
pub fn http(broker: &Broker) -> String {
    broker.about()["http"].as_str().expect("it serves HTTP").to_owned()
}

/// Status and body of a page.
///
/// # Panics
///
/// If there is no answer.
pub fn get(at: &str, path: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(at).expect("a connection");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a time limit");
    socket.write_all(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes()).expect("written");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).expect("a status line");
    (status.parse().expect("a status"), body.to_owned())
}

/// A broker's metrics.
///
/// # Panics
///
/// If it does not show them.
pub fn scrape(broker: &Broker) -> String {
    let (status, body) = get(&http(broker), "/metrics");
    assert_eq!(status, 200, "{body}");
    body
}

/// The value of one sample, written as it is in a scrape.
///
/// # Panics
///
/// If it is not there.
pub fn sample(scrape: &str, sample: &str) -> f64 {
    let line = scrape.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {sample} in\n{scrape}")).parse().expect("a number")
}
