//! How far servers' append-only files are known to be on disk.
//!
//! A server's `INFO` is enough to know it, because of how `flushAppendOnlyFile` works with
//! `appendfsync everysec` (Redis 7.0 and later, Valkey):
//!
//! - It writes its buffer to the file before each round of the event loop ends, unless an fsync is
//!   under way (then up to two seconds later, and without it). So if none is under way at a moment
//!   T1, everything answered before T1 is in the file at the end of that round, and an fsync that
//!   begins later covers it.
//! - One begins a second after the last at the latest, if anything is in the file that is not synced
//!   and none is under way. So one that covers it has begun at the end of the first round that is
//!   2 s or more after T1: call an answer of that round T2.
//! - If no fsync is under way at T3, after T2, that one has ended.
//!
//! With `appendfsync always` the same is true, and more. It is not true of a file that is being
//! rewritten: the file before it is synced by a thread that `INFO` does not show. Nor if a write or
//! an fsync has failed, with `appendfsync no`, or while `no-appendfsync-on-rewrite` suspends
//! fsyncs. Then nothing counts as synced, and the log says why.
//!
//! `WAITAOF` would be simpler, and is not true: Valkey 8.0.1 answers that a write is synced as soon
//! as its fsync has begun, also if that hangs.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{InfoDict, Pipeline, Value};
use tokio::time::Instant;

use super::node::RedisNode;
use super::reply::Reply;

/// When an fsync that covers a write has begun: see the module.
const BEGUN_AFTER: Duration = Duration::from_secs(2);
/// A file of which nothing was synced for so long is told of.
const TELL_AFTER: Duration = Duration::from_secs(10);

/// The files of all servers, by address.
#[derive(Clone, Default, Debug)]
pub(super) struct Disks(Arc<Mutex<HashMap<String, Disk>>>);

/// The known state of one server's file.
#[derive(Default, Debug)]
struct Disk {
    /// The connection on which it was learned: another one may lead to another server.
    connection: Option<Weak<dyn RedisNode>>,
    has_no_config: bool,
    watch: SyncWatch,
    reports: Reports,
}

/// A look at a file that has begun.
#[derive(Debug)]
pub(super) struct BegunLook {
    address: String,
    /// `CONFIG GET` is asked, too.
    configures: bool,
}

impl BegunLook {
    /// Adds the questions to the commands, behind `INFO`.
    pub(super) fn add(&self, commands: &mut Pipeline) {
        if self.configures {
            commands.cmd("CONFIG").arg(&["GET", "appendfsync", "no-appendfsync-on-rewrite"]);
        }
    }
}

impl Disks {
    /// Begins to look at the file of the server at an address, over this connection. Forgets other
    /// servers than the masters.
    pub(super) fn begin(&self, address: &str, server: &Arc<dyn RedisNode>, masters: &[String]) -> BegunLook {
        let mut disks = self.0.lock();
        disks.retain(|known, _| known == address || masters.contains(known));
        let disk = disks.entry(address.to_owned()).or_default();
        let same = |known: &Weak<dyn RedisNode>| Weak::ptr_eq(known, &Arc::downgrade(server));
        if !disk.connection.as_ref().is_some_and(same) {
            let reports = std::mem::take(&mut disk.reports);
            *disk = Disk { connection: Some(Arc::downgrade(server)), reports, ..Disk::default() };
        }
        BegunLook { address: address.to_owned(), configures: !disk.has_no_config }
    }

    /// Takes in the answers to `INFO` and, if it was asked, `CONFIG GET`, asked and answered at
    /// these moments. All that was answered before the moment that this returns is on disk. `None`:
    /// that is not known of anything since the last one.
    pub(super) fn end(
        &self,
        look: BegunLook,
        info: &InfoDict,
        config: Option<&Value>,
        (asked, answered): (Instant, Instant),
    ) -> Option<Instant> {
        let mut disks = self.0.lock();
        let disk = disks.entry(look.address.clone()).or_default();
        let is_refused = |answer: &Value| answer.refusal().is_some();
        disk.has_no_config |= config.is_some_and(is_refused);
        let seen = Look::read(info, config);
        let synced = disk.watch.look(&seen, asked, answered);
        disk.reports.note(&look.address, synced.is_some(), &seen, answered);
        synced
    }
}

/// The state of its append-only file that a server reports.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Look {
    /// Why nothing counts as synced.
    hindrance: Option<&'static str>,
    /// An fsync is under way.
    is_syncing: bool,
    /// How often the server has begun a rewrite or a snapshot.
    forks: Option<u64>,
}

impl Look {
    /// Reads `INFO`, and the answer to `CONFIG GET` if the server gives one.
    fn read(info: &InfoDict, config: Option<&Value>) -> Self {
        let is = |field: &str| info.get(field) == Some(true);
        let is_ok = |field: &str| info.get::<String>(field).is_none_or(|status| status == "ok");
        let settings = config.map(|config| config.clone().into_pairs()).unwrap_or_default();
        let setting = |name: &str| settings.iter().find(|(key, _)| key.text() == Some(name))?.1.text();
        let (policy, suspends) = (setting("appendfsync"), setting("no-appendfsync-on-rewrite"));
        let is_forked = is("rdb_bgsave_in_progress") || is("module_fork_in_progress");
        let pending: Option<u64> = info.get("aof_pending_bio_fsync");
        let hindrance = if !is("aof_enabled") || is("loading") {
            Some("the server keeps none, or is loading it")
        } else if policy == Some("no") {
            Some("appendfsync is no: set it to everysec or always")
        } else if !is_ok("aof_last_write_status") {
            Some("the last write to it, or the last fsync, has failed: see the server's log")
        } else if is("aof_rewrite_in_progress") || is("aof_rewrite_scheduled") {
            Some("it is being rewritten, and the server does not say when the former file is synced")
        } else if !is_ok("aof_last_bgrewrite_status") {
            Some("the last rewrite of it has failed: see the server's log")
        } else if is_forked && suspends != Some("no") {
            Some("no-appendfsync-on-rewrite is yes, or cannot be read, and a snapshot is being written")
        } else if pending.is_none() {
            Some("the server does not say whether an fsync is under way")
        } else {
            None
        };
        Self { hindrance, is_syncing: pending != Some(0), forks: info.get("total_forks") }
    }

    /// Why nothing is synced, as far as the server says.
    const fn reason(&self) -> &'static str {
        match (self.hindrance, self.is_syncing) {
            (Some(hindrance), _) => hindrance,
            (None, true) => "an fsync is under way: the disk is slow, or hangs",
            (None, false) => "the server does not say why",
        }
    }
}

/// Finds out up to when a file is synced, from looks at it in the order of time. See the module.
#[derive(Default, Debug)]
struct SyncWatch {
    /// When the look at T1 was asked for and answered, and the forks that it showed.
    idle: Option<(Instant, Instant, Option<u64>)>,
    /// There was one at T2.
    has_begun: bool,
}

impl SyncWatch {
    /// Takes in a look. All that was answered before the moment that this returns is on disk.
    fn look(&mut self, look: &Look, asked: Instant, answered: Instant) -> Option<Instant> {
        let is_same_file = |(_, _, forks): &(_, _, Option<u64>)| *forks == look.forks;
        if look.hindrance.is_some() || !self.idle.as_ref().is_none_or(is_same_file) {
            *self = Self::default();
            return None;
        }
        let this = (!look.is_syncing).then_some((asked, answered, look.forks));
        let Some((first, at, _)) = self.idle else {
            self.idle = this;
            return None;
        };
        if self.has_begun && this.is_some() {
            *self = Self { idle: this, has_begun: false };
            return Some(first);
        }
        self.has_begun |= asked >= at + BEGUN_AFTER;
        None
    }
}

/// The reports about a file so far.
#[derive(Default, Debug)]
struct Reports {
    /// Since when nothing was synced, and when that was last found.
    since: Option<(Instant, Instant)>,
    is_told: bool,
}

impl Reports {
    fn note(&mut self, address: &str, is_synced: bool, look: &Look, now: Instant) {
        if is_synced {
            if self.is_told {
                tracing::info!(address, "the append-only file is synced again");
            }
            *self = Self::default();
            return;
        }
        // While nothing is written nobody asks.
        let since = self.since.filter(|(_, last)| now - *last < TELL_AFTER).map_or(now, |(since, _)| since);
        self.since = Some((since, now));
        if now - since >= TELL_AFTER && !self.is_told {
            self.is_told = true;
            tracing::warn!(
                address,
                reason = look.reason(),
                "nothing was synced to the append-only file for 10 s: the log keeps what was written since, and a \
                 restart of Redis can lose it if the log is full, or the owner fails, too"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Look = Look { hindrance: None, is_syncing: false, forks: Some(1) };
    const SYNCING: Look = Look { is_syncing: true, ..IDLE };

    /// Returns up to when everything is synced, by each look at these moments, in ms.
    fn synced(looks: &[(u64, Look)]) -> Vec<Option<u64>> {
        let (mut watch, began) = (SyncWatch::default(), Instant::now());
        let at = |ms: u64| began + Duration::from_millis(ms);
        let look = |(ms, look): &(u64, Look)| {
            let until = watch.look(look, at(*ms), at(*ms + 1));
            until.map(|until| (until - began).as_millis() as u64)
        };
        looks.iter().map(look).collect()
    }

    #[test]
    fn what_was_answered_before_an_idle_moment_is_synced_after_a_later_one() {
        let idle = |ms| (ms, IDLE);
        assert_eq!(
            synced(&[idle(0), idle(100), idle(2_000), idle(2_001), idle(2_600)]),
            [None, None, None, None, Some(0)]
        );
        let again = [idle(0), idle(2_600), idle(2_700), idle(2_800), idle(5_300), idle(5_400)];
        assert_eq!(synced(&again), [None, None, Some(0), None, None, Some(2_700)]);
    }

    #[test]
    fn nothing_is_synced_while_an_fsync_is_under_way() {
        let hangs = [(0, SYNCING), (2_600, SYNCING), (5_200, SYNCING), (40_000, SYNCING)];
        assert_eq!(synced(&hangs), [None; 4]);
        let begins = [(0, IDLE), (100, SYNCING), (2_600, SYNCING), (9_000, SYNCING), (9_100, IDLE)];
        assert_eq!(synced(&begins), [None, None, None, None, Some(0)]);
    }

    #[test]
    fn nothing_is_synced_across_a_hindrance_or_a_fork() {
        let hindered = Look { hindrance: Some("no"), ..IDLE };
        let looks = [(0, IDLE), (100, hindered), (2_600, IDLE), (2_700, IDLE)];
        assert_eq!(synced(&looks), [None; 4]);
        let forked = Look { forks: Some(2), ..IDLE };
        assert_eq!(synced(&[(0, IDLE), (2_600, forked), (2_700, forked)]), [None; 3]);
    }

    #[test]
    fn a_server_says_why_nothing_is_synced() {
        let well = "aof_enabled:1 aof_rewrite_in_progress:0 aof_rewrite_scheduled:0 aof_last_bgrewrite_status:ok \
                    aof_last_write_status:ok aof_pending_bio_fsync:0 rdb_bgsave_in_progress:0 total_forks:3 loading:0 ";
        let settings = |policy: &str, suspends: &str| {
            let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
            Value::Array(["no-appendfsync-on-rewrite", suspends, "appendfsync", policy].map(text).into())
        };
        let read = |info: &str, config: Option<Value>| {
            Look::read(&InfoDict::new(&info.replace(' ', "\r\n")), config.as_ref())
        };
        let everysec = || Some(settings("everysec", "no"));
        assert_eq!(read(well, everysec()), Look { forks: Some(3), ..IDLE });
        assert_eq!(read(well, None), Look { forks: Some(3), ..IDLE }, "CONFIG GET is not allowed");
        let is = |info: &str, config, why: &str| {
            let look = read(info, config);
            assert!(look.reason().contains(why), "{why}: {look:?}");
        };
        is(well, Some(settings("no", "no")), "appendfsync is no");
        is(&well.replace("write_status:ok", "write_status:err"), everysec(), "has failed");
        is(&well.replace("rewrite_in_progress:0", "rewrite_in_progress:1"), everysec(), "rewritten");
        is(
            &well.replace("bgrewrite_status:ok", "bgrewrite_status:err"),
            everysec(),
            "rewrite of it has failed",
        );
        is(&well.replace("aof_enabled:1", "aof_enabled:0"), everysec(), "keeps none");
        is(&well.replace("fsync:0", "fsync:1"), everysec(), "under way");
        let saving = well.replace("bgsave_in_progress:0", "bgsave_in_progress:1");
        assert_eq!(read(&saving, everysec()).hindrance, None);
        is(&saving, Some(settings("everysec", "yes")), "no-appendfsync-on-rewrite");
    }
}
