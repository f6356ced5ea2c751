//! The bytes of version 1 never change: every message kind against the bytes that were written
//! down.

#![allow(clippy::unwrap_used)]

mod samples;

use std::collections::BTreeMap;
use std::fmt::Debug;

use bytes::BytesMut;
use mtimer_protocol::{decode, encode};
use samples::{from_client, from_server, hex};
use serde::{Serialize, de::DeserializeOwned};

const GOLDEN: &str = include_str!("golden/v1.txt");
const PAGE: &str = include_str!("../../../docs/protocol.md");

fn golden() -> BTreeMap<&'static str, &'static str> {
    GOLDEN.lines().filter_map(|line| line.split_once(' ')).collect()
}

fn check<M: Serialize + DeserializeOwned + PartialEq + Debug>(samples: Vec<(String, M)>) -> Vec<String> {
    let golden = golden();
    let mut wrong = Vec::new();
    for (name, message) in samples {
        let body = encode(&message).unwrap();
        let back: M = decode(&BytesMut::from(&body[..])).unwrap();
        assert_eq!(back, message, "{name}");
        if golden.get(name.as_str()) != Some(&hex(&body).as_str()) {
            wrong.push(format!("{name} {}", hex(&body)));
        }
    }
    wrong
}

#[test]
fn every_message_kind_has_its_bytes() {
    let mut wrong = check(from_client());
    wrong.extend(check(from_server()));
    assert!(wrong.is_empty(), "these lines differ from golden/v1.txt:\n{}", wrong.join("\n"));
    let names = from_client().len() + from_server().len();
    assert_eq!(golden().len(), names, "golden/v1.txt has lines of no sample");
}

#[test]
fn the_page_shows_the_same_bytes() {
    let page: String = PAGE.split_whitespace().collect();
    let shown =
        ["hello", "schedule-1", "welcome", "welcome-cluster", "topology", "reply-schedule-1", "register"];
    for name in shown.into_iter().chain(["deliver", "deliver-headers", "settle-ok"]) {
        let bytes = golden()[name];
        assert!(page.contains(bytes), "docs/protocol.md lacks the bytes of {name}: {bytes}");
    }
    let id = samples::id();
    let partition = mtimer_types::PartitionId::of_key(&samples::dest(), &samples::key(), 64);
    assert_eq!(partition.0, 9, "the page says so");
    let extensions = hex(samples::full_timer().extensions.as_bytes());
    assert!(page.contains(&extensions), "docs/protocol.md lacks the extensions {extensions}");
    for text in [id.to_string(), format!("{:032x}", id.as_u128())] {
        assert!(page.contains(&text), "docs/protocol.md lacks the id {text}");
    }
}
