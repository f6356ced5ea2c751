//! Why a broker cannot be a part of this cluster, in words for its operator.

use mtimer_protocol::Heartbeat;
use mtimer_types::limits::{MAX_ADDRESS_BYTES, MAX_BROKERS};

use super::api::NodeOptions;

/// Most and least weight of a broker.
const WEIGHTS: std::ops::RangeInclusive<u16> = 1..=1_000;

/// Whether it looks like `host:port` that somebody could connect to; an IPv6 address stands in
/// brackets.
pub fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let plain = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c.is_control());
    let one_colon = !host.contains(':') || (host.starts_with('[') && host.ends_with(']'));
    let port_ok = port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|p| p > 0);
    plain && one_colon && port_ok && text.len() <= MAX_ADDRESS_BYTES
}

/// Returns the contradiction between a heartbeat and the leader's own options, if any.
pub(super) fn contradiction(own: &NodeOptions, beat: &Heartbeat) -> Option<String> {
    let (who, leader) = (shown(&beat.address), &own.address);
    if beat.cluster != own.cluster {
        return Some(format!(
            "broker {who} is configured for cluster {:?}, but leader {leader} runs cluster {:?} on this store: give all \
             brokers of a store the same cluster name",
            shown(&beat.cluster),
            own.cluster
        ));
    }
    if beat.partitions != own.partitions {
        return Some(format!(
            "broker {who} has a store of {} partitions, but leader {leader} one of {}: give all brokers the same store \
             and the same number of partitions",
            beat.partitions, own.partitions
        ));
    }
    if !WEIGHTS.contains(&beat.weight) {
        return Some(format!(
            "broker {who} has weight {}, but a weight is {} to {}: set 100 if all brokers are alike",
            beat.weight,
            WEIGHTS.start(),
            WEIGHTS.end()
        ));
    }
    if !is_address(&beat.address) {
        return Some(format!(
            "a broker advertises the address {who:?}, but leader {leader} needs one like host:port of at most \
             {MAX_ADDRESS_BYTES} bytes: set the address that others reach it at"
        ));
    }
    if beat.address == own.address {
        return Some(format!(
            "another broker advertises {who}, the address of the leader itself: give every broker an address of its own"
        ));
    }
    None
}

/// A broker more than there may be.
pub(super) fn too_many(beat: &Heartbeat) -> String {
    format!(
        "broker {} would be number {}, but a cluster has at most {MAX_BROKERS}: stop another one first",
        beat.address,
        MAX_BROKERS + 1
    )
}

/// Its address is another living broker's.
pub(super) fn taken(beat: &Heartbeat) -> String {
    format!(
        "another broker that advertises {} is alive: stop it, or give this one an address of its own",
        beat.address
    )
}

/// The beginning of a text that a peer has sent, which may be of any length.
fn shown(text: &str) -> String {
    text.chars().take(MAX_ADDRESS_BYTES).collect()
}
