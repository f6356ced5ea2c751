//! Random histories of at-most-once timers, one damaged batch, a repair: none is delivered twice.
//!
//! A delivery is counted where an owner would send: when a take is answered, and, after the repair,
//! for each timer that an owner would take next. One history repeats from its seed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use mtimer_store::conformance::SeededRandom;
use mtimer_store::ops::{Cancel, MoveAnswer, Park, Reschedule, Schedule, Unpark};
use mtimer_store::{Answer, Batch, Lane, Op, Place, RequestId, Verdict};
use mtimer_store_embedded::{EmbeddedDurability, repair};
use mtimer_types::{KeyPolicy, Mode, Target, Time, Timer, TimerId};

use crate::image::{Image, P, acquire, open, scratch, timer};
use crate::times;

const TIMERS: usize = 8;
const BATCHES: usize = 40;
const HOUR: u64 = 3_600_000;

/// What is known of a timer without the store.
#[derive(Default)]
struct Known {
    mode: Mode,
    deliveries: u32,
    /// The last batch that changed it.
    changed_by: usize,
}

/// A history that was written: its image, and what happened.
struct History {
    image: Image,
    journal: PathBuf,
    /// Where each batch of the history begins in the journal.
    starts: Vec<usize>,
    timers: BTreeMap<TimerId, Known>,
    places: BTreeMap<TimerId, Option<Place>>,
}

struct Writer {
    random: SeededRandom,
    lane: Arc<dyn Lane>,
    now: u64,
    timers: BTreeMap<TimerId, Known>,
    made: u64,
}

impl Writer {
    fn chance(&mut self, of: usize) -> bool {
        self.random.index(of) == 0
    }

    /// A timer that is new.
    fn schedule(&mut self, batch: usize) -> Op {
        self.made += 1;
        let due = Time::from_ms(if self.chance(2) { self.now } else { self.now + 24 * HOUR });
        let id = TimerId::new(due, Time::ZERO, P, self.made);
        let mode = if self.chance(5) { Mode::AtLeastOnce } else { Mode::AtMostOnce };
        self.timers.insert(id, Known { mode, deliveries: 0, changed_by: batch });
        let timer = Arc::new(Timer { id, due, mode, ..timer(self.made, 40) });
        Op::Schedule(Schedule::new(timer, KeyPolicy::Create))
    }

    /// What an owner or a client may do to a timer that is in this place.
    fn change(&mut self, id: TimerId, place: Place) -> Op {
        let mode = self.timers[&id].mode;
        let reschedule = |due, request| {
            Op::Reschedule(Reschedule {
                target: Target::Id(id),
                due: Time::from_ms(due),
                is_begun: false,
                request: RequestId(request),
            })
        };
        match place {
            Place::Pending { fire, .. } if fire.as_ms() > self.now => {
                reschedule(self.now, self.random.next_u64())
            }
            Place::Pending { .. } => match self.random.index(6) {
                0 => Op::Park(Park { id, failed: 0 }),
                1 => reschedule(self.now + 24 * HOUR, self.random.next_u64()),
                2 => Op::Cancel(Cancel {
                    target: Target::Id(id),
                    sent_attempt: None,
                    request: RequestId(self.made),
                }),
                _ if mode == Mode::AtMostOnce => Op::take(id, 0),
                _ => Op::settle(id, Verdict::Ack),
            },
            Place::Parked => Op::Unpark(Unpark { id, fire: Time::from_ms(self.now) }),
            Place::Taken { .. } | Place::Dead => Op::settle(id, Verdict::Ack),
        }
    }

    async fn place(&self, id: TimerId) -> Option<Place> {
        self.lane.get(Target::Id(id)).await.unwrap().map(|(_, place)| place)
    }

    /// One batch: a new timer, or a change of one.
    async fn step(&mut self, batch: usize) {
        self.now += 1_000;
        let mut live = Vec::new();
        for id in self.timers.keys() {
            if let Some(place) = self.place(*id).await {
                live.push((*id, place));
            }
        }
        let op = if live.len() < TIMERS && (live.is_empty() || self.chance(3)) {
            self.schedule(batch)
        } else {
            let (id, place) = live[self.random.index(live.len())];
            self.change(id, place)
        };
        let is_take = matches!(op, Op::Take(_));
        let id = op.id().unwrap();
        let applied = Batch { now: Time::from_ms(self.now), claim: None, ops: vec![op] };
        let answers = self.lane.apply(applied).await.unwrap();
        let known = self.timers.get_mut(&id).unwrap();
        known.changed_by = batch;
        known.deliveries += u32::from(is_take && answers == [Answer::Take(MoveAnswer::Done)]);
    }
}

async fn history(seed: u64) -> History {
    let dir = scratch();
    let store = open(dir.path(), EmbeddedDurability::Sync).unwrap();
    let lane = acquire(&store).await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64 - HOUR;
    let mut writer = Writer { random: SeededRandom::new(seed), lane, now, timers: BTreeMap::new(), made: 0 };
    let mut starts = Vec::new();
    for batch in 0..BATCHES {
        let image = Image::of(dir.path());
        starts.push(image.0[image.journal()].len());
        writer.step(batch).await;
    }
    let mut places = BTreeMap::new();
    for id in writer.timers.keys() {
        places.insert(*id, writer.place(*id).await);
    }
    let Writer { lane, timers, .. } = writer;
    drop(lane);
    store.close().await;
    let image = Image::of(dir.path());
    let journal = image.journal().clone();
    History { image, journal, starts, timers, places }
}

fn waits(place: Option<&Place>) -> bool {
    matches!(place, Some(Place::Pending { .. } | Place::Parked))
}

/// Damages a batch, repairs, and counts what would be delivered.
async fn damage(history: &History, batch: usize, seed: u64) {
    let dir = scratch();
    let mut bytes = history.image.0[&history.journal].clone();
    let end = history.starts.get(batch + 1).copied().unwrap_or(bytes.len());
    // In the checksum, which covers all items.
    bytes[end - 6] ^= 1;
    history.image.with(&history.journal, bytes).write(dir.path());
    let done = repair(dir.path(), false).unwrap();
    assert_eq!(done.damages.len(), 1, "{done:?}");
    let store = open(dir.path(), EmbeddedDurability::Sync).unwrap();
    let lane = acquire(&store).await;
    for (id, known) in &history.timers {
        let found = lane.get(Target::Id(*id)).await.unwrap().map(|(_, place)| place);
        let context =
            format!("seed {seed}, batch {batch}: {id:?} is {found:?}, was {:?}", history.places[id]);
        let goes = waits(found.as_ref());
        if known.mode == Mode::AtMostOnce {
            assert!(known.deliveries + u32::from(goes) <= 1, "delivered twice: {context}");
        } else {
            assert!(!matches!(found, Some(Place::Taken { .. })), "at least once: {context}");
        }
        if known.changed_by > batch && waits(history.places[id].as_ref()) {
            assert!(goes, "its last change is not lost, so it was not sent: {context}");
        }
    }
    store.close().await;
}

#[tokio::test]
async fn no_at_most_once_timer_is_delivered_twice_after_a_damaged_batch() {
    let mut damaged = 0;
    for seed in 0..times(8, 200) as u64 {
        let history = history(seed).await;
        // Behind the first timer's batch, which holds the destination's name.
        for batch in (2..BATCHES - 1).step_by(times(4, 1)) {
            damage(&history, batch, seed).await;
            damaged += 1;
        }
    }
    println!("repairs: {damaged} damaged batches of random histories");
}
