//! What a cluster has besides partitions, on real servers.

use std::time::Duration;

use mtimer_store::{Campaigned, Candidate, Coordination, Lease, StoreError};
use mtimer_types::{PartitionId, Term};
use tokio_util::task::TaskTracker;

use crate::coordination::{LeaseKeys, RedisCoordination, URGENT};
use crate::test_support::Server;
use crate::wire::{Access, Pool, Seeds, Servers, Use};
use crate::{DEFAULT_PARTITIONS, facts};

const META: (&str, u16) = ("meta:{c}", 7_365);

async fn servers(server: &Server) -> Servers {
    let how = Use { answer_within: Duration::from_secs(20), scripts: true };
    let pool = Pool::new(Access::default(), how, TaskTracker::new());
    Servers::discover(Seeds::Servers(vec![server.address()]), pool).await.expect("a master")
}

#[tokio::test]
async fn the_number_of_partitions_and_the_format_are_fixed() {
    let server = Server::start();
    let servers = servers(&server).await;
    let of = async |wanted| facts::partitions(&servers, META, "c", wanted).await;
    let why = async |wanted| match of(wanted).await.unwrap_err() {
        StoreError::Unusable(why) => why,
        StoreError::Unavailable(why) => panic!("{why}"),
    };
    assert_eq!(of(Some(7)).await, Ok(7));
    assert_eq!((of(None).await, of(Some(7)).await), (Ok(7), Ok(7)));
    assert!(why(Some(8)).await.contains("configure 7"));
    server.call::<()>(&["HSET", META.0, "format", "3"]);
    let says = format!("stored in format 3, this version reads only format {} and converts no other", facts::FORMAT);
    assert!(why(None).await.contains(&says));
    server.call::<()>(&["HSET", META.0, "format", &facts::FORMAT.to_string(), "partitions", "0"]);
    assert!(why(None).await.contains("damaged"));
    server.call::<()>(&["SET", META.0, "hello"]);
    assert!(why(None).await.contains("WRONGTYPE"));
    server.call::<()>(&["DEL", META.0]);
    assert_eq!(of(None).await, Ok(DEFAULT_PARTITIONS));
}

#[tokio::test]
async fn terms_rise_and_clocks_are_read() {
    let server = Server::start();
    let servers = servers(&server).await;
    let first = facts::raise_term(&servers, ("term:{c}", 7_365)).await.unwrap();
    let second = facts::raise_term(&servers, ("term:{c}", 7_365)).await.unwrap();
    assert!(second > first);
    let clocks = facts::clocks(&servers.over(URGENT));
    assert_eq!(clocks.len(), 1);
    for clock in clocks {
        assert_eq!(clock.name, server.address());
        let told = clock.reading.await.unwrap() / 1_000_000;
        let theirs: (u64, u64) = server.call(&["TIME"]);
        assert!((told..told + 60).contains(&theirs.0));
    }
}

#[tokio::test]
async fn one_candidate_leads_and_a_silent_master_is_told() {
    let server = Server::start();
    let key = |name: &str| format!("{name}:{{c}}");
    let keys =
        LeaseKeys { leader: key("leader"), term: key("term"), topology: key("topology"), hash_slot: META.1 };
    let coordination = RedisCoordination::new(servers(&server).await.over(URGENT), keys, vec![1, 2]);
    let candidate = |address: &str, seen| Candidate {
        address: address.to_owned(),
        incarnation: 1,
        ttl_ms: 60_000,
        seen: Term(seen),
    };
    let Campaigned::Won { term, published: None } = coordination.campaign(candidate("a:1", 0)).await.unwrap()
    else {
        panic!("nobody else campaigns")
    };
    let again = coordination.campaign(candidate("a:1", 0)).await.unwrap();
    assert_eq!(again, Campaigned::Won { term, published: None });
    let held = coordination.campaign(candidate("b:1", 0)).await.unwrap();
    assert!(matches!(held, Campaigned::Held { address, term: of, .. } if address == "a:1" && of == term));
    let lease = Lease { address: "a:1".into(), incarnation: 1, term };
    let foreign = Lease { address: "b:1".into(), ..lease.clone() };
    assert_eq!(coordination.publish(foreign.clone(), "x".into()).await, Ok(false));
    assert_eq!(coordination.renew(foreign.clone(), 1).await, Ok(false));
    assert_eq!(coordination.resign(foreign).await, Ok(false));
    assert_eq!(coordination.publish(lease.clone(), "y".into()).await, Ok(true));
    assert_eq!(coordination.renew(lease.clone(), 60_000).await, Ok(true));
    assert_eq!(coordination.resign(lease).await, Ok(true));
    let above = Term(term.0 + 1_000_000_000_000);
    let won = coordination.campaign(candidate("b:1", above.0)).await.unwrap();
    assert_eq!(won, Campaigned::Won { term: Term(above.0 + 1), published: Some("y".into()) });
    assert!(coordination.campaign(candidate("no address", 0)).await.is_err());
    assert_eq!(coordination.unreachable().await, Ok(vec![]));
    server.freeze();
    assert_eq!(coordination.unreachable().await, Ok(vec![PartitionId(0), PartitionId(1)]));
    let began = std::time::Instant::now();
    assert!(matches!(coordination.renew(lease_of(above), 1).await, Err(StoreError::Unavailable(_))));
    assert!(began.elapsed() < Duration::from_secs(10));
    server.thaw();
}

fn lease_of(term: Term) -> Lease {
    Lease { address: "b:1".into(), incarnation: 1, term }
}
