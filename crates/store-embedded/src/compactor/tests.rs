//! Merges of a space, one by one.

use fjall::KeyspaceCreateOptions;
use mtimer_store::conformance::SeededRandom;

use super::*;

/// Bytes that cannot be compressed.
fn value(round: u8, n: u32) -> Vec<u8> {
    let mut random = SeededRandom::new(u64::from(n) * 256 + u64::from(round));
    (0..1_000).flat_map(|_| random.next_u64().to_le_bytes()).collect()
}

/// Tables of a new space: enough to be merged, also if the engine has moved the first one down.
const TABLES: usize = NEWEST_TABLES as usize + 1;

/// A space with tables of the same keys, and nobody who merges them.
fn with_tables(path: &Path, state: &Arc<CompactorState>) -> (Database, Upkeep) {
    let filters = Arc::clone(state);
    let assign = Arc::new(move |_: &str| Some(filters.filters()));
    let db = Database::builder(path).with_compaction_filter_factories(assign).open().unwrap();
    let options = || KeyspaceCreateOptions::default().compaction_strategy(Arc::new(never()));
    let space = db.keyspace("space", options).unwrap();
    for round in 1..=TABLES as u8 {
        for n in 0..200_u32 {
            space.insert(n.to_be_bytes(), value(round, n)).unwrap();
        }
        space.rotate_memtable_and_wait().unwrap();
    }
    assert_eq!(space.table_count(), TABLES, "the engine merges nothing");
    (db, Upkeep::new(space))
}

fn tables_on_disk(upkeep: &Upkeep) -> usize {
    upkeep.space.path().join("tables").read_dir().unwrap().count()
}

#[test]
fn a_merge_without_space_leaves_everything_as_it_was_and_is_made_later() {
    let dir = tempfile::tempdir().unwrap();
    let state = CompactorState::new(dir.path());
    let (db, mut upkeep) = with_tables(dir.path(), &state);
    state.limit(u64::MAX, true);
    state.has_no_space.store(true, Ordering::Relaxed);
    assert!(!upkeep.tend(&state, &db).unwrap() && state.is_blocked());
    assert_eq!(tables_on_disk(&upkeep), TABLES, "what it has written is removed");
    assert!(upkeep.paused.take().is_some());
    // However much is for others, a merge may take a part of the free space.
    state.has_no_space.store(false, Ordering::Relaxed);
    assert!(upkeep.tend(&state, &db).unwrap() && !state.is_blocked());
    assert_eq!(tables_on_disk(&upkeep), 1, "the files of merged tables go at once");
    assert_eq!(upkeep.space.get(7_u32.to_be_bytes()).unwrap().unwrap()[..], value(TABLES as u8, 7)[..]);
}

#[test]
fn a_space_that_is_mostly_deleted_is_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let state = CompactorState::new(dir.path());
    let (db, mut upkeep) = with_tables(dir.path(), &state);
    while upkeep.tend(&state, &db).unwrap() {}
    let tables = upkeep.space.tree.disk_space();
    (0..190_u32).for_each(|n| upkeep.space.remove(n.to_be_bytes()).unwrap());
    upkeep.space.rotate_memtable_and_wait().unwrap();
    while upkeep.tend(&state, &db).unwrap() {}
    assert_eq!(upkeep.space.tree.tombstone_count(), 0);
    assert!(upkeep.space.tree.disk_space() * 4 < tables, "{} of {tables}", upkeep.space.tree.disk_space());
    assert!(upkeep.space.get(3_u32.to_be_bytes()).unwrap().is_none());
    assert!(upkeep.space.get(193_u32.to_be_bytes()).unwrap().is_some());
}

#[test]
fn a_rewriting_that_had_too_little_space_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let state = CompactorState::new(dir.path());
    let (db, mut upkeep) = with_tables(dir.path(), &state);
    while upkeep.tend(&state, &db).unwrap() {}
    (0..200_u32).for_each(|n| upkeep.space.remove(n.to_be_bytes()).unwrap());
    upkeep.space.rotate_memtable_and_wait().unwrap();
    upkeep.has_rewritten_in_vain = true;
    assert!(!upkeep.tend(&state, &db).unwrap(), "an ordinary merge comes between, and finds nothing to do");
    assert!(upkeep.space.tree.tombstone_count() > 0);
    assert!(!upkeep.tend(&state, &db).unwrap(), "not again at once");
    upkeep.settled = upkeep.settled.map(|(tables, since)| (tables, since.checked_sub(RETRY_AFTER).unwrap()));
    while upkeep.tend(&state, &db).unwrap() {}
    assert_eq!(tables_on_disk(&upkeep), 0);
}

#[test]
fn an_old_memory_table_is_written_to_disk() {
    let dir = tempfile::tempdir().unwrap();
    let state = CompactorState::new(dir.path());
    let (_db, mut upkeep) = with_tables(dir.path(), &state);
    upkeep.space.insert("other", "row").unwrap();
    let now = Instant::now();
    upkeep.flush_if_due(&state, now).unwrap();
    let young = upkeep.space.tree.active_memtable().id();
    upkeep.flush_if_due(&state, now + FLUSH_AFTER - Duration::from_secs(1)).unwrap();
    assert_eq!(upkeep.space.tree.active_memtable().id(), young);
    upkeep.flush_if_due(&state, now + FLUSH_AFTER).unwrap();
    assert_ne!(upkeep.space.tree.active_memtable().id(), young);
}

#[test]
fn tables_below_the_floor_go_unless_rows_below_it_may_come() {
    let dir = tempfile::tempdir().unwrap();
    let state = CompactorState::new(dir.path());
    let (db, mut upkeep) = with_tables(dir.path(), &state);
    while upkeep.tend(&state, &db).unwrap() {}
    // The rows are those of partition 0 with times that begin with their numbers.
    assert_eq!(tables_on_disk(&upkeep), 1);
    upkeep.drop_below_floors(&state).unwrap();
    assert_eq!(tables_on_disk(&upkeep), 1, "no floor is known");
    state.set_floor(PartitionId(0), 5);
    upkeep.drop_below_floors(&state).unwrap();
    assert_eq!(tables_on_disk(&upkeep), 1, "it has rows above the floor");
    state.set_floor(PartitionId(0), u64::MAX);
    upkeep.drop_below_floors(&state).unwrap();
    assert_eq!(tables_on_disk(&upkeep), 0);
    assert!(upkeep.space.get(7_u32.to_be_bytes()).unwrap().is_none());
}
