//! Servers that begin to evict keys while the store is in use.

use super::*;
use crate::eviction;
use crate::test_support::ServerOptions;

const REFUSED: Answer = Answer::Refused(Refusal::MayEvict);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_may_evict_gets_no_new_timers_until_it_is_mended() {
    let server = Server::start();
    let mut engine = engine(&server).await;
    let timers: Vec<_> = (0..4).map(|n| timer(n, NOW + DAY + n, None)).collect();
    assert_eq!(engine.pipeline([vec![schedule(&timers[0], KeyPolicy::Create)]]).await, [NEW]);
    server.call::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    eviction::check(&engine.shared).await;
    let (id, request) = (timers[0].id, RequestId(1));
    let later = Op::Reschedule { target: Target::Id(id), due: NOW + 2 * DAY, in_flight: false, request };
    let batch = vec![
        schedule(&timers[1], KeyPolicy::Create),
        Op::Park { id, failed: 0 },
        later,
        schedule(&timers[2], KeyPolicy::Create),
        settle(id, Verdict::Ack),
    ];
    let answers = engine.pipeline([batch]).await;
    assert_eq!(answers, [REFUSED, Answer::Done, REFUSED, REFUSED, Answer::Done], "what is there is served");
    // A batch of which nothing is left still tells whether this is the owner, and claims.
    let (to, answered) = oneshot::channel();
    let ops = vec![schedule(&timers[3], KeyPolicy::Create)];
    engine.admit(Batch { now: NOW, claim: Some(NOW + 5), ops }, to);
    engine.drain().await.unwrap();
    assert_eq!(answered.await.unwrap().unwrap(), [REFUSED]);
    assert_eq!(server.call::<String>(&["HGET", "owner:{2}:t", "c"]), (NOW + 5).as_ms().to_string());
    server.call::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    eviction::check(&engine.shared).await;
    assert_eq!(engine.pipeline([vec![schedule(&timers[1], KeyPolicy::Create)]]).await, [NEW]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_that_may_evict_gets_no_new_timers() {
    let mut master = Server::start();
    let extra =
        ["--replicaof", &format!("127.0.0.1 {}", master.port()), "--maxmemory-policy", "volatile-ttl"];
    let extra = extra.map(str::to_owned).to_vec();
    let replica = Server::start_with(ServerOptions { extra, ..ServerOptions::default() });
    // Only the master is looked at when the store starts: the replica may be added later.
    let store = RedisStore::connect(Options::new([master.url()], "t")).await.unwrap();
    let both = RedisStore::connect(Options::new([master.url(), replica.url()], "t")).await.map(drop);
    assert!(both.unwrap_err().to_string().contains("volatile-ttl"));
    let acquire = Acquire {
        partition: PARTITION,
        expected: store.owner(PARTITION).await.unwrap().epoch,
        nonce: Nonce(7),
        term: Term(1),
        version: 1,
    };
    let mut engine = store.engine(acquire).await.unwrap();
    assert_eq!(engine.pipeline([vec![schedule(&timer(1, NOW + DAY, None), KeyPolicy::Create)]]).await, [NEW]);
    while replica.call::<u64>(&["EXISTS", "owner:{2}:t"]) == 0
        || !master.call::<String>(&["INFO", "replication"]).contains("state=online")
    {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    // The replica takes over, and its address is what the topology finds from now on.
    replica.call::<()>(&["REPLICAOF", "NO", "ONE"]);
    master.kill();
    engine.shared.topology.moved(engine.hash_slot, &replica.address());
    let (to, answered) = oneshot::channel();
    engine.admit(
        Batch { now: NOW, claim: None, ops: vec![settle(timer(1, NOW + DAY, None).id, Verdict::Ack)] },
        to,
    );
    let ended = engine.drain().await.unwrap_err();
    assert_eq!(ended, LaneError::RolledBack(PARTITION), "another server: it is acquired anew");
    drop(answered);
    let stored = store.owner(PARTITION).await.unwrap();
    let (expected, version) = (stored.epoch, stored.version + 1);
    let acquire = Acquire { partition: PARTITION, expected, nonce: Nonce(8), term: Term(1), version };
    let mut engine = store.engine(acquire).await.unwrap();
    let second = schedule(&timer(2, NOW + DAY, None), KeyPolicy::Create);
    let answers = engine.pipeline([vec![second, settle(timer(1, NOW + DAY, None).id, Verdict::Ack)]]).await;
    assert_eq!(answers, [REFUSED, Answer::Done]);
}

/// Lets time pass until the next look at the servers, and waits until it has shown what it has to show.
async fn after_the_next_look(shared: &Shared, address: &str, evicts: bool) {
    tokio::time::pause();
    tokio::time::advance(eviction::CHECK_EVERY).await;
    // What the server answers takes real time.
    tokio::time::resume();
    let shown = async {
        while shared.pool.evicting.has(address) != evicts {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    let shown = tokio::time::timeout(eviction::CHECK_EVERY / 2, shown).await;
    assert!(shown.is_ok(), "{address} was not looked at again within {:?}", eviction::CHECK_EVERY);
}

#[tokio::test]
async fn servers_in_use_are_looked_at_again_and_again() {
    let server = Server::start();
    let store = RedisStore::connect(Options::new([server.url()], "t")).await.unwrap();
    let acquire =
        Acquire { partition: PARTITION, expected: Epoch(0), nonce: Nonce(7), term: Term(1), version: 1 };
    let engine = store.engine(acquire).await.unwrap();
    for policy in ["allkeys-lru", "noeviction", "volatile-ttl"] {
        server.call::<()>(&["CONFIG", "SET", "maxmemory-policy", policy]);
        after_the_next_look(&engine.shared, &server.address(), policy != eviction::SAFE).await;
    }
}
