//! The work on the bulk jobs of one partition: what is to be read, acted on or stored next.
//!
//! Of each kind of timers, live and retained, one job is at work at a time
//! ([`mtimer_store::bulk`]), each by a [`Worker`] of its own. It reads a page, has the store act on
//! what its job wants of it, a portion at a time, and then has it store where the job goes on. After
//! a takeover the next owner reads on from there: the marks in the store say what is done.
//!
//! Not in here: calls, operations, memory (`bulk`).

use std::collections::VecDeque;

use mtimer_store::ops::BulkAdvance;
use mtimer_store::table::Row;
use mtimer_store::{BulkEnd, BulkJob, BulkPlace, Bulks, DeadFilter, Listed, Listing, PendingRange, Position};
use mtimer_types::{Destination, PartitionId, Time, TimerId};

/// Timers of one page of pending ones at most: it is read as a list's is ("Finding and counting" in
/// the performance notes).
const PENDING_PAGE: u32 = 4_000;
/// The same of other pages.
const LIST_PAGE: u32 = 500;
/// Timers of one portion at most: others wait behind it for about as many times 10 µs ("Bulk jobs"
/// in the performance notes).
const PORTION: usize = 256;
/// Pause after the store would not take something, ms.
const REFUSED_MS: u64 = 1_000;
/// Pause after it was too full for an act, ms. It may stay so for hours; then one timer is tried.
const FULL_MS: u64 = 10_000;

/// Which timers a job is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BulkKind {
    Live,
    Retained,
}

impl BulkKind {
    pub(super) const ALL: [Self; 2] = [Self::Live, Self::Retained];

    fn is_live(self) -> bool {
        self == Self::Live
    }
}

/// What is to be done next for a job.
#[derive(Debug)]
pub(super) enum BulkStep {
    /// Pending timers are read.
    ReadPending(PendingRange),
    /// It is asked for which destinations timers are parked.
    ReadParks,
    /// A page of a listing is read.
    ReadList(Listing),
    /// A job acts on these.
    Act { number: u32, adds: bool, ids: Vec<TimerId> },
    /// The job goes on elsewhere.
    Advance(BulkAdvance),
}

/// The bulk jobs of one partition.
#[derive(Debug, Default)]
pub(super) struct BulkWork {
    jobs: Bulks,
    live: Worker,
    retained: Worker,
}

/// The work on the job of one kind.
#[derive(Debug, Default)]
struct Worker {
    /// The job that it is at.
    number: u32,
    stage: Stage,
    /// Destinations whose parks are to be looked through. `None`: to be asked for.
    parks: Option<VecDeque<Destination>>,
    /// Where a listing goes on.
    cursor: u64,
    /// What a dry run has met since the job last went on.
    met: u64,
    /// When the store may be read again after it would not take something, monotonic ms.
    reads_at: u64,
    /// When the rate allows the next portion, monotonic ms.
    acts_at: u64,
    /// When a store that was too full for an act is tried again, monotonic ms; 0: it was not.
    full_until: u64,
}

#[derive(Debug, Default)]
enum Stage {
    /// A page is to be read.
    #[default]
    Reads,
    /// A page was asked for.
    Reading,
    /// Timers of a page are to be acted on.
    Acts(Acting),
    /// It is being stored where the job goes on.
    Advancing,
}

/// The timers of a page that a job wants.
#[derive(Debug)]
struct Acting {
    waiting: VecDeque<TimerId>,
    /// On their way to the store.
    out: usize,
    /// The store would not take one.
    is_refused: bool,
    then: AfterPage,
}

/// What follows when a page is done.
#[derive(Clone, Copy, Debug)]
enum AfterPage {
    /// The next page of the same listing.
    Cursor(u64),
    /// The next park.
    NextPark,
    /// The job goes on there.
    Place(BulkPlace),
}

impl BulkWork {
    /// Takes in the jobs as they are stored.
    pub(super) fn learn(&mut self, jobs: Bulks) {
        self.jobs = jobs;
    }

    /// The jobs that are kept, as far as is known. Their counts are not.
    pub(super) fn jobs(&self) -> &[BulkJob] {
        self.jobs.all()
    }

    /// Whether a job is at work, or an answer for one is awaited.
    pub(super) fn has_work(&self) -> bool {
        BulkKind::ALL.into_iter().any(|kind| self.job(kind).is_some() || self.worker(kind).is_busy())
    }

    /// How many of its workers wait for the store.
    pub(super) fn busy(&self) -> usize {
        BulkKind::ALL.into_iter().filter(|kind| self.worker(*kind).is_busy()).count()
    }

    /// When the next step may be made, monotonic ms.
    pub(super) fn wake_at(&self) -> Option<u64> {
        let ready = |kind: &BulkKind| self.job(*kind).is_some() && !self.worker(*kind).is_busy();
        BulkKind::ALL.into_iter().filter(ready).map(|kind| self.worker(kind).ready_at()).min()
    }

    /// The park that is being looked through.
    pub(super) fn park(&self) -> Option<&Destination> {
        let job = self.job(BulkKind::Live)?;
        self.live.parks.as_ref()?.front().filter(|_| job.at == BulkPlace::Parked)
    }

    /// Returns what is to be done next for the job of a kind, if anything is to be done at
    /// `mono_ms`. The worker is busy from then on. `partitions`: of the cluster, which share a
    /// job's rate; they begin one after the other.
    pub(super) fn next(
        &mut self,
        kind: BulkKind,
        mono_ms: u64,
        at: PartitionId,
        partitions: u16,
    ) -> Option<BulkStep> {
        let job = self.jobs.at_work(kind.is_live())?;
        let worker = match kind {
            BulkKind::Live => &mut self.live,
            BulkKind::Retained => &mut self.retained,
        };
        if worker.number != job.number && !worker.is_busy() {
            let turn = (u64::from(at.0) * 1_000).checked_div(job.bulk.rate.into()).unwrap_or(0);
            *worker = Worker { number: job.number, acts_at: mono_ms + turn, ..Worker::default() };
        }
        loop {
            if mono_ms < worker.ready_at() {
                return None;
            }
            match &mut worker.stage {
                Stage::Reading | Stage::Advancing => return None,
                Stage::Reads => return Some(worker.read(job)),
                Stage::Acts(acting) if acting.out > 0 => return None,
                Stage::Acts(acting) if acting.is_refused => {
                    worker.reads_at = mono_ms + REFUSED_MS;
                    worker.stage = Stage::Reads;
                }
                Stage::Acts(acting) if acting.waiting.is_empty() => {
                    let then = acting.then;
                    worker.stage = Stage::Reads;
                    match then {
                        AfterPage::Cursor(cursor) => worker.cursor = cursor,
                        AfterPage::NextPark => worker.leave_park(),
                        AfterPage::Place(to) => return Some(worker.advance(job.number, to)),
                    }
                }
                Stage::Acts(acting) => {
                    let rate = u64::from(job.bulk.rate);
                    let most = if worker.full_until > 0 { 1 } else { portion(rate, partitions) };
                    let portion = most.min(acting.waiting.len());
                    acting.out = portion;
                    let ids = acting.waiting.drain(..portion).collect();
                    let pause = (portion as u64 * 1_000 * u64::from(partitions)).checked_div(rate);
                    worker.acts_at = mono_ms + pause.unwrap_or(0);
                    let adds = job.bulk.action.adds();
                    return Some(BulkStep::Act { number: job.number, adds, ids });
                }
            }
        }
    }

    /// Takes in a page of pending timers.
    pub(super) fn pending_page(&mut self, rows: impl IntoIterator<Item = Row>, next: Option<Position>) {
        let is_of_staged = self.job(BulkKind::Live).is_some_and(|job| job.bulk.action.import().is_some());
        let last = if is_of_staged { BulkPlace::End } else { BulkPlace::Parked };
        let to = next.map_or(last, BulkPlace::Pending);
        self.page(BulkKind::Live, rows, AfterPage::Place(to));
    }

    /// Takes in for which destinations timers are parked.
    pub(super) fn parks(&mut self, dests: impl IntoIterator<Item = Destination>) {
        let job = self.jobs.at_work(true).filter(|job| job.number == self.live.number);
        self.live.begin_anew();
        if let Some(filter) = job.map(|job| &job.bulk.filter) {
            let dests = dests.into_iter().filter(|dest| filter.accepts_destination(dest));
            self.live.parks = Some(dests.collect());
        }
    }

    /// Takes in a page of parked or retained timers.
    pub(super) fn list_page(
        &mut self,
        kind: BulkKind,
        rows: impl IntoIterator<Item = Row>,
        next: Option<u64>,
    ) {
        let then = match (next, self.job(kind).map(|job| job.at)) {
            (Some(cursor), _) => AfterPage::Cursor(cursor),
            (None, Some(BulkPlace::Parked)) => AfterPage::NextPark,
            (None, Some(BulkPlace::Unconfirmed)) => AfterPage::Place(BulkPlace::Dead),
            (None, _) => AfterPage::Place(BulkPlace::End),
        };
        self.page(kind, rows, then);
    }

    /// The store has carried out an act.
    pub(super) fn acted(&mut self, kind: BulkKind) {
        let worker = self.worker_mut(kind);
        worker.full_until = 0;
        if let Stage::Acts(acting) = &mut worker.stage {
            acting.out = acting.out.saturating_sub(1);
        }
    }

    /// The store would not take an act. `undone`: it was too full to act on this timer; else it may
    /// have been done all the same.
    pub(super) fn refused(&mut self, kind: BulkKind, undone: Option<TimerId>, mono_ms: u64) {
        let worker = self.worker_mut(kind);
        if let Stage::Acts(acting) = &mut worker.stage {
            acting.out = acting.out.saturating_sub(1);
            match undone {
                Some(id) => {
                    acting.waiting.push_front(id);
                    worker.full_until = mono_ms + FULL_MS;
                }
                None => acting.is_refused = true,
            }
        }
    }

    /// The store has answered an advance: the job is there, unless it has ended.
    pub(super) fn advanced(&mut self, kind: BulkKind, now: Time, done: &BulkAdvance) {
        self.worker_mut(kind).begin_anew();
        self.jobs.change(done.number, |job| {
            job.at = done.to;
            if done.to == BulkPlace::End && job.ended.is_none() {
                job.ended = Some((now, BulkEnd::Done));
            }
        });
    }

    /// The store would not take an advance: what lies behind the job's place is read again.
    pub(super) fn not_advanced(&mut self, kind: BulkKind, mono_ms: u64) {
        let worker = self.worker_mut(kind);
        worker.begin_anew();
        worker.reads_at = mono_ms + REFUSED_MS;
    }

    fn page(&mut self, kind: BulkKind, rows: impl IntoIterator<Item = Row>, then: AfterPage) {
        let job = self.jobs.at_work(kind.is_live());
        let worker = match kind {
            BulkKind::Live => &mut self.live,
            BulkKind::Retained => &mut self.retained,
        };
        let Some(job) = job.filter(|job| job.number == worker.number) else { return worker.begin_anew() };
        let wanted = rows.into_iter().filter(|row| job.wants(row)).map(|row| row.id());
        let mut waiting = VecDeque::new();
        if job.bulk.dry_run {
            worker.met += wanted.count() as u64;
        } else {
            waiting.extend(wanted);
        }
        worker.stage = Stage::Acts(Acting { waiting, out: 0, is_refused: false, then });
    }

    fn job(&self, kind: BulkKind) -> Option<&BulkJob> {
        self.jobs.at_work(kind.is_live())
    }

    fn worker(&self, kind: BulkKind) -> &Worker {
        match kind {
            BulkKind::Live => &self.live,
            BulkKind::Retained => &self.retained,
        }
    }

    fn worker_mut(&mut self, kind: BulkKind) -> &mut Worker {
        match kind {
            BulkKind::Live => &mut self.live,
            BulkKind::Retained => &mut self.retained,
        }
    }
}

impl Worker {
    fn is_busy(&self) -> bool {
        match &self.stage {
            Stage::Reads => false,
            Stage::Reading | Stage::Advancing => true,
            Stage::Acts(acting) => acting.out > 0,
        }
    }

    /// When the next step may be made, monotonic ms, unless an answer is awaited.
    fn ready_at(&self) -> u64 {
        match &self.stage {
            Stage::Reads => self.reads_at,
            Stage::Acts(acting) if !acting.is_refused && !acting.waiting.is_empty() => {
                self.acts_at.max(self.full_until)
            }
            Stage::Reading | Stage::Advancing | Stage::Acts(_) => 0,
        }
    }

    /// The next step of a job that reads.
    fn read(&mut self, job: &BulkJob) -> BulkStep {
        let (bulk, cursor) = (&job.bulk, self.cursor);
        let step = match job.at {
            BulkPlace::Pending(from) => {
                let (filter, retrying) = (bulk.filter.clone(), bulk.retrying);
                let (until, limit) = (bulk.stored_range().1, PENDING_PAGE);
                BulkStep::ReadPending(PendingRange { filter, retrying, from, until, limit })
            }
            BulkPlace::Parked => match &self.parks {
                None => BulkStep::ReadParks,
                Some(parks) => match parks.front() {
                    Some(dest) => {
                        let of = Listed::Parked(dest.clone());
                        BulkStep::ReadList(Listing { of, cursor, limit: LIST_PAGE })
                    }
                    None => return self.advance(job.number, BulkPlace::End),
                },
            },
            BulkPlace::Dead => {
                let (group, app) = (bulk.filter.group.clone(), bulk.filter.app.clone());
                let of = Listed::Dead(DeadFilter { group, app });
                BulkStep::ReadList(Listing { of, cursor, limit: LIST_PAGE })
            }
            BulkPlace::Unconfirmed => {
                BulkStep::ReadList(Listing { of: Listed::Unconfirmed, cursor, limit: LIST_PAGE })
            }
            BulkPlace::End => return self.advance(job.number, BulkPlace::End),
        };
        self.stage = Stage::Reading;
        step
    }

    fn advance(&mut self, number: u32, to: BulkPlace) -> BulkStep {
        self.stage = Stage::Advancing;
        BulkStep::Advance(BulkAdvance { number, to, met: self.met })
    }

    /// A park was looked through.
    fn leave_park(&mut self) {
        self.cursor = 0;
        if let Some(parks) = &mut self.parks {
            parks.pop_front();
        }
    }

    /// The next page is read at the place of the job that is at work then.
    fn begin_anew(&mut self) {
        let Self { number, reads_at, acts_at, .. } = *self;
        *self = Self { number, reads_at, acts_at, ..Self::default() };
    }
}

/// Timers of one portion of a job with this rate, if so many partitions share it.
fn portion(rate: u64, partitions: u16) -> usize {
    // Ten portions a second, if it is not less than one timer each.
    match rate {
        0 => PORTION,
        rate => (rate / (10 * u64::from(partitions.max(1)))).clamp(1, PORTION as u64) as usize,
    }
}
