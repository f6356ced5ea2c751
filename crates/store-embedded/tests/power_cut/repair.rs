//! What a repair keeps of a damaged directory.

use std::path::Path;
use std::sync::Arc;

use mtimer_store::conformance::SeededRandom;
use mtimer_store::ops::Schedule;
use mtimer_store::{Batch, Lane, Op, Place};
use mtimer_store_embedded::{EmbeddedDurability, OpenError, repair};
use mtimer_types::{Key, KeyPolicy, Mode, Target, Time, Timer};

use crate::image::{Image, Outcome, P, acquire, look, open, schedule, scratch, timer};
use crate::{LARGE, PAYLOAD, SEED, recorded, times, with_tables};

/// The image with one bit of a file flipped, in a directory.
fn flipped(image: &Image, file: &Path, at: usize) -> tempfile::TempDir {
    let mut bytes = image.0[file].clone();
    bytes[at] ^= 1;
    let dir = scratch();
    image.with(file, bytes).write(dir.path());
    dir
}

#[tokio::test]
async fn a_repair_keeps_every_batch_of_the_journal_but_the_damaged_one() {
    let images = recorded(EmbeddedDurability::Sync, &[1; 50]).await;
    let (image, timers) = images.last().unwrap();
    let (journal, mut random) = (image.journal().clone(), SeededRandom::new(SEED));
    let (first, end) = (images[1].0.0[&journal].len(), image.0[&journal].len());
    let last_number = number_of_batch(images[images.len() - 2].0.0[&journal].len());
    for _ in 0..times(12, 400) {
        // Behind the first timer's batch, which holds the destination's name.
        let at = first + random.index(end - first);
        if last_number.contains(&at) {
            continue; // See `a_raised_number_of_the_last_batch_loses_nothing`.
        }
        let dir = flipped(image, &journal, at);
        let before = Image::of(dir.path());
        let planned = repair(dir.path(), true).unwrap();
        let after = Image::of(dir.path());
        assert_eq!(before.0.get(&journal), after.0.get(&journal), "a dry run changes nothing");
        assert!(before.0.keys().eq(after.0.keys()));
        assert_eq!(planned.damages.len(), 1, "{planned:?}");
        assert_eq!(planned.damages[0].batches, Some(1), "{planned:?}");
        assert!(planned.damages[0].offset <= at as u64 && planned.damages[0].file.ends_with("0.jnl"));
        let done = repair(dir.path(), false).unwrap();
        assert_eq!((planned.timers_kept, planned.kept_in), (done.timers_kept, None));
        let kept = done.kept_in.unwrap();
        assert_eq!(std::fs::read(kept.join("db/0.jnl")).unwrap()[at] ^ 1, image.0[&journal][at]);
        let Outcome::Opened(found) = look(dir.path(), *timers, PAYLOAD).await else {
            panic!("a repaired directory opens")
        };
        assert_eq!((found.len() as u64, done.timers_kept), (timers - 1, timers - 1));
        assert!(repair(dir.path(), false).unwrap().is_clean());
    }
}

/// The bytes of a batch's sequence number: behind its tag and the count of its items.
fn number_of_batch(batch_starts: usize) -> std::ops::Range<usize> {
    batch_starts + 5..batch_starts + 13
}

/// The engine's checksum does not cover a batch's sequence number. The next batch contradicts one
/// that is too high; behind the last batch nothing does, and nothing depends on it.
#[tokio::test]
async fn a_raised_number_of_the_last_batch_loses_nothing() {
    let images = recorded(EmbeddedDurability::Sync, &[1; 50]).await;
    let (image, timers) = images.last().unwrap();
    let journal = image.journal().clone();
    let number = number_of_batch(images[images.len() - 2].0.0[&journal].len());
    let bytes = &image.0[&journal];
    let is_raised = |at: &usize| bytes[*at] & 1 == 0;
    // The seven lowest bytes: a number with the highest one set is out of range.
    let raised: Vec<usize> = number.take(7).filter(is_raised).collect();
    assert!(!raised.is_empty());
    for at in raised {
        let dir = flipped(image, &journal, at);
        assert!(repair(dir.path(), true).unwrap().is_clean(), "byte {at}");
        let Outcome::Opened(found) = look(dir.path(), *timers, PAYLOAD).await else {
            panic!("byte {at}: a directory without damage opens")
        };
        assert_eq!(found.len() as u64, *timers);
        let store = open(dir.path(), EmbeddedDurability::Sync).unwrap();
        schedule(&acquire(&store).await, *timers..timers + 1, PAYLOAD).await;
        store.close().await;
        let Outcome::Opened(found) = look(dir.path(), timers + 1, PAYLOAD).await else {
            panic!("byte {at}: it opens again after a further batch")
        };
        assert_eq!(found.len() as u64, timers + 1);
    }
}

#[tokio::test]
async fn a_repair_keeps_timers_whose_destination_is_lost() {
    let images = recorded(EmbeddedDurability::Sync, &[1; 10]).await;
    let (image, _) = images.last().unwrap();
    let journal = image.journal().clone();
    let named = image.0[&journal].windows(13).position(|bytes| bytes == b"ordersbilling").unwrap();
    let dir = flipped(image, &journal, named);
    let done = repair(dir.path(), false).unwrap();
    assert_eq!((done.timers_kept, done.destinations_lost), (9, 1));
    let store = open(dir.path(), EmbeddedDurability::Sync).unwrap();
    let lane = acquire(&store).await;
    let (record, _) = lane.get(Target::Id(timer(3, PAYLOAD).id)).await.unwrap().unwrap();
    assert_eq!((record.timer.dest.group(), record.timer.dest.app()), ("lost", "0"));
    store.close().await;
}

#[tokio::test]
async fn a_repair_keeps_what_is_outside_an_unreadable_block_of_a_table() {
    let (dir, timers) = with_tables().await;
    let image = Image::of(dir.path());
    let table = image.0.keys().find(|path| path.starts_with("db/keyspaces/1/tables")).unwrap();
    let mut random = SeededRandom::new(SEED);
    for _ in 0..times(2, 40) {
        // The blocks of rows come first.
        let spoilt = flipped(&image, table, random.index(image.0[table].len() / 2));
        let done = repair(spoilt.path(), false).unwrap();
        assert!(done.timers_kept < timers && done.timers_kept + 50 > timers, "{done:?} of {timers}");
        let Outcome::Opened(found) = look(spoilt.path(), timers, LARGE).await else {
            panic!("a repaired directory opens")
        };
        assert_eq!(found.len() as u64, done.timers_kept);
    }
}

/// A timer that is due, at most once, with a key.
fn at_most_once(n: u64) -> Timer {
    let key = Some(Key::new(&format!("key-{n}")).unwrap());
    let due = Time::from_ms(1_000_000_000_000 + n);
    let id = mtimer_types::TimerId::new(due, Time::ZERO, P, n);
    Timer { id, due, key, mode: Mode::AtMostOnce, ..timer(n, PAYLOAD) }
}

async fn apply(lane: &Arc<dyn Lane>, op: Op) {
    lane.apply(Batch { now: Time::from_ms(1_900_000_000_000), claim: None, ops: vec![op] }).await.unwrap();
}

#[tokio::test]
async fn at_most_once_timers_that_were_due_are_not_delivered_after_a_loss() {
    let dir = scratch();
    let store = open(dir.path(), EmbeddedDurability::Sync).unwrap();
    let lane = acquire(&store).await;
    for n in 0..4 {
        let timer = Arc::new(at_most_once(n));
        apply(&lane, Op::Schedule(Schedule::new(timer, KeyPolicy::Create))).await;
    }
    schedule(&lane, 10..13, PAYLOAD).await;
    let before = Image::of(dir.path());
    schedule(&lane, 13..14, PAYLOAD).await;
    schedule(&lane, 14..15, PAYLOAD).await;
    store.close().await;
    drop(lane);
    let image = Image::of(dir.path());
    let journal = image.journal().clone();
    let spoilt = flipped(&image, &journal, before.0[&journal].len() + 200);
    let done = repair(spoilt.path(), false).unwrap();
    assert_eq!((done.timers_kept, done.unconfirmed, done.rows_dropped), (8, 4, 0), "{done:?}");
    let store = open(spoilt.path(), EmbeddedDurability::Sync).unwrap();
    let lane = acquire(&store).await;
    let census = lane.census().await.unwrap();
    assert_eq!((census.pending, census.taken, census.keys, census.residue), (4, 4, 4, 4));
    for n in 0..4 {
        let expected = at_most_once(n);
        let target = Target::Key(expected.dest.clone(), expected.key.clone().unwrap());
        let (record, place) = lane.get(target).await.unwrap().unwrap();
        assert_eq!(record.timer.id, expected.id);
        assert!(matches!(place, Place::Taken { unconfirmed: true, .. }), "{place:?}");
    }
    store.close().await;
}

#[tokio::test]
async fn a_directory_that_is_open_is_not_repaired() {
    let dir = scratch();
    let store = open(dir.path(), EmbeddedDurability::Sync).unwrap();
    assert!(matches!(repair(dir.path(), true), Err(OpenError::Locked { .. })));
    store.close().await;
    assert!(repair(dir.path(), false).unwrap().is_clean());
    assert!(matches!(repair(scratch().path(), true), Err(OpenError::Foreign { .. })));
}
