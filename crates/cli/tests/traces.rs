//! The trace of one timer, from the command that schedules it to the handler: what a collector of
//! OpenTelemetry receives from three processes.

#![allow(clippy::unwrap_used)]

#[path = "cli/harness.rs"]
#[allow(dead_code)]
mod harness;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use harness::{Running, end, mtimer, wait_for};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

/// A collector that keeps spans, with the name of the service that each comes from.
struct Collector {
    url: String,
    spans: Arc<Mutex<Vec<(String, Span)>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let spans = Arc::new(Mutex::new(Vec::new()));
        let keep = spans.clone();
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let keep = keep.clone();
                std::thread::spawn(move || keep.lock().unwrap().extend(receive(stream.unwrap())));
            }
        });
        Self { url, spans }
    }

    fn named(&self, name: &str) -> Vec<(String, Span)> {
        self.spans.lock().unwrap().iter().filter(|(_, span)| span.name == name).cloned().collect()
    }

    /// Waits for a span of this name.
    fn one(&self, name: &str) -> (String, Span) {
        let found = wait_for(name, || Some(self.named(name)).filter(|found| !found.is_empty()));
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        found.into_iter().next().unwrap()
    }
}

/// Takes one request.
fn receive(mut stream: TcpStream) -> Vec<(String, Span)> {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_ascii_lowercase()),
        }
    }
    let length = lines.iter().find_map(|line| line.strip_prefix("content-length:")).unwrap();
    let mut body = vec![0; length.trim().parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
    assert!(lines[0].starts_with("post /v1/traces "), "{lines:?}");
    assert!(lines.iter().any(|line| line == "content-type: application/x-protobuf"), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("host: 127.0.0.1:")), "{lines:?}");
    let request = ExportTraceServiceRequest::decode(&body[..]).unwrap();
    let mut all = Vec::new();
    for resource in request.resource_spans {
        let of = resource.resource.map(|r| attributes(&r.attributes)).unwrap_or_default();
        let service = of.get("service.name").cloned().unwrap_or_default();
        let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
        all.extend(spans.map(|span| (service.clone(), span)));
    }
    all
}

fn attributes(all: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &Option<AnyValue>| match value.as_ref().and_then(|v| v.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(n)) => n.to_string(),
        other => format!("{other:?}"),
    };
    all.iter().map(|one| (one.key.clone(), text(&one.value))).collect()
}

#[test]
fn the_spans_of_one_timer_arrive_in_one_trace_with_the_right_parents() {
    let collector = Collector::start();
    let data = tempfile::tempdir().unwrap();
    let command = |service: &str, args: &[&str]| {
        let mut command = mtimer(args);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url).env("OTEL_BSP_SCHEDULE_DELAY", "50");
        command.env("OTEL_SERVICE_NAME", service);
        command
    };
    let folder = data.path().join("timers");
    let dev = ["dev", "--json", "--listen", "127.0.0.1:0", "--data", folder.to_str().unwrap()];
    let log = std::fs::File::create(data.path().join("log")).unwrap();
    let mut broker = Running::spawn_logging_to(log, command("broker", &dev));
    let ready: serde_json::Value = serde_json::from_str(&broker.line()).unwrap();
    let addr = ready["listening"].as_str().unwrap();
    let about = ["--group", "g", "--app", "a", "--broker", addr];

    let schedule = ["schedule", "--in", "1s", "--payload", "secret", "--header", "tenant=secret"];
    let id = end(command("shop", &[&schedule[..], &about].concat()), b"").ok().out.trim().to_owned();
    let listen = [&["listen", "--count", "1", "--json"], &about[..]].concat();
    let callback_line = end(command("mail", &listen), b"").ok().json();

    let (service, schedule) = collector.one("mtimer.schedule");
    assert_eq!((service.as_str(), schedule.parent_span_id.len()), ("shop", 0));
    let parts = [("mtimer.wait", "broker"), ("mtimer.delivery", "broker"), ("mtimer.callback", "mail")];
    let spans = parts.map(|(name, expected)| {
        let (service, span) = collector.one(name);
        assert_eq!(service, expected, "{name}");
        assert_eq!(span.trace_id, schedule.trace_id, "{name}");
        assert_eq!(span.parent_span_id, schedule.span_id, "{name}");
        let about = attributes(&span.attributes);
        assert_eq!([&about["group"], &about["app"], &about["id"]], ["g", "a", &id], "{name}");
        assert!(!format!("{span:?}").contains("secret"), "{span:?}");
        span
    });
    let [wait, delivery, callback] = spans;
    // It waits until it is due, from when the broker took it: the broker's clock may be behind the
    // client's, and the machine may be busy, so nothing is said of how long that is.
    assert_eq!(wait.end_time_unix_nano, callback_line["due_ms"].as_u64().unwrap() * 1_000_000);
    assert!(wait.start_time_unix_nano <= wait.end_time_unix_nano);
    assert!(delivery.start_time_unix_nano >= wait.end_time_unix_nano);
    assert_eq!(attributes(&delivery.attributes)["outcome"], "acknowledged");
    assert_eq!(attributes(&callback.attributes)["attempt"], "1");
}

#[test]
fn a_collector_over_https_is_refused_with_what_to_do() {
    let mut command = mtimer(&["schedule", "--group", "g", "--app", "a", "--in", "1s"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4318");
    let refused = end(command, b"").code(2);
    assert!(refused.err.contains("only http:// is spoken here; run a collector on this host"), "{refused:?}");
}
