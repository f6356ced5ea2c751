//! What a lane does when an answer is lost.
//!
//! Purpose: finds the partition's master again, asks the owner record which scripts were applied and what they
//! answered, and shuts out whatever may still be on its way on an old connection (by raising `seq` far above it).
//! Scripts whose answers are not kept are sent again: they may be repeated.
//!
//! Invariant: nothing is sent in between, so what was applied is a prefix of what was sent.

use std::collections::HashMap;

use bytes::Bytes;
use mtimer_store::LaneError;
use tokio::time::Instant;

use crate::answer::{self, Said};
use crate::conn::{Conn, Lost};
use crate::fault::{Remedy, remedy};
use crate::lane::{Engine, broken};
use crate::resp::{Args, Reply};
use crate::script::Script;

/// How far `seq` is raised: farther than any lane has sent ahead.
const JUMP: u64 = 1 << 16;

/// What the recovery script has found.
struct Found {
    seq: u64,
    kept: HashMap<u64, Bytes>,
    confirmed: bool,
}

enum Attempt {
    Done(Found),
    Again(String),
}

impl Engine {
    /// Finds out what was applied; what was not is left to be sent again.
    pub(crate) async fn recover(&mut self, why: &str) -> Result<(), LaneError> {
        tracing::debug!(partition = self.partition.0, why, "finding out what was applied");
        self.asking = None;
        let mut why = why.to_owned();
        let mut first = true;
        let found = loop {
            // The first attempt is made at once and quietly: a connection may just have been idle for too long.
            if !first {
                self.down(&why);
                self.backoff.wait().await;
            }
            first = false;
            match self.attempt().await? {
                Attempt::Done(found) => break found,
                Attempt::Again(reason) => why = reason,
            }
            if self.left.is_cancelled() && self.nobody_waits() {
                return Err(LaneError::Closed);
            }
        };
        self.up();
        self.hints.endings.lose(Instant::now());
        (self.seq, self.acked) = (found.seq, found.seq);
        self.complete_found(found)
    }

    /// Completes what was applied, and leaves the rest to be sent again.
    fn complete_found(&mut self, mut found: Found) -> Result<(), LaneError> {
        // A reader carries the number of the writer before it: that one's answer is not its own.
        while let Some(sent) = self.window.front().and_then(|item| item.sent.as_ref())
            && sent.script.writes()
            && let Some(kept) = found.kept.remove(&sent.seq)
        {
            let (answers, lengths) =
                answer::kept(kept).ok_or_else(|| LaneError::Broken("a kept answer is cut off".into()))?;
            self.complete(vec![Reply::Bulk(answers), Reply::Bulk(lengths)], found.confirmed)?;
        }
        self.nothing_is_under_way();
        Ok(())
    }

    async fn attempt(&mut self) -> Result<Attempt, LaneError> {
        let conn = match self.connect().await {
            Ok(conn) => conn,
            Err(lost) => return Ok(Attempt::Again(lost.0)),
        };
        if self.run_id.is_empty() {
            self.run_id = conn.run_id.clone();
        }
        if conn.run_id != self.run_id {
            return Err(LaneError::RolledBack(self.partition));
        }
        let mut command = Args::of(["EVALSHA", Script::Recover.sha(), "1", &self.facts.keys.owner()]);
        command.number(self.facts.epoch.0).number(self.facts.nonce.0).number(self.acked).number(JUMP);
        let mut waiting = conn.send(command.command(), false, true).await;
        let answered = match waiting.answer().await {
            Ok(answered) => answered,
            Err(lost) => return Ok(Attempt::Again(lost.0)),
        };
        match answer::envelope(Script::Recover.name(), answered.reply).map_err(broken)? {
            Said::Ok(rest) => Ok(Attempt::Done(read(&rest, answered.confirmed))),
            Said::Seq(_) => Err(LaneError::RolledBack(self.partition)),
            Said::Fenced(stored) => {
                self.fenced(stored).await.map(|()| Attempt::Again("no owner record".into()))
            }
            Said::Need(_) => Err(LaneError::Broken("the recovery script asked for keys".into())),
            Said::Error(error) => self.refused(&conn, &error).await,
        }
    }

    async fn refused(&mut self, conn: &Conn, error: &str) -> Result<Attempt, LaneError> {
        let again = Ok(Attempt::Again(error.to_owned()));
        match remedy(error, &conn.address) {
            Remedy::Follow(address) => {
                self.shared.topology.moved(self.hash_slot, &address);
                (self.conn, self.run_id) = (None, "".into());
                again
            }
            Remedy::LoadScripts => {
                // If this fails the next attempt will tell.
                let _ = conn.load_scripts().await;
                again
            }
            Remedy::Broken(why) => Err(LaneError::Broken(why)),
            // The owner record is on its way to another node: it will be found there, or here.
            Remedy::Ask(_) | Remedy::Wait(_) | Remedy::NoWrites(_) | Remedy::OutOfMemory => again,
            Remedy::Rediscover(_) => {
                self.conn = None;
                again
            }
        }
    }

    /// A live connection to the partition's master.
    async fn connect(&mut self) -> Result<Conn, Lost> {
        if let Some(conn) = self.conn.as_ref().filter(|c| !c.is_over()) {
            return Ok(conn.clone());
        }
        let had = self.conn.take().is_some();
        let shared = self.shared.clone();
        let known = shared.topology.master(self.hash_slot);
        let conn = match known {
            Some(address) if had || shared.topology.is_cluster() => shared.pool.get(&address).await,
            _ => Err(Lost("no master is known".into())),
        };
        match conn {
            Ok(conn) => {
                self.conn = Some(conn.clone());
                Ok(conn)
            }
            // It may have a successor: a replica that was made master.
            Err(lost) => {
                shared.topology.refresh(&shared.pool).await?;
                let address = shared.topology.master(self.hash_slot).ok_or(lost)?;
                let conn = shared.pool.get(&address).await?;
                self.conn = Some(conn.clone());
                Ok(conn)
            }
        }
    }
}

fn read(rest: &[Reply], confirmed: bool) -> Found {
    let seq = rest.first().and_then(Reply::number).unwrap_or_default();
    let kept = rest.iter().skip(1).filter_map(Reply::bytes).filter_map(kept).collect();
    Found { seq, kept, confirmed }
}

/// `seq:answer`
fn kept(bytes: &Bytes) -> Option<(u64, Bytes)> {
    let colon = bytes.iter().position(|b| *b == b':')?;
    let seq = std::str::from_utf8(&bytes[..colon]).ok()?.parse().ok()?;
    Some((seq, bytes.slice(colon + 1..)))
}
