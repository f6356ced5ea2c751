//! What a broker shows over HTTP: metrics as documented, that follow what happens, and probes.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mtimer_broker::{
    AccessOptions, Broker, BrokerOptions, BrokerTlsOptions, DEFAULT_HTTP, HttpListen, StartError, start,
};
use mtimer_protocol::ops::{Cancel, CancelReply, Schedule, ScheduleReply};
use mtimer_protocol::{ClientMessage, OpReply, Request, RequestOp, ServerMessage};
use mtimer_store::{
    Acquire, AcquireError, Acquired, MemoryStore, OwnerRecord, Store, StoreClock, StoreFuture, StoreInfo,
    counters,
};
use mtimer_tls::test_support::{Authority, Issued};
use mtimer_tls::{ClientTls, ClientTlsOptions, Pem};
use mtimer_types::{Destination, HandlerOutcome, Headers, PartitionId, Term, Time, Timer, TimerId};
use support::http::{address, exchange, get, get_with, on_loopback, scrape};
use support::{Client, TIMEOUT, broker_on, options, schedule, timer, until_async, wait_count, works};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

fn with_http() -> BrokerOptions {
    BrokerOptions { http: on_loopback(), ..options() }
}

/// The value of one sample, written as it is in a scrape.
fn value(scrape: &str, sample: &str) -> f64 {
    let line = scrape.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {sample} in\n{scrape}")).parse().unwrap()
}

/// Waits until a page answers with this status.
async fn wait_status(broker: &Broker, path: &str, wanted: u16) -> String {
    let mut answer = (0, String::new());
    until_async(&format!("{path} answers {wanted}"), async || {
        answer = get(address(broker), path).await;
        answer.0 == wanted
    })
    .await;
    answer.1
}

/// Waits until a sample has reached a value.
async fn wait_value(broker: &Broker, sample: &str, least: f64) {
    let is_reached = async || value(&scrape(broker).await, sample) >= least;
    until_async(&format!("{sample} reaches {least}"), is_reached).await;
}

/// A documented metric.
#[derive(Debug)]
struct Row {
    kind: String,
    labels: BTreeSet<String>,
}

/// The table of docs/metrics.md, by name.
fn documented() -> BTreeMap<String, Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut rows = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| `mtimer_") || line.starts_with("| `process_"))
    {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, _unit, labels, meaning, when] = cells[..] else { panic!("not six columns: {line}") };
        assert!(!meaning.is_empty() && !when.is_empty(), "{line}");
        let labels = labels.split(',').map(|l| l.trim().trim_matches('`')).filter(|l| !l.is_empty());
        let row = Row { kind: kind.to_owned(), labels: labels.map(str::to_owned).collect() };
        let old = rows.insert(name.trim_matches('`').to_owned(), row);
        assert!(old.is_none(), "{name} is there twice");
    }
    rows
}

/// Name and labels of a sample line.
fn sample(line: &str) -> (String, BTreeSet<String>) {
    let (name, rest) = line.split_once(['{', ' ']).unwrap();
    let names = rest.split("=\"").filter_map(|part| part.rsplit(['{', ',', '"']).next());
    let labels = if line.contains('{') {
        let count = rest.matches("=\"").count();
        names.take(count).map(str::to_owned).collect()
    } else {
        BTreeSet::new()
    };
    (name.to_owned(), labels)
}

/// A store that counts what Redis and the embedded one do.
struct Counting(MemoryStore);

impl Store for Counting {
    fn info(&self) -> StoreInfo {
        self.0.info()
    }

    fn owner(&self, partition: PartitionId) -> StoreFuture<OwnerRecord> {
        self.0.owner(partition)
    }

    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired, AcquireError> {
        self.0.acquire(request)
    }

    fn raise_term(&self) -> StoreFuture<Term> {
        self.0.raise_term()
    }

    fn clocks(&self) -> Vec<StoreClock> {
        self.0.clocks()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            (counters::DISK_FREE_BYTES, 77),
            (counters::DISK_LEVEL, 2),
            (counters::LOG_BYTES, 11),
            (counters::LOG_DROPPED_RECORDS, 12),
            (counters::LOG_REPLAYED_RECORDS, 13),
            (counters::LOST_SLOTS, 14),
            (counters::LOG_AT_RISK, 1),
            (counters::UNPROTECTED_MASTERS, 3),
            (counters::EVICTING_MASTERS, 4),
            (counters::UNCONFIRMED_PARTITIONS, 2),
        ]
    }
}

#[tokio::test]
async fn a_scrape_has_exactly_what_is_documented() {
    let broker = start(with_http(), Arc::new(Counting(MemoryStore::new(2)))).await.unwrap();
    works(&broker, "a").await;
    let text = scrape(&broker).await;
    for (name, expected) in [
        ("mtimer_store_disk_free_bytes", 77.0),
        ("mtimer_store_disk_level", 2.0),
        ("mtimer_store_log_bytes", 11.0),
        ("mtimer_store_log_dropped_records_total", 12.0),
        ("mtimer_store_replayed_records_total", 13.0),
        ("mtimer_store_lost_slots_total", 14.0),
        ("mtimer_store_log_at_risk", 1.0),
        ("mtimer_store_unprotected_masters", 3.0),
        ("mtimer_store_evicting_masters", 4.0),
        ("mtimer_store_unconfirmed_partitions", 2.0),
    ] {
        assert_eq!(value(&text, name), expected, "{name}");
    }
    let documented = documented();
    let shown: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .map(|line| line.split_once(' ').unwrap())
        .collect();
    let expected: BTreeMap<&str, &str> =
        documented.iter().map(|(name, row)| (name.as_str(), row.kind.as_str())).collect();
    // What only Linux tells.
    let shown_or_linux = |name: &str| shown.contains_key(name) || !cfg!(target_os = "linux");
    assert!(expected.keys().all(|name| shown_or_linux(name)), "missing in\n{text}");
    let extra: Vec<_> = shown.iter().filter(|(name, kind)| expected.get(*name) != Some(kind)).collect();
    assert!(extra.is_empty(), "not in docs/metrics.md, or of another type: {extra:?}");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, mut labels) = sample(line);
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let row = documented.get(&name).or_else(|| documented.get(base?)).unwrap_or_else(|| panic!("{line}"));
        labels.remove("le");
        assert_eq!(labels, row.labels, "{line}");
    }
}

#[tokio::test]
async fn metrics_follow_what_is_provoked() {
    let broker = broker_on(&MemoryStore::new(2), with_http()).await;
    let mut client = Client::welcomed(&broker).await;
    client.register(1, "a", 10).await;
    let first = timer("a", 1, b"");
    client.schedule(&first).await;
    let (d, _) = client.deliveries(1).await.remove(0);
    client.settle(&d, HandlerOutcome::Retry { after_ms: None, error: "no".into() }).await;
    let (d, _) = client.deliveries(1).await.remove(0);
    client.settle(&d, HandlerOutcome::Fail { error: "no".into() }).await;
    client.settled().await;
    client.schedule(&timer("a", 1, b"")).await;
    let (d, _) = client.deliveries(1).await.remove(0);
    client.settle(&d, HandlerOutcome::Ok).await;
    client.settled().await;
    let mut bad = timer("a", 10, b"");
    bad.id = TimerId::new(bad.due, Time::ZERO, PartitionId(99), 1);
    let refused = client
        .request(vec![RequestOp::Schedule(Schedule {
            timer: bad.into(),
            policy: mtimer_types::KeyPolicy::Create,
        })])
        .await;
    assert!(matches!(refused[..], [OpReply::Failed { .. }]));
    client.schedule(&timer("nobody", 1, b"")).await;
    wait_count(&broker, "parked_total", 1).await;
    let text = scrape(&broker).await;
    for (name, expected) in [
        ("mtimer_schedules_total", 3.0),
        ("mtimer_fires_total", 3.0),
        ("mtimer_retries_total{tier=\"1\"}", 1.0),
        ("mtimer_redeliveries_total{cause=\"handler\"}", 1.0),
        ("mtimer_dead_letters_total{reason=\"failed\"}", 1.0),
        ("mtimer_dead_letters_total{reason=\"exhausted\"}", 0.0),
        ("mtimer_settlements_total{outcome=\"acknowledged\"}", 1.0),
        ("mtimer_refusals_total{reason=\"invalid\"}", 1.0),
        ("mtimer_parks_total", 1.0),
        ("mtimer_fire_lateness_seconds_count", 2.0),
        ("mtimer_fire_lateness_seconds_bucket{le=\"+Inf\"}", 2.0),
        ("mtimer_acknowledge_lateness_seconds_count", 1.0),
        ("mtimer_stored_timers{state=\"dead\"}", 1.0),
        ("mtimer_stored_timers{state=\"parked\"}", 1.0),
        ("mtimer_destination_parked_timers{group=\"group\",app=\"nobody\"}", 1.0),
        ("mtimer_destination_overdue_timers{group=\"group\",app=\"nobody\"}", 1.0),
        ("mtimer_destination_sessions{group=\"group\",app=\"a\"}", 1.0),
        ("mtimer_partitions_owned", 2.0),
        ("mtimer_partitions_assigned", 2.0),
        ("mtimer_partitions_acquired_total", 2.0),
        ("mtimer_partition_acquire_seconds_count", 2.0),
        ("mtimer_leader", 1.0),
        ("mtimer_ready", 1.0),
        ("mtimer_sessions", 1.0),
        ("mtimer_store_unreachable_partitions", 0.0),
    ] {
        assert_eq!(value(&text, name), expected, "{name} in\n{text}");
    }
    assert!(value(&text, "mtimer_destination_oldest_overdue_seconds{group=\"group\",app=\"nobody\"}") > 0.0);
    assert!(value(&text, "mtimer_store_call_seconds_count{operation=\"apply\"}") >= 5.0);
    assert!(value(&text, "mtimer_store_operations_total") >= 8.0);
    assert!(value(&text, "mtimer_store_batches_total") >= 5.0, "each was waited for");
    assert!(value(&text, "mtimer_memory_limit_bytes{for=\"timers\"}") > 0.0);
    // A lost connection is a cause of its own.
    client.schedule(&timer("a", 1, b"")).await;
    client.deliveries(1).await;
    let in_flight = "mtimer_destination_in_flight_timers{group=\"group\",app=\"a\"}";
    let text = scrape(&broker).await;
    assert_eq!(value(&text, in_flight), 1.0);
    assert!(value(&text, "mtimer_memory_bytes{for=\"timers\"}") > 0.0, "{text}");
    drop(client);
    wait_value(&broker, "mtimer_redeliveries_total{cause=\"connection_lost\"}", 1.0).await;
}

/// The samples of a page, without values and exemplars.
fn samples(page: &str) -> Vec<&str> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(" # ").next().unwrap().rsplit_once(' ').unwrap().0).collect()
}

#[tokio::test]
async fn a_scraper_that_asks_for_open_metrics_gets_the_same_samples_and_the_traces_of_late_timers() {
    let broker = broker_on(&MemoryStore::new(2), with_http()).await;
    let mut client = Client::welcomed(&broker).await;
    client.register(1, "a", 10).await;
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let traceparent = format!("00-{trace}-b7ad6b7169203331-01");
    let headers = Headers::new([("traceparent", &*traceparent)]).unwrap();
    client.schedule(&Timer { headers, ..timer("a", 1, b"") }).await;
    client.deliveries(1).await;
    let (plain, asked) = (scrape(&broker).await, "Accept: application/openmetrics-text;version=1.0.0\r\n");
    let (status, head, open) = get_with(address(&broker), "/metrics", asked).await;
    assert!(status == 200 && head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(open.ends_with("\n# EOF\n") && !plain.contains("# EOF"), "{open}");
    assert_eq!(samples(&open), samples(&plain));
    let types = |page: &str| -> Vec<String> {
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ").map(str::to_owned)).collect()
    };
    let families: Vec<String> =
        types(&plain).iter().map(|line| line.replace("_total counter", " counter")).collect();
    assert_eq!(types(&open), families, "a counter's family is its name without the suffix");
    let exemplars: Vec<&str> = open.lines().filter(|line| line.contains(" # {")).collect();
    let [line] = exemplars[..] else { panic!("{exemplars:?}") };
    assert!(line.starts_with("mtimer_fire_lateness_seconds_bucket{le=\""), "{line}");
    assert!(line.contains(&format!(" # {{trace_id=\"{trace}\"}} 0")), "{line}");
    assert!(!plain.contains(trace), "the text format has none");
}

#[tokio::test]
async fn readings_do_not_count_the_store_anew_each_time() {
    let broker = broker_on(&MemoryStore::new(2), with_http()).await;
    let began = Instant::now();
    for _ in 0..20 {
        scrape(&broker).await;
    }
    let text = scrape(&broker).await;
    // One count of both partitions, and another for every ten seconds that this took.
    let counts = value(&text, "mtimer_store_call_seconds_count{operation=\"census\"}");
    let most = 2 * (1 + began.elapsed().as_secs() / 10);
    assert!(counts > 0.0 && counts <= most as f64, "{counts} counts");
}

#[tokio::test]
async fn dead_letters_that_cancels_make_are_counted_by_their_reason() {
    let broker = broker_on(&MemoryStore::new(2), with_http()).await;
    let mut client = Client::welcomed(&broker).await;
    client.register(1, "a", 10).await;
    let waiting = HandlerOutcome::Retry { after_ms: Some(60_000), error: "no".into() };
    for request in [1, 2] {
        let one = timer("a", 1, b"");
        client.schedule(&one).await;
        let (d, _) = client.deliveries(1).await.remove(0);
        let cancel = RequestOp::Cancel(Cancel { target: one.id.into(), request });
        // Before its retry is asked for, and while it waits for one.
        if request == 1 {
            assert_eq!(client.request(vec![cancel]).await, [OpReply::Cancel(CancelReply::TooLate(one.id))]);
            client.settle(&d, waiting.clone()).await;
            client.settled().await;
        } else {
            client.settle(&d, waiting.clone()).await;
            client.settled().await;
            assert_eq!(client.request(vec![cancel]).await, [OpReply::Cancel(CancelReply::TooLate(one.id))]);
        }
        let text = scrape(&broker).await;
        let counted = value(&text, "mtimer_dead_letters_total{reason=\"stopped\"}");
        assert_eq!(counted, request as f64, "{text}");
        assert_eq!(value(&text, "mtimer_settlements_total{outcome=\"dead\"}"), counted);
    }
}

#[tokio::test]
async fn ten_thousand_groups_are_no_more_series_than_the_setting_allows() {
    let store = MemoryStore::new(2);
    // Limits count each group, too: that must show in no label.
    let group_limits =
        [("*".to_owned(), "schedules=1000,pending=100".parse().unwrap())].into_iter().collect();
    let options = BrokerOptions { metrics_destinations: 7, group_limits, ..with_http() };
    let broker = broker_on(&store, options).await;
    let mut client = Client::welcomed(&broker).await;
    let few = scrape(&broker).await.lines().filter(|line| !line.starts_with('#')).count();
    let groups: Vec<u32> = (0..10_000).collect();
    for some in groups.chunks(500) {
        let ops = some.iter().map(|n| {
            let mut timer = timer("a", 1, b"");
            timer.dest = Destination::new(&format!("group \"{n}\"\\"), "a").unwrap();
            schedule(&timer)
        });
        let replies = client.request(ops.collect()).await;
        assert!(
            replies.iter().all(|reply| matches!(reply, OpReply::Schedule(ScheduleReply::Scheduled { .. })))
        );
    }
    for _ in 0..3 {
        client.schedule(&timer("most", 1, b"")).await;
    }
    wait_count(&broker, "parked_total", 10_003).await;
    let text = scrape(&broker).await;
    let series = |name: &str| text.lines().filter(|line| line.starts_with(&format!("{name}{{"))).count();
    for name in documented().keys().filter(|name| name.starts_with("mtimer_destination_")) {
        assert_eq!(series(name), 8, "{name}");
    }
    let named = documented().keys().filter(|name| name.starts_with("mtimer_destination_")).count();
    let all = text.lines().filter(|line| !line.starts_with('#')).count();
    // Store calls of a kind that there were none of before, and the seven.
    assert!(all < few + 7 * named + 200 && all < 1_000, "{few} series before, {all} now");
    let sum = |name: &str| -> f64 {
        let of_name = text.lines().filter_map(|line| line.strip_prefix(&format!("{name}{{")));
        of_name.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    for kind in ["pending", "parked", "overdue"] {
        assert_eq!(sum(&format!("mtimer_destination_{kind}_timers")), 10_003.0, "{kind}");
    }
    assert_eq!(value(&text, "mtimer_destinations"), 10_001.0);
    let pending = "mtimer_destination_pending_timers{group=";
    assert_eq!(value(&text, &format!("{pending}\"group\",app=\"most\"}}")), 3.0);
    assert_eq!(value(&text, &format!("{pending}\"other\",app=\"\"}}")), 9_994.0);
    assert!(text.contains(r#"group="group \""#), "names are escaped");
    assert!(text.len() < 64 * 1024, "{} bytes", text.len());
}

#[tokio::test]
async fn a_broker_whose_store_goes_away_is_alive_and_not_ready_until_it_is_back() {
    let store = MemoryStore::new(2);
    let broker = broker_on(&store, with_http()).await;
    assert_eq!(get(address(&broker), "/readyz").await, (200, "ready\n".to_owned()));
    store.faults().down(PartitionId(1), "gone");
    let why = wait_status(&broker, "/readyz", 503).await;
    assert_eq!(why, "the store of 1 of 2 partitions cannot be reached, or takes no writes\n");
    assert_eq!(get(address(&broker), "/healthz").await, (200, "ok\n".to_owned()));
    let text = scrape(&broker).await;
    assert_eq!(
        (value(&text, "mtimer_ready"), value(&text, "mtimer_store_unreachable_partitions")),
        (0.0, 1.0)
    );
    store.faults().heal(PartitionId(1));
    wait_status(&broker, "/readyz", 200).await;
}

#[tokio::test]
async fn what_waits_for_the_store_shows_as_queues_and_memory() {
    let store = MemoryStore::new(1);
    let broker = broker_on(&store, with_http()).await;
    let mut client = Client::welcomed(&broker).await;
    let mut waiting = timer("a", 60_000, &[7; 10_000]);
    waiting.id = TimerId::new(waiting.due, Time::ZERO, PartitionId(0), 1);
    store.faults().hold(PartitionId(0));
    let ops = vec![schedule(&waiting)];
    client.send(&ClientMessage::Request(Request { corr: 7, first_sent: support::now(), ops })).await;
    wait_value(&broker, "mtimer_queue_depth{queue=\"store_calls\"}", 1.0).await;
    let text = scrape(&broker).await;
    assert!(value(&text, "mtimer_memory_bytes{for=\"inbox\"}") >= 10_000.0, "{text}");
    store.faults().heal(PartitionId(0));
    assert!(matches!(client.next().await, Some(ServerMessage::Reply { corr: 7, .. })));
    let is_empty = async || {
        let text = scrape(&broker).await;
        let queues = ["events", "operations", "put_off", "store_calls"];
        let depths = queues.map(|queue| value(&text, &format!("mtimer_queue_depth{{queue=\"{queue}\"}}")));
        depths == [0.0; 4] && value(&text, "mtimer_memory_bytes{for=\"inbox\"}") == 0.0
    };
    until_async("nothing waits any more", is_empty).await;
}

#[tokio::test]
async fn a_partition_that_is_rolled_back_and_a_session_that_is_closed_are_counted_by_reason() {
    let store = MemoryStore::new(1).coordinated();
    let broker = broker_on(&store, with_http()).await;
    let mut client = Client::welcomed(&broker).await;
    let schedule_one = |n| {
        let mut one = timer("a", 60_000, b"");
        one.id = TimerId::new(one.due, Time::ZERO, PartitionId(0), n);
        schedule(&one)
    };
    store.faults().save(PartitionId(0));
    client.request(vec![schedule_one(1)]).await;
    store.faults().roll_back(PartitionId(0));
    client.request(vec![schedule_one(2)]).await;
    wait_value(&broker, "mtimer_partition_ownerships_ended_total{reason=\"rolled_back\"}", 1.0).await;
    client.send_bytes(&[0, 0, 0, 1, 200]).await;
    client.refused().await;
    wait_value(&broker, "mtimer_sessions_closed_total{reason=\"malformed\"}", 1.0).await;
}

#[tokio::test]
async fn a_broker_that_stops_says_so_and_then_listens_no_more() {
    let broker = broker_on(&MemoryStore::new(2), with_http()).await;
    let at = address(&broker);
    let mut client = Client::welcomed(&broker).await;
    client.register(1, "a", 10).await;
    client.schedule(&timer("a", 1, b"")).await;
    let (d, _) = client.deliveries(1).await.remove(0);
    let probed = async {
        let why = wait_status(&broker, "/readyz", 503).await;
        assert_eq!(why, "the broker is stopping\n");
        assert_eq!(get(at, "/healthz").await.0, 200);
        client.settle(&d, HandlerOutcome::Ok).await;
        while client.next().await.is_some() {}
    };
    let (stopped, ()) = tokio::join!(broker.stop(), probed);
    stopped.unwrap();
    assert!(TcpStream::connect(at).await.is_err(), "it listens still");
}

#[tokio::test]
async fn what_is_no_request_for_a_page_is_refused_and_does_no_harm() {
    let broker = broker_on(&MemoryStore::new(2), with_http()).await;
    let at = address(&broker);
    assert_eq!(get(at, "/").await.0, 404);
    assert_eq!(get(at, "/metrics/../etc").await.0, 404);
    let posted = exchange(at, b"POST /metrics HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc").await;
    assert!(posted.starts_with("HTTP/1.1 405") && posted.contains("allow: GET, HEAD"), "{posted}");
    let head = exchange(at, b"HEAD /healthz HTTP/1.1\r\nHost: t\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    let page = exchange(at, b"GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n").await;
    assert!(page.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{page}");
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000));
    for nonsense in [&b"\0\xff\r\n\r\n"[..], b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00", long.as_bytes()] {
        let socket = TcpStream::connect(at).await.unwrap();
        let (mut read, mut write) = socket.into_split();
        let _ = write.write_all(nonsense).await;
        // Half a request is given up when no more comes.
        drop(write);
        let mut answer = Vec::new();
        let _ = timeout(TIMEOUT, read.read_to_end(&mut answer)).await.expect("the connection ends");
        assert!(!answer.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(get(at, "/healthz").await.0, 200);
}

/// What the kubelet allows a probe: less than the broker allows the head of a request.
const PROBE_WITHIN: Duration = Duration::from_secs(4);

/// Opens far more connections than are served at a time, and sends no whole request on any.
async fn crowd(at: SocketAddr) -> Vec<TcpStream> {
    let mut crowd = Vec::new();
    for n in 0..300 {
        let mut socket = TcpStream::connect(at).await.unwrap();
        if n % 2 == 0 {
            // The broker may have closed it already.
            let _ = socket.write_all(b"GET /metrics HTTP/1.1\r\nHost").await;
        }
        crowd.push(socket);
    }
    crowd
}

#[tokio::test]
async fn probes_are_answered_in_time_whoever_holds_connections_open() {
    let broker = broker_on(&MemoryStore::new(2), with_http()).await;
    let at = address(&broker);
    let mut idle = Vec::new();
    for _ in 0..5 {
        let probed = timeout(PROBE_WITHIN, async {
            idle.push(crowd(at).await);
            (get(at, "/healthz").await, get(at, "/readyz").await)
        });
        let (alive, ready) = probed.await.expect("the probes are answered in time");
        assert_eq!((alive.0, ready.0), (200, 200));
    }
    wait_value(&broker, "mtimer_connections_refused_total{reason=\"handshakes\"}", 1_000.0).await;
    works(&broker, "a").await;
}

#[tokio::test]
async fn probes_over_tls_are_answered_in_time_whoever_begins_no_handshake() {
    let authority = Authority::new();
    let Issued { certificate, key } = authority.issue("broker");
    let tls = BrokerTlsOptions { certificate, key, client_ca: None, ca: None };
    let access = AccessOptions { tls: Some(tls), ..AccessOptions::default() };
    let broker = broker_on(&MemoryStore::new(2), BrokerOptions { access, ..with_http() }).await;
    let at = address(&broker);
    let authorities = Pem::File(authority.certificate());
    let client =
        ClientTls::open(&ClientTlsOptions { authorities, identity: None, server_name: None }).unwrap();
    let get = async |path: &str| {
        let socket = TcpStream::connect(at).await.unwrap();
        let mut stream = client.connect(socket, &at.to_string(), TIMEOUT).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let mut idle = Vec::new();
    for _ in 0..3 {
        let probed = timeout(PROBE_WITHIN, async {
            for _ in 0..300 {
                idle.push(TcpStream::connect(at).await.unwrap());
            }
            get("/healthz").await
        });
        let answer = probed.await.expect("the probe is answered in time");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert_eq!(exchange(at, b"GET /healthz HTTP/1.1\r\n\r\n").await, "", "not in clear text");
    let text = get("/metrics").await;
    assert_eq!(value(&text, "mtimer_connections_refused_total{reason=\"tls\"}"), 1.0);
}

#[tokio::test]
async fn an_address_that_is_taken_is_told_with_its_flag() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = taken.local_addr().unwrap();
    let options = BrokerOptions { http: HttpListen::At(at), ..options() };
    let error = start(options, std::sync::Arc::new(MemoryStore::new(2))).await.unwrap_err();
    assert!(matches!(error, StartError::Http { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("cannot serve metrics on {at}: ")) && text.contains("--http"),
        "{text}"
    );
}

#[tokio::test]
async fn the_usual_address_is_done_without_if_it_is_taken() {
    // If this fails, somebody else has it.
    let _taken = TcpListener::bind(DEFAULT_HTTP).await;
    let broker = broker_on(&MemoryStore::new(2), BrokerOptions { http: HttpListen::Auto, ..options() }).await;
    assert_eq!(broker.http_addr(), None);
    works(&broker, "a").await;
}
