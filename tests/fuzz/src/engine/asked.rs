//! The operations that clients ask for: their parts are the next bytes of a program.

use std::sync::Arc;

use bytes::Bytes;
use mtimer_protocol::sample::Source;
use mtimer_protocol::{RequestOp, sample};
use mtimer_types::{
    Bulk, BulkAction, BulkId, Destination, DestinationSettings, Extensions, Filter, Headers, KeyPolicy, Mode,
    PartitionId, Pause, RetryTiers, SettingsVersion, Target, Time, Timer, TimerId,
};

use super::backend::Backend;
use super::input::Program;
use super::world::{PARTITIONS, World, dest, key};

/// Timers that a program makes at most.
const MAX_TIMERS: usize = 64;

impl<B: Backend> World<B> {
    pub(super) fn operation(&mut self, program: &mut Program<'_>) -> RequestOp {
        let byte = program.byte();
        let nth = match byte {
            // Each operation in turn, new ones included. Other bytes keep their meaning when one
            // comes, so that the corpus keeps its value.
            240.. => usize::from(byte - 240),
            _ => [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 4][usize::from(byte % 16)],
        };
        let repeats = matches!(byte % 16, 6 | 7);
        RequestOp::arbitrary(nth, &mut Drawn { world: self, program, repeats })
    }

    pub(super) fn due(&mut self, program: &mut Program<'_>) -> Time {
        let byte = u64::from(program.byte());
        self.known.now.time + [0, 1, 5, 20, 100, 400, 1_500, 6_000][(byte % 8) as usize] + byte / 8
    }

    pub(super) fn new_timer(&mut self, program: &mut Program<'_>) -> Arc<Timer> {
        if self.known.timers.len() >= MAX_TIMERS {
            return self.repeated(program);
        }
        let shape = usize::from(program.byte());
        let (dest, key, due) = (dest(shape / 4), key(shape), self.due(program));
        let mode = if shape & 0x40 == 0 { Mode::AtLeastOnce } else { Mode::AtMostOnce };
        let byte = program.byte();
        let partition = match &key {
            Some(key) => PartitionId::of_key(&dest, key, PARTITIONS),
            None => PartitionId(u16::from(byte) % PARTITIONS),
        };
        let random = self.known.timers.len() as u64;
        let timer = Arc::new(Timer {
            id: TimerId::new(due, self.known.now.time, partition, random),
            dest,
            key,
            due,
            mode,
            deadline: (shape & 0x80 != 0).then(|| due + u64::from(byte) * 8),
            callback_timeout_ms: (byte & 2 != 0).then_some(200),
            retry: (byte & 4 != 0).then(|| RetryTiers(vec![50])),
            payload: Bytes::from_static(&[7; 64]).slice(..usize::from(byte % 64)),
            headers: if byte & 8 != 0 {
                Headers::new([("h", "7")]).unwrap_or_default()
            } else {
                Headers::NONE
            },
            extensions: if byte & 16 != 0 { sample::extensions() } else { Extensions::NONE },
        });
        self.known.timers.push(timer.clone());
        timer
    }

    /// A timer that was asked for, as it was or with other content.
    fn repeated(&mut self, program: &mut Program<'_>) -> Arc<Timer> {
        let other = program.flag();
        match program.pick(&self.known.timers).cloned() {
            Some(timer) if other => {
                Arc::new(Timer { payload: Bytes::from_static(b"other"), ..(*timer).clone() })
            }
            Some(timer) => timer,
            None => self.new_timer(program),
        }
    }

    pub(super) fn id(&mut self, program: &mut Program<'_>) -> TimerId {
        let unknown = TimerId::new(self.known.now.time, self.known.now.time, PartitionId(0), u64::MAX);
        program.pick(&self.known.timers).map_or(unknown, |t| t.id)
    }

    pub(super) fn target(&mut self, program: &mut Program<'_>) -> Target {
        let byte = usize::from(program.byte());
        match key(byte / 8).filter(|_| byte.is_multiple_of(2)) {
            Some(key) => Target::Key(dest(byte), key),
            None => Target::Id(self.id(program)),
        }
    }
}

/// The parts of an operation, by the next bytes of a program.
struct Drawn<'a, 'p, B: Backend> {
    world: &'a mut World<B>,
    program: &'a mut Program<'p>,
    /// A timer is one that was asked for before.
    repeats: bool,
}

/// The policy of some timers is one that came later: it follows from the id, so that programs keep
/// their meaning.
fn newer_policy(id: TimerId) -> Option<KeyPolicy> {
    match id.random() % 8 {
        3 => Some(KeyPolicy::Latest),
        5 => Some(KeyPolicy::Earliest),
        7 => Some(KeyPolicy::Debounce { quiet_ms: 20, max_ms: 50 }),
        _ => None,
    }
}

impl<B: Backend> Source for Drawn<'_, '_, B> {
    fn timer(&mut self) -> (Arc<Timer>, KeyPolicy) {
        let timer = match self.repeats {
            true => self.world.repeated(self.program),
            false => self.world.new_timer(self.program),
        };
        let policy = self.program.one([KeyPolicy::Create, KeyPolicy::Replace, KeyPolicy::Keep]);
        let policy = newer_policy(timer.id).unwrap_or(policy);
        (timer, policy)
    }

    fn target(&mut self) -> Target {
        self.world.target(self.program)
    }

    fn retained(&mut self) -> TimerId {
        self.world.id(self.program)
    }

    fn time(&mut self) -> Time {
        self.world.due(self.program)
    }

    /// Another number for each: a repeated one gets the answer of the first time, which proves
    /// nothing.
    fn request(&mut self) -> u64 {
        self.world.requests += 1;
        self.world.requests
    }

    fn bulk(&mut self) -> (PartitionId, BulkId, Bulk) {
        let byte = self.program.byte();
        let due = self.world.due(self.program);
        let action = self.program.one([
            BulkAction::Cancel,
            BulkAction::Shift { ms: i64::from(byte) * 100 - 12_800 },
            BulkAction::MoveTo { due },
            BulkAction::Replay,
            BulkAction::Purge,
        ]);
        let filter = if byte & 1 == 0 { Filter::default() } else { Filter::from(dest(byte.into())) };
        let bulk = Bulk { dry_run: byte & 2 != 0, rate: u32::from(byte & 4), ..Bulk::new(action, filter) };
        (PartitionId(u16::from(byte >> 3) % 3), BulkId((byte >> 4).into()), bulk)
    }

    fn settings(&mut self) -> (PartitionId, Destination, DestinationSettings, SettingsVersion) {
        let (byte, until) = (self.program.byte(), self.world.due(self.program));
        let (at, version) = (PartitionId(u16::from(byte >> 3) % 3), u64::from(byte >> 4) + 1);
        let version =
            if byte & 1 == 0 { SettingsVersion::Given(version) } else { SettingsVersion::After(version) };
        let pause = Pause { until: Some(until), over_ms: u64::from(byte) * 10, ..Pause::default() };
        let settings = DestinationSettings {
            pause: (byte & 2 != 0).then_some(pause),
            strict_priority: byte & 128 != 0,
            ..DestinationSettings::default()
        };
        (at, dest(byte.into()), settings, version)
    }
}
