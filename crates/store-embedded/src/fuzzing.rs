//! The fuzz target for the store's keys and values. Not part of the crate's interface.

use bytes::Bytes;
use mtimer_store::remembered::{RememberedAnswer, decode_ended, encode_ended};
use mtimer_types::PartitionId;

use crate::group::Group;
use crate::layout::{
    Queue, RecordPosition, fact_key, parse_fact_key, parse_pending_key, parse_queue_order, pending_key,
    put_head, take_queue_head,
};
use crate::remembered::{decode_value, encode_value};

/// Every key and value is read in each of the ways that the store reads it; each value that is read
/// is written and read back.
pub fn layout(data: &[u8]) {
    if let Some((fire, id)) = parse_pending_key(data) {
        let key = pending_key(PartitionId(7), fire, id);
        assert_eq!(parse_pending_key(&key), Some((fire, id)));
    }
    let _ = parse_queue_order(data);
    if let Some(group) = Group::decode(data) {
        assert_eq!(group.encode()[..], *data);
    }
    if let Some(fact) = parse_fact_key(data) {
        assert_eq!(fact_key(fact)[..], *data);
    }
    if let Some(location) = RecordPosition::decode(data) {
        assert_eq!(location.encode(), data);
    }
    if let Some((at, how)) = decode_value(data, decode_ended) {
        assert_eq!(encode_value(at, &encode_ended(how)), data);
    }
    if let Some((at, answer)) = decode_value(data, RememberedAnswer::decode) {
        assert_eq!(encode_value(at, &answer.encode()), data);
    }
    for queue in [Queue::Parked { dest: 1 }, Queue::Taken, Queue::Unconfirmed, Queue::Dead] {
        let Some((id, at)) = take_queue_head(queue, &mut Bytes::copy_from_slice(data)) else { continue };
        let mut head = Vec::new();
        put_head(at, id, &mut head);
        assert_eq!(take_queue_head(queue, &mut head.into()), Some((id, at)));
    }
}
