//! Handlers with state and typed payloads: payloads that cannot be read, and the log of a failure.

#![allow(clippy::unwrap_used)]

mod fake;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use fake::{Broker, delivery, dest, until};
use mtimer_broker::testing::TestBroker;
use mtimer_client::{Callback, Client, DeadFilter, DeadReason, Outcome, Schedule};
use mtimer_protocol::Delivery;
use mtimer_types::HandlerOutcome;
use serde::Deserialize;
use tokio::time::timeout;
use tracing::subscriber::DefaultGuard;

/// Nothing here takes this long.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct Order {
    number: u32,
}

/// State shared by the handlers.
type Seen = Mutex<Vec<u32>>;

async fn on_order(seen: Arc<Seen>, order: Order, callback: Callback) -> Result<(), String> {
    seen.lock().unwrap().push(order.number);
    match order.number {
        1 => Ok(()),
        2 => Err(format!("number 2 at attempt {}", callback.attempt)),
        number => panic!("number {number}"),
    }
}

fn with(n: u64, payload: &'static str) -> Delivery {
    Delivery { payload: Bytes::from_static(payload.as_bytes()), ..delivery(n) }
}

#[tokio::test(start_paused = true)]
async fn every_shape_of_a_handler_is_called_with_what_it_asks_for() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let seen = Arc::new(Seen::default());
    let state = || Arc::clone(&seen);
    let (keep, dest) = (state(), dest());
    let _registrations = [
        client.register(&dest).on(async |callback| assert_eq!(callback.id, delivery(1).id)).unwrap(),
        client.register(&dest).on_json(async |order: Order, _| assert_eq!(order.number, 2)).unwrap(),
        client
            .register(&dest)
            .state(state())
            .on(async |seen: Arc<Seen>, _| seen.lock().unwrap().push(3))
            .unwrap(),
        client
            .register(&dest)
            .state(state())
            .concurrency(7)
            .on_json(async |seen: Arc<Seen>, order: Order, _| seen.lock().unwrap().push(order.number))
            .unwrap(),
    ];
    let payloads = ["", r#"{"number": 2}"#, "", r#"{"number": 4}"#];
    for (n, payload) in (1..).zip(payloads) {
        let (number, credit) = peer.registration(&dest).await;
        assert_eq!(credit, if n == 4 { 7 } else { 1_000 });
        peer.deliver(number, vec![with(n, payload)]).await;
    }
    for settled in peer.settle(4).await {
        assert_eq!(settled.outcome, HandlerOutcome::Ok, "{:?}", settled.id);
    }
    assert_eq!(*keep.lock().unwrap(), [3, 4]);
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_cannot_be_read_fails_for_good_and_the_handler_is_not_called() {
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let seen = Arc::new(Seen::default());
    let _registration = client.register(dest()).state(Arc::clone(&seen)).on_json(on_order).unwrap();
    let (number, _) = peer.registration(&dest()).await;
    let broken = ["", "{", r#"{"number": "x"}"#, "{}", r#"{"number": 1} and more"#];
    for payload in broken {
        peer.deliver(number, vec![with(1, payload)]).await;
        let settled = peer.settle(1).await;
        let HandlerOutcome::Fail { error } = &settled[0].outcome else { panic!("{payload}: {settled:?}") };
        assert!(error.starts_with("the payload is not the JSON that the handler takes: "), "{error}");
    }
    peer.deliver(number, vec![with(1, r#"{"number": 1}"#)]).await;
    assert_eq!(peer.settle(1).await[0].outcome, HandlerOutcome::Ok);
    assert_eq!(*seen.lock().unwrap(), [1]);
}

#[tokio::test]
async fn a_payload_that_cannot_be_read_is_a_dead_letter_after_one_attempt() {
    let broker = TestBroker::start().await.unwrap();
    let client = Client::builder().brokers([broker.address()]).connect().await.unwrap();
    let seen = Arc::new(Seen::default());
    let registration = client.register(dest()).state(Arc::clone(&seen)).on_json(on_order).unwrap();
    let now = || Schedule::after(dest(), Duration::ZERO);
    let broken = client.schedule(now().payload(r#"{"number": "x"}"#)).await.unwrap().id;
    client.schedule(now().payload(r#"{"number": 1}"#)).await.unwrap();
    until("both are settled", || client.stats().settled == 2).await;
    let dead = timeout(TIMEOUT, client.dead(DeadFilter::default()).all()).await.unwrap().unwrap();
    let [row] = &dead[..] else { panic!("{dead:?}") };
    assert_eq!((row.timer.id, row.reason, row.attempts), (broken, DeadReason::Failed, 1));
    let error = row.last_error.as_deref().unwrap();
    assert!(error.contains("invalid type: string \"x\", expected u32"), "{error}");
    assert_eq!(*seen.lock().unwrap(), [1]);
    registration.stop().await;
    client.close().await.unwrap();
    broker.stop().await.unwrap();
}

/// Keeps the log of this thread, a line for each event.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().json().with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// The lines of handlers since the last call.
    fn take(&self) -> Vec<serde_json::Value> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        let lines = std::str::from_utf8(&bytes).unwrap().lines();
        let all = lines.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        all.filter(|line| line["target"] == "mtimer_client::handler").collect()
    }
}

#[tokio::test(start_paused = true)]
async fn every_failure_is_logged_once_without_the_payload() {
    let (log, _guard) = Log::start();
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let _registration = client.register(dest()).state(Arc::new(Seen::default())).on_json(on_order).unwrap();
    let (number, _) = peer.registration(&dest()).await;
    let failures = [
        (r#"{"number": 1, "card": "secret"}"#, None),
        (r#"{"number": 2, "card": "secret"}"#, Some(("the handler failed", "number 2 at attempt 3"))),
        (r#"{"number": 3, "card": "secret"}"#, Some(("the handler panicked", "number 3"))),
        (
            r#"{"number": "secret"}"#,
            Some((
                "the payload cannot be read as what the handler takes, it was not called",
                "Data error at line 1 column 19",
            )),
        ),
    ];
    for (n, (payload, expected)) in (1..).zip(failures) {
        peer.deliver(number, vec![Delivery { attempt: 3, ..with(n, payload) }]).await;
        peer.settle(1).await;
        let lines = log.take();
        let Some((message, error)) = expected else {
            assert!(lines.is_empty(), "{lines:?}");
            continue;
        };
        let [line] = &lines[..] else { panic!("{payload}: {lines:?}") };
        let fields = serde_json::json!({
            "message": message, "group": "orders", "app": "billing", "id": delivery(n).id.to_string(),
            "attempt": 3, "error": error,
        });
        assert_eq!((&line["level"], &line["fields"]), (&"WARN".into(), &fields));
        assert!(!line.to_string().contains("secret"), "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_gives_up_is_logged_as_such_also_from_a_task_of_its_own() {
    let (log, _guard) = Log::start();
    let broker = Broker::start().await;
    let (client, mut peer) = broker.connect().await;
    let handler = async |_| {
        tokio::task::yield_now().await;
        Outcome::fail("never")
    };
    let _registration = client.on(dest(), handler).unwrap();
    let (number, _) = peer.registration(&dest()).await;
    peer.deliver(number, vec![delivery(1)]).await;
    peer.settle(1).await;
    let lines = log.take();
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(
        (&line["fields"]["message"], &line["fields"]["error"]),
        (&"the handler failed for good".into(), &"never".into())
    );
}
