//! The way to real servers.

mod cluster;
mod confirm;
mod entering;
mod order;
mod roles;
mod sentinel;
mod watchdog;

use std::time::Duration;

use redis::{Cmd, Pipeline, Value, cmd};
use tokio_util::task::TaskTracker;

use super::connection::RedisConnection;
use super::*;
use crate::options::RedisOptions;
use crate::test_support::*;
use mtimer_tls::ClientFiles;

const LONG_TIMEOUT: Use = Use { purpose: Purpose::Partitions, answer_within: Duration::from_secs(20) };

fn pool(access: ServerAccess) -> ConnectionPool {
    ConnectionPool::new(access, TaskTracker::new())
}

/// A connection as the store makes it of an address.
async fn open(url: String) -> Result<RedisConnection, Lost> {
    open_with(RedisOptions::new([url], "t"), LONG_TIMEOUT).await
}

async fn open_with(options: RedisOptions, how: Use) -> Result<RedisConnection, Lost> {
    let (seeds, access) = options.check().expect("usable options");
    let Seeds::Servers(addresses) = seeds else { panic!("{seeds:?} are no servers") };
    RedisConnection::open(&addresses[0], &access, how, &TaskTracker::new()).await
}

async fn discover(urls: Vec<String>) -> Servers {
    let (seeds, access) = RedisOptions::new(urls, "t").check().expect("usable options");
    Servers::discover(seeds, pool(access), LONG_TIMEOUT).await.expect("servers")
}

fn pipeline<const N: usize>(commands: [Cmd; N]) -> Pipeline {
    let mut pipeline = Pipeline::new();
    for command in commands {
        pipeline.add_command(command);
    }
    pipeline
}

fn set(key: &str, value: impl redis::ToRedisArgs) -> Cmd {
    cmd("SET").arg(key).arg(value).to_owned()
}

fn get(key: &str) -> Cmd {
    cmd("GET").arg(key).to_owned()
}

fn incr(key: &str) -> Cmd {
    cmd("INCR").arg(key).to_owned()
}

fn bulk(text: &str) -> Value {
    Value::BulkString(text.into())
}

/// Waits until it is so.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(tokio::time::Instant::now() < deadline, "{what}: not within a minute");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Connections that others than this call have to a server, replicas left out.
fn clients(server: &Server) -> usize {
    let all = server.call::<String>(&["CLIENT", "LIST", "TYPE", "normal"]);
    all.lines().filter(|line| !line.contains(" cmd=client")).count()
}
