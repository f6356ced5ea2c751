//! How an owner reads and writes its partition: each write exactly once and in order, despite all
//! failures on the way.
//!
//! Every write carries the owner's epoch and nonce, the sequence number that must be stored before
//! it, and the one that is stored with it. The handling of a lost answer rests on this:
//!
//! - At most one write is under way, and its content never changes for as long as it may still
//!   arrive. So it is sent again as it is, until the stored number says that it was applied, or the
//!   server says that it was not.
//! - A write of which a copy may still be on its way, or was cut off half way, is completed, also
//!   by a store that is full: otherwise a part of it would stay, or arrive behind the refusal.
//! - A stored number below ours means that the store lost writes: a replica that lagged was
//!   promoted, or a server restarted from an older file. The log applies them again. If it does not
//!   reach back so far the lane ends.
//!
//! Reads carry the numbers, too: a result counts only if they are the stored ones, so decisions
//! never rest on a server that has lost writes.
//!
//! Not in here: the contents of reads and writes ([`super::turn`]).

use std::sync::Arc;
use std::time::Duration;

use mtimer_store::{Health, LaneError, Refusal};
use mtimer_types::{Epoch, limits};
use redis::{Cmd, Pipeline, Value};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::identity::WriterIdentity;
use super::log::{Log, LogRecord};
use super::master::{Master, Unanswered};
use super::shortage::{LastWait, Quorum};
use super::writes::Writes;
use crate::wire::{Confirmed, Network, Remedy, Reply, RetryPauses, Script, Wanted, alone, numbers, remedy};

/// How long it may take to read the state that the next owner has found.
const UNSEEN_WITHIN: Duration = Duration::from_secs(1);

/// The result of one command of [`Writes`] that takes members out of a collection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TakenOut {
    /// The number that [`Writes::take_out`] returned.
    pub(crate) command: usize,
    /// Members that were there.
    pub(crate) removed: u64,
    /// Members that are left.
    pub(crate) left: u64,
}

/// The outcome of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Written {
    /// It was applied.
    Applied(Vec<TakenOut>),
    /// It was applied, and the answer was lost.
    Unreported,
    /// It was not applied and will not be.
    Refused(Refusal),
}

/// See the module.
pub(crate) struct PartitionWriter {
    master: Master,
    identity: WriterIdentity,
    /// The stored sequence number.
    seq: u64,
    log: Arc<Log>,
    quorum: Option<Quorum>,
    last_wait: LastWait,
    health: watch::Sender<Health>,
    backoff: RetryPauses,
    /// Attempts since something worked.
    failures: u32,
    /// Since when the store is away; `None`: it is not.
    away_since: Option<Instant>,
    /// The present reads may be given up if the store is away: no write is in doubt, and nobody
    /// depends on them.
    may_give_up: bool,
    gave_up: bool,
    /// Cancelled when the lane's handle is dropped.
    abandoned: CancellationToken,
}

/// The result of one attempt to write.
enum AttemptResult {
    Applied(Vec<TakenOut>),
    /// This number is stored, and nothing was written.
    Stored(u64),
    Refused(Refusal),
    /// There is no connection, so it was not applied; try again. Why.
    NotSent(String),
    /// It was not applied; try again. Why.
    Again(String),
    /// Nobody knows whether it was or will be applied, in whole or in part. Why.
    Unknown(String),
}

impl PartitionWriter {
    pub(crate) fn new(
        network: Arc<dyn Network>,
        identity: WriterIdentity,
        seq: u64,
        log: Arc<Log>,
        quorum: Option<Quorum>,
        health: watch::Sender<Health>,
        abandoned: CancellationToken,
    ) -> Self {
        let backoff = RetryPauses::new(identity.nonce.0);
        let last_wait = LastWait::new(quorum.as_ref(), identity.partition);
        Self {
            master: Master::new(network, identity.hash_slot),
            identity,
            seq,
            log,
            quorum,
            last_wait,
            health,
            backoff,
            failures: 0,
            away_since: None,
            may_give_up: false,
            gave_up: false,
            abandoned,
        }
    }

    pub(crate) const fn identity(&self) -> &WriterIdentity {
        &self.identity
    }

    /// Whether the partition's server may evict keys.
    pub(crate) fn may_evict(&self) -> bool {
        self.master.may_evict()
    }

    /// The partition's log.
    pub(crate) const fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// Tells the watchers of the health that the lane has ended.
    pub(crate) fn set_ended(&self, why: &LaneError) {
        self.health.send_replace(Health::Ended(why.clone()));
    }

    /// Sets whether reads give up once the store has been away for [`limits::AWAY_MS`]; returns the
    /// former setting. A read that gives up fails with [`LaneError::Closed`] although the lane goes
    /// on: [`PartitionWriter::take_gave_up`] tells the two apart.
    pub(crate) const fn set_may_give_up(&mut self, may_give_up: bool) -> bool {
        std::mem::replace(&mut self.may_give_up, may_give_up)
    }

    /// Whether reading was given up since this was last asked.
    pub(crate) const fn take_gave_up(&mut self) -> bool {
        std::mem::replace(&mut self.gave_up, false)
    }

    /// Whether the store is known to be away.
    pub(crate) fn is_down(&self) -> bool {
        matches!(*self.health.borrow(), Health::Down(_))
    }

    /// Whether the store has been away for so long that clients are better told.
    fn is_away(&self) -> bool {
        self.away_since.is_some_and(|since| since.elapsed() >= Duration::from_millis(limits::AWAY_MS))
    }

    /// Reads a consistent state: reads again until the owner record, read behind it, has our epoch,
    /// nonce and sequence number.
    ///
    /// # Errors
    ///
    /// The lane has ended.
    pub(crate) async fn read(&mut self, reads: &Pipeline) -> Result<Vec<Value>, LaneError> {
        loop {
            let mut values = self.ask(reads, WriterIdentity::read).await?;
            let stored = values.pop().unwrap_or_default();
            match self.identity.stored_seq(stored.items()) {
                Ok(seq) if seq == self.seq => {
                    self.mark_up();
                    return Ok(values);
                }
                #[cfg(feature = "test-support")]
                _ if crate::test_support::fence_is_cut() => return Ok(values),
                Ok(_) if broken!(UnguardedReads) => return Ok(values),
                // A server that is no master any more answers reads, too: the master decides.
                _ => _ = self.read_as_owner(&Pipeline::new()).await?,
            }
        }
    }

    /// [`Self::read`] with one command for each key.
    ///
    /// # Errors
    ///
    /// The lane has ended.
    pub(crate) async fn read_each(
        &mut self,
        command: &str,
        keys: impl IntoIterator<Item = String>,
    ) -> Result<Vec<Value>, LaneError> {
        let mut reads = Pipeline::new();
        keys.into_iter().for_each(|key| _ = reads.cmd(command).arg(key));
        self.read(&reads).await
    }

    /// Reads, and has the master confirm that the partition is still ours: for answers that rest on
    /// nothing that is written.
    ///
    /// # Errors
    ///
    /// The lane has ended.
    pub(crate) async fn read_as_owner(&mut self, reads: &Pipeline) -> Result<Vec<Value>, LaneError> {
        let values = self.read_and_catch_up(reads).await?;
        self.mark_up();
        Ok(values)
    }

    /// Reads as the owner, and applies lost writes again.
    async fn read_and_catch_up(&mut self, reads: &Pipeline) -> Result<Vec<Value>, LaneError> {
        loop {
            let nothing = LogRecord { seq: self.seq, next: self.seq, writes: Arc::default() };
            let confirm = |identity: &WriterIdentity| identity.command(&nothing, Script::ApplyFreeing);
            let mut values = self.ask(reads, confirm).await?;
            match self.outcome(&values.pop().unwrap_or_default())? {
                AttemptResult::Stored(seq) => self.catch_up(seq, None).await?,
                _ => return Ok(values),
            }
        }
    }

    /// Sends reads, and `last` behind them, until all are answered.
    async fn ask(
        &mut self,
        reads: &Pipeline,
        last: impl Fn(&WriterIdentity) -> Cmd + Send + Sync,
    ) -> Result<Vec<Value>, LaneError> {
        loop {
            let identity = &self.identity;
            let commands = || {
                let mut commands = reads.clone();
                commands.add_command(last(identity));
                commands
            };
            let why = match self.master.send(commands).await {
                Ok(values) => match values.iter().find_map(Reply::refusal) {
                    None => return Ok(values),
                    Some(error) => {
                        let remedy = remedy(&error, self.master.address());
                        self.master.apply_remedy(remedy, error).await?
                    }
                },
                Err(Unanswered { why, .. }) => why,
            };
            self.pause(&why).await?;
            if self.may_give_up && self.is_away() {
                self.gave_up = true;
                return Err(LaneError::Closed);
            }
        }
    }

    /// Waits until as many replicas as the durability level asks for have everything that the store
    /// has; false if they do not in time.
    ///
    /// # Errors
    ///
    /// The lane has ended.
    pub(crate) async fn wait_for_replicas(&mut self) -> Result<bool, LaneError> {
        let mut confirmed = self.ask_replicas().await;
        if confirmed.is_none() {
            // It went to a server that has lost something, or is not the master any more. This does
            // not mark the store as up: the caller asks for the confirmation.
            self.read_and_catch_up(&Pipeline::new()).await?;
            confirmed = self.ask_replicas().await;
        }
        if confirmed.is_none() {
            self.read_and_catch_up(&Pipeline::new()).await?;
        }
        Ok(confirmed.unwrap_or(false))
    }

    /// [`Self::wait_for_replicas`], once. `None`: the server that was asked does not have the
    /// writes, or cannot be asked.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(crate) async fn ask_replicas(&mut self) -> Option<bool> {
        let Some(Quorum { confirmations, replicas, .. }) = self.quorum.clone() else { return Some(true) };
        let (wanted, query) = (Wanted::Replicas(replicas), self.identity.query());
        let confirmed = confirmations.confirm(self.identity.hash_slot, wanted, query).await.ok();
        let is_ours =
            |confirmed: &Confirmed| self.identity.stored_seq(confirmed.read.items()) == Ok(self.seq);
        let confirmed = confirmed.filter(is_ours).map(|confirmed| confirmed.replicas >= replicas);
        self.last_wait.note(confirmed != Some(true));
        confirmed
    }

    /// Whether replicas did not confirm when they were last waited for. `None`: they never were.
    pub(crate) fn is_short(&self) -> Option<bool> {
        if self.quorum.is_some() { self.last_wait.is_short() } else { Some(false) }
    }

    /// Writes, exactly once. Nothing of it was written if it is refused.
    ///
    /// # Errors
    ///
    /// The lane has ended.
    pub(crate) async fn write(&mut self, writes: Writes) -> Result<Written, LaneError> {
        let mut script = if writes.adds() { Script::Apply } else { Script::ApplyFreeing };
        if broken!(FreeingRefused) {
            script = Script::Apply;
        }
        let record = LogRecord { seq: self.seq, next: self.seq + 1, writes: Arc::new(writes) };
        let mut in_doubt = false;
        loop {
            let why = match self.attempt(&record, script).await? {
                AttemptResult::Applied(taken_out) => {
                    self.applied(record);
                    return Ok(Written::Applied(taken_out));
                }
                AttemptResult::Stored(seq) if in_doubt && seq == record.next => {
                    self.applied(record);
                    return Ok(Written::Unreported);
                }
                AttemptResult::Stored(seq) => {
                    self.catch_up(seq, in_doubt.then_some(record.next)).await?;
                    continue;
                }
                AttemptResult::Refused(refusal) => return Ok(Written::Refused(refusal)),
                AttemptResult::NotSent(why) => {
                    self.pause(&why).await?;
                    if !in_doubt && script == Script::Apply && self.is_away() {
                        return Ok(Written::Refused(Refusal::ReadOnly));
                    }
                    continue;
                }
                AttemptResult::Again(why) => why,
                AttemptResult::Unknown(why) => {
                    if broken!(WriteGivenUp) {
                        return Ok(Written::Refused(Refusal::ReadOnly));
                    }
                    in_doubt = true;
                    // It is completed now, also if the store is full.
                    script = Script::ApplyFreeing;
                    if broken!(RefusedAfterDoubt) && record.writes.adds() {
                        script = Script::Apply;
                    }
                    why
                }
            };
            self.pause(&why).await?;
        }
    }

    /// Applies again the writes that the store has lost: everything above the number that it has. A
    /// copy of the write that is in doubt may arrive meanwhile; it leads to the number `in_doubt`.
    async fn catch_up(&mut self, stored: u64, in_doubt: Option<u64>) -> Result<(), LaneError> {
        if broken!(NoLog) {
            return Err(LaneError::RolledBack(self.identity.partition));
        }
        let in_doubt = in_doubt.filter(|_| !broken!(NoCopyDuringReplay));
        let mut stored = stored;
        while stored != self.seq && Some(stored) != in_doubt {
            let Some(records) = self.log.begin_replay(stored) else {
                self.log_loss(self.identity.epoch, stored);
                return Err(LaneError::RolledBack(self.identity.partition));
            };
            self.log.incidents().replay(self.identity.partition, records.len());
            for record in records {
                stored = self.repeat(&record).await?;
                if stored != record.next {
                    break;
                }
            }
        }
        self.log.finish_replay();
        Ok(())
    }

    /// Logs that the log cannot restore the writes that the store lost.
    fn log_loss(&self, stored_epoch: Epoch, stored_seq: u64) {
        let (stored, ours) = ((stored_epoch, stored_seq), (self.identity.epoch, self.seq));
        self.log.incidents().loss(self.identity.partition, stored, ours);
    }

    /// Applies one record again. The number that is stored afterwards.
    async fn repeat(&mut self, record: &LogRecord) -> Result<u64, LaneError> {
        loop {
            let why = match self.attempt(record, Script::ApplyFreeing).await? {
                AttemptResult::Applied(_) => {
                    self.log.count_replayed();
                    return Ok(record.next);
                }
                AttemptResult::Stored(seq) => return Ok(seq),
                AttemptResult::Refused(refusal) => refusal.to_string(),
                AttemptResult::NotSent(why) | AttemptResult::Again(why) | AttemptResult::Unknown(why) => why,
            };
            self.pause(&why).await?;
        }
    }

    fn applied(&mut self, record: LogRecord) {
        self.seq = record.next;
        self.log.push(record);
        self.mark_up();
    }

    async fn attempt(&mut self, record: &LogRecord, script: Script) -> Result<AttemptResult, LaneError> {
        let identity = &self.identity;
        let commands = || alone(identity.command(record, script));
        let answer = match self.master.send(commands).await {
            Ok(mut values) => values.pop().unwrap_or_default(),
            Err(Unanswered { may_have_run: false, why }) => return Ok(AttemptResult::NotSent(why)),
            Err(Unanswered { why, .. }) => return Ok(AttemptResult::Unknown(why)),
        };
        let Some(error) = answer.refusal() else { return self.outcome(&answer) };
        match remedy(&error, self.master.address()) {
            Remedy::OutOfMemory if script == Script::Apply => {
                Ok(AttemptResult::Refused(Refusal::OutOfMemory))
            }
            remedy @ Remedy::NoWrites if script == Script::Apply => {
                self.master.apply_remedy(remedy, error).await?;
                Ok(AttemptResult::Refused(Refusal::ReadOnly))
            }
            // A hash slot that is being migrated may have cut the script off.
            remedy @ Remedy::Wait => {
                self.master.apply_remedy(remedy, error).await.map(AttemptResult::Unknown)
            }
            remedy => self.master.apply_remedy(remedy, error).await.map(AttemptResult::Again),
        }
    }

    /// Decodes the script's answer.
    fn outcome(&self, answer: &Value) -> Result<AttemptResult, LaneError> {
        let (kind, fields) = answer.items().split_first().unwrap_or((&Value::Nil, &[]));
        match kind.text() {
            Some("OK") => {
                let taken_out = fields.chunks(3).map(|some| {
                    let [command, removed, left] = numbers(some);
                    TakenOut { command: command as usize, removed, left }
                });
                Ok(AttemptResult::Applied(taken_out.collect()))
            }
            Some("SEQ") => self.stored_seq(fields).map(AttemptResult::Stored),
            _ => Err(LaneError::Broken("the script apply gave an answer that cannot be read".into())),
        }
    }

    /// The stored sequence number, if the partition is still ours.
    fn stored_seq(&self, record: &[Value]) -> Result<u64, LaneError> {
        let stored = self.identity.stored_seq(record);
        if let Err(LaneError::RolledBack(_)) = stored {
            let [epoch, _, seq] = numbers(record);
            self.log_loss(Epoch(epoch), seq);
        }
        stored
    }

    /// Logs a loss if the owner that has the partition now did not find all our writes: a replica
    /// without them was promoted before it acquired the partition, and the log cannot add them to
    /// another's. Logs nothing if there was another owner in between, or the store does not answer
    /// in time.
    pub(crate) async fn report_unseen(&mut self) {
        let identity = &self.identity;
        let commands = || alone(identity.read_before());
        let Ok(Ok(values)) = timeout(UNSEEN_WITHIN, self.master.send(commands)).await else { return };
        let record = values.first().map_or(&[][..], |record| record.items());
        if let Some((epoch, seq)) = unseen(record, (identity.epoch, self.seq)) {
            self.log_loss(epoch, seq);
        }
    }

    /// Records that the store carried out a request.
    pub(crate) fn mark_up(&mut self) {
        self.backoff.reset();
        self.failures = 0;
        self.away_since = None;
        if *self.health.borrow() != Health::Up {
            tracing::debug!(partition = self.identity.partition.0, "the store answers again");
            self.health.send_replace(Health::Up);
        }
    }

    /// Waits before another attempt. The first one is made at once and quietly: a connection may
    /// have been idle for too long.
    pub(crate) async fn pause(&mut self, why: &str) -> Result<(), LaneError> {
        if self.abandoned.is_cancelled() {
            return Err(LaneError::Closed);
        }
        self.failures += 1;
        self.away_since.get_or_insert_with(Instant::now);
        if self.failures == 1 {
            return Ok(());
        }
        if *self.health.borrow() == Health::Up {
            tracing::debug!(partition = self.identity.partition.0, why, "the store does not answer");
            self.health.send_replace(Health::Down(why.to_owned()));
        }
        self.backoff.wait().await;
        Ok(())
    }
}

/// The epoch and sequence number that the next owner has found, if it has not found all of `ours`.
/// A reply that has not both, such as a redirection, says nothing.
fn unseen(found: &[Value], ours: (Epoch, u64)) -> Option<(Epoch, u64)> {
    let [epoch, seq] = [0, 1].map(|at| found.get(at).and_then(Reply::number));
    Some((Epoch(epoch?), seq?)).filter(|found| *found < ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_owner_record_says_that_writes_are_unseen() {
        let record = |text: &str| redis::parse_redis_value(text.replace(' ', "\r\n").as_bytes()).unwrap();
        let of = |text: &str| unseen(record(text).items(), (Epoch(7), 3));
        assert_eq!(of("*2 $1 7 $1 2 "), Some((Epoch(7), 2)));
        assert_eq!(of("*2 $1 6 $1 9 "), Some((Epoch(6), 9)));
        for nothing in ["*2 $1 7 $1 3 ", "*2 $1 8 $1 0 ", "*2 $-1 $-1 ", "-MOVED 7 h:1 ", "*1 $1 6 "] {
            assert_eq!(of(nothing), None, "{nothing}");
        }
    }
}
