//! Power cuts and damaged files. Every image of a data directory that a power cut may leave opens
//! with everything that was answered; damage to what was answered is refused with its place.
//!
//! What a power cut does: everything synced is there; of what was written since the last sync, each
//! sector is there or still holds what it held before (zeros), in any combination. All of it
//! repeats from a seed. `MTIMER_LONG=1` tries about thirty times as many images.

#![allow(clippy::unwrap_used, reason = "this is a test")]

mod histories;
mod image;
mod repair;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use image::{Image, Outcome, acquire, is_journal, look, open, schedule, scratch};
use mtimer_store::conformance::SeededRandom;
use mtimer_store_embedded::EmbeddedDurability;

const SEED: u64 = 7;
/// Bytes of a timer's payload: a few timers fill a sector, a group spans several.
const PAYLOAD: usize = 300;

/// One in a bounded run, `many` in a long one.
fn times(few: usize, many: usize) -> usize {
    if std::env::var_os("MTIMER_LONG").is_some() { many } else { few }
}

/// The directory after each answer, and how many timers had been answered by then.
async fn recorded(durability: EmbeddedDurability, groups: &[u64]) -> Vec<(Image, u64)> {
    let dir = scratch();
    let store = open(dir.path(), durability).unwrap();
    let lane = acquire(&store).await;
    let mut images = vec![(Image::of(dir.path()), 0)];
    let mut answered = 0;
    for timers in groups {
        schedule(&lane, answered..answered + timers, PAYLOAD).await;
        answered += timers;
        images.push((Image::of(dir.path()), answered));
    }
    store.close().await;
    images
}

/// The image before a group with the group's bytes changed.
fn torn(before: &Image, after: &Image, change: impl FnOnce(&mut Vec<u8>, usize)) -> Image {
    let journal = before.journal();
    let start = before.0[journal].len();
    let mut bytes = after.0[journal].clone();
    change(&mut bytes, start);
    before.with(journal, bytes)
}

/// Everything answered is there; of the group under way all or nothing.
async fn check_torn(image: &Image, answered: u64, written: u64, what: &str) {
    match image.outcome(written, PAYLOAD).await {
        Outcome::Opened(found) => {
            let all = |n| (0..n).collect::<BTreeSet<_>>();
            assert!(
                found == all(answered) || found == all(written),
                "{what}: {answered} answered, found {found:?}"
            );
        }
        Outcome::Refused(message) => panic!("{what}: what was not answered prevents opening: {message}"),
    }
}

/// The sectors of a file that hold bytes written since `start`: what each of them adds.
fn sectors(start: usize, end: usize, size: usize) -> Vec<std::ops::Range<usize>> {
    let first = start / size * size;
    (first..end).step_by(size).map(|at| at.max(start)..(at + size).min(end)).collect()
}

#[tokio::test]
async fn a_group_that_was_not_answered_never_prevents_opening() {
    let images = recorded(EmbeddedDurability::Sync, &[1, 3, 1, 9, 2, 30]).await;
    let (mut prefixes, mut sectors_lost, mut subsets, mut garbled) = (0, 0, 0, 0);
    let mut random = SeededRandom::new(SEED);
    for pair in images.windows(2) {
        let ((before, answered), (after, written)) = (&pair[0], &pair[1]);
        let (start, end) = (before.0[before.journal()].len(), after.0[after.journal()].len());
        // Every prefix of a short group, the first and last bytes and a sample of a long one.
        let step = times(((end - start) / 30).max(1), 1);
        let edges = (start..start + 20.min(end - start)).chain(end - 20..end);
        for cut in edges.chain((start..end).step_by(step)) {
            let image = torn(before, after, |bytes, _| bytes.truncate(cut));
            check_torn(&image, *answered, *written, &format!("cut at {cut} of {start} to {end}")).await;
            prefixes += 1;
        }
        for size in [512, 4_096] {
            let sectors = sectors(start, end, size);
            for lost in &sectors {
                let image = torn(before, after, |bytes, _| bytes[lost.clone()].fill(0));
                check_torn(&image, *answered, *written, &format!("{lost:?} zeroed")).await;
                sectors_lost += 1;
            }
            for _ in 0..times(4, 120) {
                let lost: Vec<_> = sectors.iter().filter(|_| random.index(2) == 0).collect();
                let image = torn(before, after, |bytes, _| {
                    lost.iter().for_each(|lost| bytes[(*lost).clone()].fill(0));
                });
                check_torn(&image, *answered, *written, &format!("{lost:?} zeroed")).await;
                subsets += 1;
            }
            for _ in 0..times(2, 60) {
                let spoilt = sectors[random.index(sectors.len())].clone();
                let image = torn(before, after, |bytes, _| {
                    bytes[spoilt.clone()].iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
                });
                check_torn(&image, *answered, *written, &format!("{spoilt:?} garbled")).await;
                garbled += 1;
            }
        }
    }
    println!(
        "power cuts, synced: {prefixes} prefixes, {sectors_lost} single sectors zeroed, {subsets} sets of \
         sectors zeroed, {garbled} sectors garbled"
    );
}

#[tokio::test]
async fn a_power_cut_of_the_fast_level_loses_only_what_was_not_synced() {
    let dir = scratch();
    // Nothing is synced but by acquiring.
    let every = Duration::from_secs(3_600);
    let store = open(dir.path(), EmbeddedDurability::Fast { every }).unwrap();
    let lane = acquire(&store).await;
    schedule(&lane, 0..5, PAYLOAD).await;
    drop(lane);
    let lane = acquire(&store).await;
    let synced = Image::of(dir.path());
    let mut ends = vec![5];
    for n in 0..12 {
        let from = ends[n];
        schedule(&lane, from..from + 1 + n as u64 % 4, PAYLOAD).await;
        ends.push(from + 1 + n as u64 % 4);
    }
    let written = Image::of(dir.path());
    store.close().await;
    let (start, end) = (synced.0[synced.journal()].len(), written.0[written.journal()].len());
    let timers = *ends.last().unwrap();
    let mut random = SeededRandom::new(SEED);
    let mut tried = 0;
    for size in [512, 4_096] {
        let sectors = sectors(start, end, size);
        for round in 0..sectors.len() + times(40, 2_000) {
            // Every sector once by itself, then any set of them.
            let lost: Vec<_> = match sectors.get(round) {
                Some(one) => vec![one],
                None => sectors.iter().filter(|_| random.index(3) == 0).collect(),
            };
            let image = torn(&synced, &written, |bytes, _| {
                lost.iter().for_each(|lost| bytes[(*lost).clone()].fill(0));
            });
            match image.outcome(timers, PAYLOAD).await {
                Outcome::Refused(message) => panic!("{lost:?} zeroed prevents opening: {message}"),
                Outcome::Opened(found) => {
                    let count = found.len() as u64;
                    assert_eq!(found, (0..count).collect::<BTreeSet<_>>(), "no gap");
                    assert!(ends.contains(&count), "whole groups: {found:?}");
                }
            }
            tried += 1;
        }
    }
    println!("power cuts, fast: {tried} sets of sectors zeroed");
}

/// Bytes of a payload of which a few thousand fill a table.
const LARGE: usize = 4_000;

/// A directory with tables and a journal, closed, and how many timers it holds.
async fn with_tables() -> (tempfile::TempDir, u64) {
    const GROUP: u64 = 200;
    let dir = scratch();
    let store = open(dir.path(), EmbeddedDurability::Sync).unwrap();
    let lane = acquire(&store).await;
    let tables = |space: &str| {
        let folder = dir.path().join("db/keyspaces").join(space).join("tables");
        folder.read_dir().is_ok_and(|mut entries| entries.next().is_some())
    };
    let mut timers = 0;
    while !tables("1") && timers < 100_000 {
        schedule(&lane, timers..timers + GROUP, LARGE).await;
        timers += GROUP;
    }
    schedule(&lane, timers..timers + 50, LARGE).await;
    store.close().await;
    (dir, timers + 50)
}

#[tokio::test]
async fn a_power_cut_while_the_directory_is_made_never_prevents_opening() {
    let dir = scratch();
    let store = open(dir.path(), EmbeddedDurability::Sync).unwrap();
    let made = Image::of(dir.path());
    store.close().await;
    let without = |image: &Image, prefix: &str| {
        let mut image = image.clone();
        image.0.retain(|path, _| !path.starts_with(prefix));
        image
    };
    let no_spaces = without(&made, "db/keyspaces");
    let version = Path::new("db/version");
    let mut cut = vec![without(&no_spaces, "db/version"), without(&no_spaces, "db"), no_spaces.clone()];
    for written in 0..4 {
        cut.push(no_spaces.with(version, made.0[version][..written].to_vec()));
    }
    for space in 0..=6 {
        // The key spaces are made one after the other, `current` last in each.
        let mut image = made.clone();
        image.0.retain(|path, _| (space..=6).all(|n| !path.starts_with(format!("db/keyspaces/{n}"))));
        cut.push(image.clone());
        let manifest = Path::new("db/keyspaces").join(space.to_string()).join("v0");
        cut.push(image.with(&manifest, Vec::new()));
        cut.push(image.with(&manifest, made.0[&manifest].clone()));
    }
    for (n, image) in cut.iter().enumerate() {
        match image.outcome(1, PAYLOAD).await {
            Outcome::Opened(found) => assert!(found.is_empty()),
            Outcome::Refused(message) => panic!("cut {n} prevents opening: {message}"),
        }
    }
    println!("power cuts, a new directory: {} states", cut.len());
}

#[tokio::test]
async fn a_power_cut_while_a_table_is_written_loses_nothing() {
    let dir = scratch();
    let store = open(dir.path(), EmbeddedDurability::Sync).unwrap();
    let lane = acquire(&store).await;
    let before = Image::of(dir.path());
    let (mut timers, mut after) = (0, before.clone());
    let is_table = |path: &Path| path.starts_with("db/keyspaces/1/tables");
    while !after.0.keys().any(|path| is_table(path)) && timers < 100_000 {
        schedule(&lane, timers..timers + 200, LARGE).await;
        timers += 200;
        after = Image::of(dir.path());
    }
    store.close().await;
    // What was synced: the journal. The engine syncs a table, then the manifest, then it puts
    // `current` in place: until then any state of the new files may be found.
    let mut synced = before.clone();
    for (path, bytes) in &after.0 {
        if is_journal(path) || !path.starts_with("db") {
            synced.0.insert(path.clone(), bytes.clone());
        }
    }
    let (mut random, mut tried) = (SeededRandom::new(SEED), 0);
    for round in 0..times(6, 200) {
        let mut image = synced.clone();
        for (path, bytes) in after.0.iter().filter(|(path, _)| !before.0.contains_key(*path)) {
            let mut bytes = bytes.clone();
            match (round + random.index(2)) % 3 {
                0 => bytes.truncate(random.index(bytes.len())),
                1 => {
                    let at = random.index(bytes.len()) / 4_096 * 4_096;
                    let end = bytes.len().min(at + 4_096);
                    bytes[at..end].fill(0);
                }
                _ => continue,
            }
            image.0.insert(path.clone(), bytes);
        }
        match image.outcome(timers, LARGE).await {
            Outcome::Opened(found) => assert_eq!(found.len() as u64, timers),
            Outcome::Refused(message) => panic!("an unfinished table prevents opening: {message}"),
        }
        tried += 1;
    }
    println!("power cuts, tables: {tried} sets of unfinished files");
}

/// Whether a refusal names the file and the place in it, and what to do.
fn names_the_place(message: &str, file: &Path) -> bool {
    let name = file.file_name().unwrap().to_str().unwrap();
    message.contains(name) && message.contains("offset") && message.contains("mtimer repair --data")
}

#[tokio::test]
async fn a_flipped_byte_of_the_journal_is_never_silent() {
    let images = recorded(EmbeddedDurability::Sync, &[1; 50]).await;
    let (image, timers) = images.last().unwrap();
    let journal = image.journal().clone();
    let end = image.0[&journal].len();
    let mut random = SeededRandom::new(SEED);
    let (mut refused, mut opened) = (0, 0);
    for round in 0..times(250, 8_000) {
        // The last groups are the ones that could pass for unanswered.
        let at = if round % 3 == 0 { end - 1 - random.index(2_000) } else { random.index(end) };
        let mut bytes = image.0[&journal].clone();
        bytes[at] ^= 1 << random.index(8);
        match image.with(&journal, bytes).outcome(*timers, PAYLOAD).await {
            Outcome::Opened(found) => {
                assert_eq!(
                    found.len() as u64,
                    *timers,
                    "a flip at {at} of {end} opens silently with {} of {timers}",
                    found.len()
                );
                opened += 1;
            }
            Outcome::Refused(message) => {
                assert!(names_the_place(&message, &journal), "at {at}: {message}");
                refused += 1;
            }
        }
    }
    println!("flipped bytes, journal: {refused} refused with the place, {opened} opened with everything");
}

#[tokio::test]
async fn a_flipped_byte_of_any_other_file_is_never_silent() {
    let (dir, timers) = with_tables().await;
    let image = Image::of(dir.path());
    let files: Vec<_> =
        image.0.iter().filter(|(path, bytes)| !is_journal(path) && !bytes.is_empty()).collect();
    assert!(files.iter().any(|(path, _)| path.starts_with("db/keyspaces/1/tables")), "there are tables");
    let mut random = SeededRandom::new(SEED);
    let (mut refused, mut opened) = (0, 0);
    for (file, bytes) in files {
        for _ in 0..times(4, 100) {
            let (at, bit) = (random.index(bytes.len()), random.index(8));
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << bit;
            let spoilt = scratch();
            image.with(file, bytes).write(spoilt.path());
            match open(spoilt.path(), EmbeddedDurability::Sync) {
                Err(message) => {
                    assert!(names_the_place(&message, file), "{file:?} at {at}: {message}");
                    refused += 1;
                }
                Ok(store) => {
                    let lane = acquire(&store).await;
                    let census = lane.census().await.unwrap();
                    assert_eq!(census.pending, timers, "{file:?} at {at}");
                    drop(lane);
                    store.close().await;
                    let Outcome::Opened(found) = look(spoilt.path(), timers, LARGE).await else {
                        panic!("{file:?} at {at}: it opens once and not twice");
                    };
                    assert_eq!(found.len() as u64, timers, "{file:?} at {at}");
                    opened += 1;
                }
            }
        }
    }
    println!("flipped bytes, other files: {refused} refused with the place, {opened} opened with everything");
}

#[tokio::test]
async fn a_directory_of_which_parts_are_missing_is_refused_and_left_as_it_is() {
    let images = recorded(EmbeddedDurability::Sync, &[1; 10]).await;
    let (image, _) = images.last().unwrap();
    let mut tried = 0;
    for missing in ["db/version", "db/keyspaces", "db/keyspaces/1", "db/keyspaces/6/current", "db/0.jnl"] {
        let mut partial = image.clone();
        partial.0.retain(|path, _| !path.starts_with(missing));
        if missing == "db/version" {
            partial.0.retain(|path, _| !path.starts_with("db/keyspaces"));
        }
        let dir = scratch();
        partial.write(dir.path());
        let message = open(dir.path(), EmbeddedDurability::Sync)
            .err()
            .unwrap_or_else(|| panic!("without {missing} it opens"));
        assert!(message.contains("mtimer repair --data"), "{missing}: {message}");
        let left = Image::of(dir.path());
        for (path, bytes) in &partial.0 {
            assert!(left.0.get(path) == Some(bytes), "without {missing}, {path:?} is changed");
        }
        tried += 1;
    }
    println!("parts missing: {tried} refused");
}
