//! Which addresses are refused, and the answer to a broker too many.

use mtimer_types::limits::{MAX_ADDRESS_BYTES, MAX_BROKERS};

use super::*;

#[test]
fn an_address_is_a_host_and_a_port() {
    for good in ["b:7000", "10.0.0.1:1", "[::1]:65535", "broker-1.example:7000"] {
        assert!(is_address(good), "{good}");
    }
    for bad in [
        "",
        ":7000",
        "b",
        "b:",
        "b:0",
        "b:65536",
        "b:+80",
        "b:7a",
        "b c:7000",
        "b\u{7}c:7000",
        "b:c:7000",
        "[b:c:7000",
        "b:c]:7000",
    ] {
        assert!(!is_address(bad), "{bad}");
    }
    let of_length = |bytes: usize| is_address(&format!("{}:1", "h".repeat(bytes - 2)));
    assert_eq!([MAX_ADDRESS_BYTES, MAX_ADDRESS_BYTES + 1].map(of_length), [true, false]);
}

#[test]
fn a_broker_too_many_is_told_which_it_is_and_how_many_there_may_be() {
    let mut lab = Lab::leading(7, None);
    let join = |lab: &mut Lab, n: usize| {
        lab.take();
        lab.beat(n as u64, beat(&format!("a{n}:1"), 5));
        refused(&lab.take()).map(str::to_owned)
    };
    assert!((1..MAX_BROKERS).all(|n| join(&mut lab, n).is_none()));
    let text = join(&mut lab, MAX_BROKERS).expect("a refusal");
    let (address, most) = (format!("a{MAX_BROKERS}:1"), format!("at most {MAX_BROKERS}"));
    assert!(text.contains(&address) && text.contains(&most), "{text}");
}
