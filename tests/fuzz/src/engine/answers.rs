//! A store that answers each call in its form and with any content.

use std::collections::VecDeque;
use std::sync::Arc;

use mtimer_core::{Call, CallAnswer};
use mtimer_protocol::Delivery;
use mtimer_store::{
    BulkEnd, BulkJob, Bulks, Census, Controls, Counts, DeadLetter, Forecast, Health, InFlight, LaneError,
    ListPage, Listed, Listing, Loaded, LoadedTimer, Page, Pending, PendingPage, Place, Progress, Record,
    Taken, Unconfirmed,
};
use mtimer_types::{
    Bulk, BulkAction, BulkId, DeadReason, Destination, DueSpan, Epoch, Filter, PartitionId, Target, Time,
    Timer, TimerId,
};

use super::backend::{Acquired, Backend, Known};
use super::input::Program;
use super::world::{World, dest};

/// Runs a program against a store that may say anything.
pub(crate) fn any_answers(data: &[u8]) {
    let mut program = Program::new(data);
    let mut world = World::new(Anything { epoch: 0 }, &mut program);
    for _ in 0..4 {
        world.new_timer(&mut program);
    }
    world.run(&mut program);
    world.stop(&mut program);
}

struct Anything {
    epoch: u64,
}

impl Backend for Anything {
    type Open = Call;

    fn acquire(&mut self, at: PartitionId, known: &Known, program: &mut Program<'_>) -> Option<Acquired> {
        self.epoch += 1;
        let timers = known.of(at);
        let left = |program: &mut Program<'_>| {
            let id = program.pick(&timers)?.id;
            let (attempt, session) = (u32::from(program.byte() % 4), u128::from(program.byte() % 3));
            Some(InFlight { id, attempt, session, until: near(known, program) })
        };
        let in_flight = (0..program.below(3)).filter_map(|_| left(program)).collect();
        Some(Acquired { epoch: Epoch(self.epoch), prior_claim: near(known, program), in_flight })
    }

    fn call(&mut self, _: PartitionId, call: Call) -> Call {
        call
    }

    fn answer(
        &mut self,
        at: PartitionId,
        call: Call,
        known: &Known,
        program: &mut Program<'_>,
    ) -> Result<Result<CallAnswer, LaneError>, Call> {
        let content = Content { timers: known.of(at), known, epoch: self.epoch };
        Ok(Ok(content.answer(call, program)))
    }

    fn disturb(&mut self, at: PartitionId, program: &mut Program<'_>) -> Option<Health> {
        let (stored, ours) = (Epoch(self.epoch + 1), Epoch(self.epoch));
        Some(match program.byte() % 8 {
            0..=2 => Health::Down("away".to_owned()),
            3..=5 => Health::Up,
            6 => Health::Ended(LaneError::Fenced { partition: at, stored, ours }),
            _ => Health::Ended(LaneError::RolledBack(at)),
        })
    }

    fn ended(&mut self, _: PartitionId, _: VecDeque<Call>) {}

    fn delivered(&mut self, _: &Known, _: &Delivery) {}
}

/// A time around the present.
pub(super) fn near(known: &Known, program: &mut Program<'_>) -> Time {
    let byte = u64::from(program.byte());
    match byte % 4 {
        0 => Time::ZERO,
        1 => known.now.time - byte * 4,
        2 => known.now.time + byte * 4,
        _ => known.now.time + byte * 64,
    }
}

/// What there is to answer with.
pub(super) struct Content<'a> {
    timers: Vec<Arc<Timer>>,
    known: &'a Known,
    epoch: u64,
}

impl Content<'_> {
    fn answer(&self, call: Call, program: &mut Program<'_>) -> CallAnswer {
        match call {
            Call::Apply(batch) => {
                CallAnswer::Apply(batch.ops.iter().map(|op| self.applied(op, program)).collect())
            }
            Call::Load(load) => {
                let timer = |program: &mut Program<'_>| {
                    let record = self.record(program)?;
                    let (fire, byte) = (near(self.known, program), program.byte());
                    Some(LoadedTimer { record, fire, tier: byte >> 1, covered: byte & 1 == 1 })
                };
                let timers = (0..program.below(5)).filter_map(|_| timer(program)).collect();
                let horizon = if program.flag() { near(self.known, program) } else { load.until };
                let is_claim_unconfirmed = load.claim.is_some() && horizon < load.until;
                CallAnswer::Load(Loaded { timers, horizon, is_claim_unconfirmed })
            }
            Call::Unload(_) => CallAnswer::Unload,
            Call::Get(target) => CallAnswer::Get(self.get(&target, program)),
            Call::ParkedDestinations => {
                let counted = |n| (dest(n), u64::from(program.byte() % 4));
                CallAnswer::ParkedDestinations((0..2).map(counted).collect())
            }
            Call::List(listing) => CallAnswer::List(self.page(&listing, program)),
            Call::Pending(range) => CallAnswer::Pending(self.pending(range.limit, program)),
            Call::Counts(range) => {
                let counted = |n| (dest(n), Counts { pending: program.byte().into(), ..Counts::default() });
                let counts: Vec<_> = (0..2).map(counted).collect();
                CallAnswer::Counts(range.page(counts, program.byte().into()))
            }
            Call::Forecast(_) => {
                let begin = near(self.known, program);
                let span = DueSpan { begin, end: begin + 60_000, timers: program.byte().into() };
                let next = program.flag().then_some((begin, TimerId::from_u128(0)));
                CallAnswer::Forecast(Forecast { spans: vec![span], next, uncounted: program.byte().into() })
            }
            Call::Controls => CallAnswer::Controls(self.controls(program).into()),
            Call::Census => {
                CallAnswer::Census(Census { pending: program.byte().into(), ..Census::default() })
            }
            Call::Release(_) => CallAnswer::Release,
        }
    }

    fn controls(&self, program: &mut Program<'_>) -> Controls {
        Controls { bulks: Bulks::stored(self.bulks(program)), ..Controls::default() }
    }

    /// Jobs that are at work, or have ended.
    fn bulks(&self, program: &mut Program<'_>) -> Vec<BulkJob> {
        let job = |program: &mut Program<'_>, number| {
            let action = program.one([
                BulkAction::Cancel,
                BulkAction::Shift { ms: -5 },
                BulkAction::Replay,
                BulkAction::Purge,
            ]);
            let bulk = Bulk { dry_run: program.flag(), ..Bulk::new(action, Filter::default()) };
            let job = BulkJob::new(number, BulkId(number.into()), bulk, self.known.now.time);
            let ended = program.flag().then_some((self.known.now.time, BulkEnd::Stopped));
            BulkJob { ended, ..job }
        };
        (1..=program.below(3) as u32).map(|number| job(program, number)).collect()
    }

    pub(super) fn known(&self) -> &Known {
        self.known
    }

    fn page(&self, listing: &Listing, program: &mut Program<'_>) -> ListPage {
        let most = listing.limit as usize;
        match &listing.of {
            Listed::Parked(dest) => ListPage::Parked(self.parked(dest, listing.limit, program)),
            Listed::Dead(_) => {
                let row = |program: &mut Program<'_>| {
                    let (record, died) = (self.record(program)?, near(self.known, program));
                    Some(DeadLetter { record, reason: DeadReason::Stopped, died })
                };
                let rows = (0..program.below(3).min(most)).filter_map(|_| row(program)).collect();
                ListPage::Dead(Page { rows, next: next(program) })
            }
            Listed::Taken => {
                let row = |program: &mut Program<'_>| {
                    let (record, epoch) = (self.record(program)?, self.taken_by(program));
                    Some(Taken { record, epoch })
                };
                let rows = (0..program.below(4).min(most)).filter_map(|_| row(program)).collect();
                ListPage::Taken(Page { rows, next: next(program) })
            }
            Listed::Unconfirmed => {
                let row = |program: &mut Program<'_>| {
                    let (record, epoch) = (self.record(program)?, self.taken_by(program));
                    Some(Unconfirmed { record, epoch, since: near(self.known, program) })
                };
                let rows = (0..program.below(4).min(most)).filter_map(|_| row(program)).collect();
                ListPage::Unconfirmed(Page { rows, next: next(program) })
            }
        }
    }

    fn pending(&self, limit: u32, program: &mut Program<'_>) -> PendingPage {
        let row = |program: &mut Program<'_>| {
            let (record, fire) = (self.record(program)?, near(self.known, program));
            Some(Pending { record, fire, tier: program.byte() % 4 })
        };
        let rows: Vec<Pending> =
            (0..program.below(4).min(limit as usize)).filter_map(|_| row(program)).collect();
        let next = rows.last().map(Pending::next).filter(|_| program.flag());
        PendingPage { rows, next }
    }

    /// Who took a timer: this owner or the one before.
    fn taken_by(&self, program: &mut Program<'_>) -> Epoch {
        Epoch(self.epoch.saturating_sub(u64::from(program.byte() & 1)))
    }

    pub(super) fn id(&self, program: &mut Program<'_>) -> Option<TimerId> {
        program.pick(&self.timers).map(|t| t.id)
    }

    /// The timer that a target names, or, of a key, any.
    pub(super) fn named(&self, target: &Target, program: &mut Program<'_>) -> Option<TimerId> {
        match target {
            Target::Id(id) => Some(*id),
            Target::Key(..) => self.id(program),
        }
    }

    fn record(&self, program: &mut Program<'_>) -> Option<Record> {
        let timer = program.pick(&self.timers)?.clone();
        Some(self.with_progress(timer, program))
    }

    fn with_progress(&self, timer: Arc<Timer>, program: &mut Program<'_>) -> Record {
        let byte = program.byte();
        let progress = Progress {
            failed: [0, 0, 1, 2][usize::from(byte % 4)],
            budget_from: u32::from(byte >> 2 & 1),
            stopped: byte & 0x30 == 0x30,
            fresh: (byte & 8 != 0).then_some(Epoch(self.epoch)),
            last_error: None,
        };
        // It may have been moved to another time.
        let due = if byte & 0x40 == 0 { timer.due } else { near(self.known, program) };
        Record { progress, ..Record::new(Arc::new(Timer { due, ..(*timer).clone() })) }
    }

    fn get(&self, target: &Target, program: &mut Program<'_>) -> Option<(Record, Place)> {
        let byte = program.byte();
        let id = self.named(target, program)?;
        let timer = self.timers.iter().find(|t| t.id == id)?.clone();
        let record = self.with_progress(timer, program);
        let epoch = Epoch(self.epoch.saturating_sub(u64::from(byte >> 5 & 1)));
        let place = match byte % 8 {
            0 => return None,
            1..=3 => Place::Pending { fire: near(self.known, program), tier: byte / 64 },
            4 => Place::Parked,
            5 => Place::Taken { epoch, unconfirmed: false },
            6 => Place::Taken { epoch, unconfirmed: true },
            _ => Place::Dead,
        };
        Some((record, place))
    }

    fn parked(&self, dest: &Destination, limit: u32, program: &mut Program<'_>) -> Page<Record> {
        let of: Vec<_> = self.timers.iter().filter(|t| t.dest == *dest).cloned().collect();
        let count = program.below(4).min(limit as usize);
        let mut rows: Vec<Record> = Vec::new();
        for _ in 0..count {
            let Some(timer) = program.pick(&of).cloned() else { break };
            if rows.iter().all(|row| row.timer.id != timer.id) {
                rows.push(self.with_progress(timer, program));
            }
        }
        Page { rows, next: next(program) }
    }
}

fn next(program: &mut Program<'_>) -> Option<u64> {
    (program.byte() % 4 == 1).then_some(7)
}
