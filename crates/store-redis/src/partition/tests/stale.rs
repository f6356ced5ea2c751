//! Tests: reads that are answered by a server that is no master any more, from data older than the
//! owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use mtimer_store::{Health, LaneError};
use mtimer_types::{Epoch, Nonce, PartitionId};
use redis::{Arg, Cmd, Pipeline, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::partition::identity::WriterIdentity;
use crate::partition::log::{Log, LogBudget};
use crate::partition::writer::PartitionWriter;
use crate::wire::{Lost, Network, RedisNode};

const PARTITION: PartitionId = PartitionId(2);
const OURS: Epoch = Epoch(7);
const SEQ: u64 = 5;

/// A server with an owner record. Only a master runs scripts.
#[derive(Clone, Copy)]
struct Server {
    address: &'static str,
    epoch: Epoch,
    seq: u64,
    is_master: bool,
}

impl Server {
    fn answer(&self, command: &Cmd) -> Value {
        let text = |text: &str| Value::BulkString(text.into());
        let record = [self.epoch.0, 1, self.seq].map(|n| text(&n.to_string()));
        let Some(Arg::Simple(name)) = command.args_iter().next() else { return Value::Nil };
        match name {
            b"GET" => text(self.address),
            b"HMGET" => Value::Array(record.into()),
            b"EVALSHA" if !self.is_master => {
                redis::parse_redis_value(b"-READONLY You can't write against a read only replica.\r\n")
                    .unwrap()
            }
            b"EVALSHA" if (self.epoch, self.seq) == (OURS, SEQ) => Value::Array(vec![text("OK")]),
            b"EVALSHA" => Value::Array([text("SEQ")].into_iter().chain(record).collect()),
            _ => Value::Nil,
        }
    }
}

impl RedisNode for Server {
    fn address(&self) -> &str {
        self.address
    }

    fn call(&self, commands: Pipeline) -> BoxFuture<'static, Result<Vec<Value>, Lost>> {
        let answers = commands.cmd_iter().map(|command| self.answer(command)).collect();
        async move { Ok(answers) }.boxed()
    }

    fn is_over(&self) -> bool {
        false
    }
}

/// Takes the first server for the master until it looks again.
struct Servers {
    all: [Server; 2],
    master: AtomicUsize,
}

impl Network for Servers {
    fn master(&self, _: u16) -> BoxFuture<'_, Result<Arc<dyn RedisNode>, Lost>> {
        let node = Arc::new(self.all[self.master.load(Ordering::Relaxed)]);
        async move { Ok(node as Arc<dyn RedisNode>) }.boxed()
    }

    fn at(&self, _: &str) -> BoxFuture<'_, Result<Arc<dyn RedisNode>, Lost>> {
        self.master(0)
    }

    fn leads_to(&self, _: u16, address: &str) -> bool {
        self.all[self.master.load(Ordering::Relaxed)].address == address
    }

    fn moved(&self, _: u16, _: &str) {}

    fn rediscover<'a>(&'a self, _: Option<&'a str>) -> BoxFuture<'a, Result<(), Lost>> {
        self.master.store(1, Ordering::Relaxed);
        async { Ok(()) }.boxed()
    }

    fn replicas(&self, _: u16) -> Option<u32> {
        Some(0)
    }

    fn append_only(&self, _: u16) -> bool {
        false
    }

    fn may_evict(&self, _: u16) -> bool {
        false
    }
}

/// Who answers a read of an owner with an empty log that takes a former master for the master.
/// Epoch and sequence number that both have.
async fn read(former: (Epoch, u64), master: (Epoch, u64)) -> Result<Vec<Value>, LaneError> {
    let server = |address, (epoch, seq), is_master| Server { address, epoch, seq, is_master };
    let all = [server("former", former, false), server("master", master, true)];
    let identity = WriterIdentity {
        partition: PARTITION,
        owner_key: "owner".into(),
        hash_slot: 0,
        epoch: OURS,
        nonce: Nonce(1),
    };
    let log = Arc::new(Log::new(Arc::new(LogBudget::new(1 << 20))));
    let (health, _) = watch::channel(Health::Up);
    let network = Arc::new(Servers { all, master: AtomicUsize::new(0) });
    let mut writer =
        PartitionWriter::new(network, identity, SEQ, log, None, health, CancellationToken::new());
    writer.read(redis::pipe().cmd("GET").arg("key")).await
}

#[tokio::test(start_paused = true)]
async fn a_read_that_a_former_master_answers_is_repeated_at_the_master() {
    for former in [(Epoch(6), 90), (OURS, SEQ - 2), (Epoch(0), 0)] {
        let read = read(former, (OURS, SEQ)).await;
        assert_eq!(read, Ok(vec![Value::BulkString("master".into())]), "{former:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_ends_the_lane_if_the_master_has_another_owner_or_has_lost_too_much() {
    let fenced = LaneError::Fenced { partition: PARTITION, stored: Epoch(8), ours: OURS };
    for former in [(Epoch(6), 90), (Epoch(8), 0)] {
        assert_eq!(read(former, (Epoch(8), 0)).await, Err(fenced.clone()));
        assert_eq!(read(former, (Epoch(6), 90)).await, Err(LaneError::RolledBack(PARTITION)));
        assert_eq!(read(former, (OURS, SEQ - 2)).await, Err(LaneError::RolledBack(PARTITION)));
    }
}
