//! What holds of every operation and its replies.

#![allow(clippy::unwrap_used)]

mod samples;

use bytes::BytesMut;
use mtimer_protocol::ops::*;
use mtimer_protocol::sample::{self, Parts};
use mtimer_protocol::{DecodeError, ErrorCode, OpReply, RequestOp, decode, encode};
use mtimer_types::{Bulk, KeyPolicy, PartitionId, SettingsVersion, Target, TimerId};
use samples::{by_key, dest, full_timer, operation_of, time};

fn no_operations() -> [OpReply; 2] {
    let message = String::new();
    [OpReply::Failed { code: ErrorCode::Invalid, message }, OpReply::Moved { owner: String::new() }]
}

#[test]
fn every_operation_and_its_replies_have_samples() {
    for name in RequestOp::NAMES {
        assert!(RequestOp::samples().iter().any(|op| operation_of(op) == name), "no sample of {name}");
        assert!(OpReply::samples().iter().any(|r| operation_of(r) == name), "no sample of a reply to {name}");
    }
}

/// How a timer is named decides which permission is needed.
#[test]
fn an_operation_that_names_its_timer_has_samples_by_id_and_by_key() {
    let samples = RequestOp::samples();
    for name in RequestOp::NAMES {
        let of_it = samples.iter().filter(|op| operation_of(op) == name);
        let targets = of_it.filter_map(|op| match op.subject() {
            Subject::Named(target) => Some(target),
            Subject::New(_) | Subject::Retained(_) | Subject::Partition { .. } => None,
        });
        let (by_id, by_key): (Vec<_>, Vec<_>) = targets.partition(|target| matches!(target, Target::Id(_)));
        assert_eq!(by_id.is_empty(), by_key.is_empty(), "{name}: {by_id:?} and {by_key:?}");
    }
}

/// The first byte of a reply is its operation's, the second its variant's; zeros are valid values of
/// everything that follows.
#[test]
fn every_variant_of_a_reply_has_a_sample() {
    let samples: Vec<_> = OpReply::samples().iter().map(|reply| encode(reply).unwrap()).collect();
    let first = no_operations().len() as u8;
    for (operation, name) in (first..).zip(RequestOp::NAMES) {
        let is_known = |variant| {
            let body = [&[operation, variant][..], &[0; 64]].concat();
            !matches!(decode::<OpReply>(&BytesMut::from(&body[..])), Err(DecodeError::Malformed(_)))
        };
        assert!(is_known(0), "{name}: no variants");
        for variant in (0..=u8::MAX).take_while(|variant| is_known(*variant)) {
            let has = samples.iter().any(|body| body[..2] == [operation, variant]);
            assert!(has, "{name}: no sample of the reply's variant {variant}");
        }
    }
}

#[test]
fn an_arbitrary_operation_is_about_what_was_chosen_for_it() {
    let timer = (full_timer().into(), KeyPolicy::Keep);
    let bulk = (PartitionId(3), sample::bulk_id(), sample::bulks().remove(0));
    let settings = (PartitionId(3), dest(), sample::settings(), SettingsVersion::Given(8));
    let retained = TimerId::from_u128(7);
    let parts = Parts { timer, target: by_key(), retained, time: time(1), request: 2, bulk, settings };
    for (nth, name) in RequestOp::NAMES.into_iter().enumerate() {
        let op = RequestOp::arbitrary(nth, &mut parts.clone());
        assert_eq!(operation_of(&op), name);
        assert_eq!(RequestOp::arbitrary(nth + RequestOp::NAMES.len(), &mut parts.clone()), op);
        match op.subject() {
            Subject::New(timer) => assert_eq!(*timer, parts.timer.0, "{name}"),
            Subject::Named(target) => assert_eq!(*target, parts.target, "{name}"),
            Subject::Retained(id) => assert_eq!(id, parts.retained, "{name}"),
            Subject::Partition { partition, group, app, .. } => {
                let (of, _, Bulk { filter, .. }) = &parts.bulk;
                let of_bulk = (*of, filter.group.as_deref(), filter.app.as_deref());
                let (of, dest, ..) = &parts.settings;
                let of_settings = (*of, Some(dest.group()), Some(dest.app()));
                assert!([of_bulk, of_settings].contains(&(partition, group, app)), "{name}");
            }
        }
    }
}

#[test]
fn a_reply_answers_its_own_operation_alone() {
    for op in RequestOp::samples() {
        for reply in OpReply::samples() {
            let own = operation_of(&op) == operation_of(&reply);
            assert_eq!(op.is_answered_by(&reply), own, "{op:?} by {reply:?}");
        }
        for reply in no_operations() {
            assert!(op.is_answered_by(&reply), "{op:?} by {reply:?}");
        }
    }
}
