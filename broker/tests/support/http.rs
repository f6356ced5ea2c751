//! What a broker serves over HTTP, asked for byte by byte.

use std::net::SocketAddr;

use mtimer_broker::{Broker, HttpListen};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::TIMEOUT;

/// HTTP on a free port of this machine.
pub(crate) fn on_loopback() -> HttpListen {
    HttpListen::At(SocketAddr::from(([127, 0, 0, 1], 0)))
}

/// The address at which it serves HTTP.
pub(crate) fn address(broker: &Broker) -> SocketAddr {
    broker.http_addr().expect("it serves HTTP")
}

/// Sends this, and reads what comes until the end of the connection.
pub(crate) async fn exchange(to: SocketAddr, request: &[u8]) -> String {
    let mut socket = TcpStream::connect(to).await.unwrap();
    // It may be closed before all of it is written.
    let _ = socket.write_all(request).await;
    let mut answer = Vec::new();
    let _ = timeout(TIMEOUT, socket.read_to_end(&mut answer)).await.expect("the connection ends");
    String::from_utf8(answer).unwrap()
}

/// Status and body of a page.
pub(crate) async fn get(to: SocketAddr, path: &str) -> (u16, String) {
    let (status, _, body) = get_with(to, path, "").await;
    (status, body)
}

/// Asks for a page with further header lines; returns status, head and body.
pub(crate) async fn get_with(to: SocketAddr, path: &str, lines: &str) -> (u16, String, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n{lines}\r\n");
    let answer = exchange(to, request.as_bytes()).await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.split(' ').nth(1).unwrap().parse().unwrap(), head.to_owned(), body.to_owned())
}

/// The metrics.
pub(crate) async fn scrape(broker: &Broker) -> String {
    let (status, body) = get(address(broker), "/metrics").await;
    assert_eq!(status, 200, "{body}");
    body
}
