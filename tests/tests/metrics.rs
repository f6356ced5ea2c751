//! What broker processes show over HTTP: under load and under faults, with a real Redis.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use mtimer_client::{Destination, Outcome, Schedule};
use mtimer_tests::scrape::{get, http, sample, scrape};
use mtimer_tests::{Broker, Launch, Server, mtimer, skip, wait_for, without_settings};

/// How long things may take that have no bound in the contract: a loaded machine is slow.
const TIMEOUT: Duration = Duration::from_secs(60);

async fn wait_status(broker: &Broker, path: &str, wanted: u16) {
    let at = http(broker);
    wait_for(&format!("{path} answers {wanted}"), TIMEOUT, async || get(&at, path).0 == wanted).await;
}

/// Metrics that a scrape has a type of.
fn names(scrape: &str) -> BTreeSet<String> {
    let types = scrape.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    types.map(str::to_owned).collect()
}

/// Waits until so many timers were scheduled.
async fn wait_schedules(broker: &Broker, least: f64) {
    wait_for(&format!("{least} schedules"), TIMEOUT, async || {
        sample(&scrape(broker), "mtimer_schedules_total") >= least
    })
    .await;
}

/// A broker on Redis does not have it.
const OF_THE_EMBEDDED_STORE: [&str; 2] = ["mtimer_store_disk_free_bytes", "mtimer_store_disk_level"];

/// Metrics in the table of docs/metrics.md that a broker on Redis has.
fn documented() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let types = ["counter", "gauge", "histogram"];
    let rows = rows.filter(|(_, rest)| types.iter().any(|kind| rest.starts_with(kind)));
    let mut names: BTreeSet<_> = rows.map(|(name, _)| name.to_owned()).collect();
    assert!(OF_THE_EMBEDDED_STORE.iter().all(|name| names.remove(*name)));
    names
}

/// `promtool check metrics`; skipped if it is not installed.
fn promtool_accepts(scrape: &str) {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        return skip("the check of the format", "promtool is not installed (Debian: prometheus)");
    };
    child.stdin.take().unwrap().write_all(scrape.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.trim().is_empty(), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_shown_under_load_while_redis_is_away_and_when_it_is_back() {
    let mut redis = Server::start();
    let broker = Launch::redis(&redis.url()).flags(["--partitions", "4", "--http", "127.0.0.1:0"]).start();
    let dest = Destination::new("shop", "orders").unwrap();
    let client = broker.client().await;
    let _handler = client.on(dest.clone(), async |_| Outcome::ok()).unwrap();
    for _ in 0..200 {
        client.schedule(Schedule::after(dest.clone(), Duration::from_millis(5))).await.unwrap();
    }
    wait_for("all are acknowledged", TIMEOUT, async || {
        sample(&scrape(&broker), "mtimer_acknowledge_lateness_seconds_count") >= 200.0
    })
    .await;
    let text = scrape(&broker);
    assert_eq!(names(&text), documented());
    promtool_accepts(&text);
    for (name, expected) in [
        ("mtimer_schedules_total", 200.0),
        ("mtimer_settlements_total{outcome=\"acknowledged\"}", 200.0),
        ("mtimer_leader", 1.0),
        ("mtimer_partitions_owned", 4.0),
        ("mtimer_partitions_assigned", 4.0),
        ("mtimer_partition_acquire_seconds_count", 4.0),
        ("mtimer_cluster_events_total{event=\"terms_led\"}", 1.0),
        ("mtimer_destination_sessions{group=\"shop\",app=\"orders\"}", 1.0),
        ("mtimer_ready", 1.0),
    ] {
        assert_eq!(sample(&text, name), expected, "{name}");
    }
    assert!(sample(&text, "mtimer_term") >= 1.0);
    assert_eq!(get(&http(&broker), "/readyz"), (200, "ready\n".to_owned()));

    // From here on under load, whatever becomes of Redis.
    let load = tokio::spawn({
        let client = client.clone();
        async move {
            loop {
                let soon = || Schedule::after(dest.clone(), Duration::from_millis(5));
                // What is refused while Redis is away shows in the metrics; what is unknown then is
                // not waited for.
                let many = client.schedule_all((0..50).map(|_| soon()).collect());
                let _ = tokio::time::timeout(Duration::from_secs(2), many).await;
            }
        }
    });
    wait_schedules(&broker, 1_000.0).await;
    let text = scrape(&broker);
    assert_eq!(names(&text), documented(), "under load");
    promtool_accepts(&text);
    wait_schedules(&broker, sample(&text, "mtimer_schedules_total") + 500.0).await;

    redis.kill();
    wait_status(&broker, "/readyz", 503).await;
    wait_for("schedules are refused", TIMEOUT, async || {
        sample(&scrape(&broker), "mtimer_refusals_total{reason=\"unavailable\"}") > 0.0
    })
    .await;
    // A partition with nothing to do notices late by itself: who looks whether the store is there
    // tells.
    wait_for("all partitions are unreachable", TIMEOUT, async || {
        get(&http(&broker), "/readyz")
            .1
            .contains("the store of 4 of 4 partitions cannot be reached, or takes no writes\n")
    })
    .await;
    assert_eq!(get(&http(&broker), "/healthz"), (200, "ok\n".to_owned()));
    let text = scrape(&broker);
    assert_eq!(names(&text), documented(), "while Redis is away");
    assert_eq!(sample(&text, "mtimer_store_unreachable_partitions"), 4.0);
    promtool_accepts(&text);

    redis.restart();
    wait_status(&broker, "/readyz", 200).await;
    wait_schedules(&broker, sample(&text, "mtimer_schedules_total") + 500.0).await;
    let text = scrape(&broker);
    assert_eq!(names(&text), documented(), "when Redis is back");
    promtool_accepts(&text);
    load.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_brokers_leads_and_each_shows_its_partitions() {
    let redis = Server::start();
    let launch = || {
        let launch = Launch::redis(&redis.url());
        launch.flags(["--cluster", "pair", "--partitions", "8", "--http", "127.0.0.1:0"])
    };
    let (first, mut second) = (launch().start(), launch().start());
    let sum = |name: &str| sample(&scrape(&first), name) + sample(&scrape(&second), name);
    wait_for("each has its share", TIMEOUT, async || {
        sample(&scrape(&first), "mtimer_partitions_owned") == 4.0 && sum("mtimer_partitions_owned") == 8.0
    })
    .await;
    assert_eq!(sum("mtimer_leader"), 1.0);
    assert!(sample(&scrape(&first), "mtimer_partition_release_seconds_count") >= 4.0);
    assert!(second.terminate(TIMEOUT).success());
    wait_for("the first has all", TIMEOUT, async || {
        sample(&scrape(&first), "mtimer_partitions_owned") == 8.0
    })
    .await;
    wait_status(&first, "/readyz", 200).await;
}

#[test]
fn a_port_that_is_taken_ends_the_start_and_the_flag_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(mtimer());
    command
        .args(["broker", "--listen", "127.0.0.1:0", "--http", &at, "--data"])
        .arg(folder.path().join("data"));
    let output = without_settings(&mut command).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(14), "{said}");
    assert!(said.contains(&format!("cannot serve metrics on {at}")) && said.contains("--http off"), "{said}");
}
