//! The leader's picture of the brokers: which are there, since when, which partitions each reaches,
//! and which come and go too often.
//!
//! Purpose: from heartbeats, closed sessions and silence to members with a standing.
//! Invariant: only heartbeats that the leader has heard in its own term count; an address has one
//! incarnation at a time.
//! Not in here: the assignment of partitions, the published topology.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mtimer_protocol::{BrokerLoad, Heartbeat, MemberView};
use mtimer_types::limits::MAX_BROKERS;
use mtimer_types::{Epoch, PartitionId};

use super::api::{NodeOptions, PeerId};
use super::assignment::{AssignmentCandidate, Standing};
use super::refusal;

/// Two deaths within this time, ms, make a broker one that comes and goes; so long a good run
/// makes up for it.
const FLAP_MS: u64 = 60_000;
/// How long a broker that comes and goes is given nothing, first and at most, ms; doubles in
/// between.
const HOLD_MS: (u64, u64) = (2_000, 60_000);
/// Heartbeats answered and not known to have been heard: more need not be remembered.
const MAX_UNHEARD: usize = 64;

/// The effect of a heartbeat on the leader's picture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum HeartbeatOutcome {
    /// It contradicts the cluster.
    Refused(String),
    /// It came late, by an earlier session.
    Old,
    /// It counts. `changed`: so that owners may change.
    Heard { changed: bool },
}

/// A broker that is a member of the cluster.
#[derive(Debug, Default)]
pub(super) struct Member {
    pub(super) incarnation: u64,
    software: String,
    pub(super) weight: u16,
    session: Option<PeerId>,
    /// When its session closed, if it has no other since.
    gone: Option<u64>,
    joined: u64,
    heard_at: u64,
    /// Heartbeats that were answered, and when, of which it has not said that it heard the answer.
    unheard: VecDeque<(u64, u64)>,
    pub(super) stopping: bool,
    /// It stops and has nothing any more: no part of the topology.
    pub(super) left: bool,
    pub(super) owned: Vec<(PartitionId, Epoch)>,
    reach: Reach,
    load: BrokerLoad,
}

/// Partitions that a member cannot reach, and those that it could not until a moment ago.
#[derive(Debug, Default)]
struct Reach {
    /// Since when it is listed.
    listed: BTreeMap<PartitionId, u64>,
    /// When it was listed last.
    cleared: BTreeMap<PartitionId, u64>,
}

/// An address that has died before.
#[derive(Debug, Default)]
struct Flaps {
    deaths: u32,
    last: u64,
    held_until: u64,
}

/// All members of the cluster.
#[derive(Debug)]
pub(super) struct Members {
    options: NodeOptions,
    map: BTreeMap<String, Member>,
    flaps: BTreeMap<String, Flaps>,
    /// Open sessions of the dead: they count again once an answer to this heartbeat was heard.
    deaf: BTreeMap<PeerId, u64>,
    /// Emptied by an operator; the time at which that is forgotten unless the broker is heard of.
    drained: BTreeMap<String, Option<u64>>,
}

impl Members {
    /// A picture with this broker alone in it. `drained`: marks of an earlier leader.
    pub(super) fn new(now: u64, options: &NodeOptions, drained: impl Iterator<Item = String>) -> Self {
        let until = now + options.member_timeout_ms;
        let drained: BTreeMap<_, _> = drained.map(|address| (address, Some(until))).collect();
        let own = Member {
            incarnation: options.incarnation,
            software: options.software.clone(),
            weight: options.weight.clamp(1, 1_000),
            joined: now,
            ..Member::default()
        };
        let map = BTreeMap::from([(options.address.clone(), own)]);
        let mut members =
            Self { options: options.clone(), map, flaps: BTreeMap::new(), deaf: BTreeMap::new(), drained };
        if let Some(mark) = members.drained.get_mut(&options.address) {
            *mark = None;
        }
        members
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Member)> {
        self.map.iter()
    }

    pub(super) fn knows(&self, address: &str) -> bool {
        self.map.contains_key(address)
    }

    /// The sessions of the members that are to be told things.
    pub(super) fn sessions(&self) -> impl Iterator<Item = PeerId> {
        self.map.values().filter_map(|m| m.session)
    }

    /// An operator's wish. Of a broker that has not been heard of yet, it is forgotten if that
    /// remains so.
    pub(super) fn drain(&mut self, now: u64, address: &str, drain: bool) {
        if drain {
            let until = (!self.knows(address)).then(|| now + self.options.member_timeout_ms);
            self.drained.insert(address.to_owned(), until);
        } else {
            self.drained.remove(address);
        }
    }

    pub(super) fn is_draining(&self, address: &str) -> bool {
        self.drained.contains_key(address) || self.map.get(address).is_some_and(|m| m.stopping)
    }

    /// It has left gracefully, and is no part of the topology any more.
    pub(super) fn leave(&mut self, address: &str) {
        if let Some(m) = self.map.get_mut(address) {
            m.left = true;
        }
        self.drained.remove(address);
    }

    /// This broker's own state; `true`: so changed that owners may change.
    pub(super) fn own(
        &mut self,
        now: u64,
        owned: Vec<(PartitionId, Epoch)>,
        unreachable: &[PartitionId],
        load: BrokerLoad,
        stopping: bool,
    ) -> bool {
        let Some(m) = self.map.get_mut(&self.options.address) else { return false };
        let reach = m.reach.update(now, unreachable, self.options.unreachable_ms);
        let changed = reach || m.stopping != stopping;
        (m.owned, m.load, m.stopping, m.heard_at) = (owned, load, stopping, now);
        changed
    }

    pub(super) fn heartbeat(&mut self, now: u64, peer: PeerId, beat: Heartbeat) -> HeartbeatOutcome {
        if let Some(text) = refusal::contradiction(&self.options, &beat) {
            return HeartbeatOutcome::Refused(text);
        }
        let known = self.map.get(&beat.address);
        if known.is_none() && self.map.len() >= MAX_BROKERS {
            return HeartbeatOutcome::Refused(refusal::too_many(&beat));
        }
        let same = known.is_some_and(|m| m.incarnation == beat.incarnation);
        if let Some(m) = known {
            let recent = now.saturating_sub(m.heard_at) < 2 * self.options.heartbeat_ms;
            if !same && m.session.is_some() && recent {
                return HeartbeatOutcome::Refused(refusal::taken(&beat));
            }
            if same && m.session.is_some_and(|session| peer < session) {
                return HeartbeatOutcome::Old;
            }
        }
        if self.deaf.get(&peer).is_some_and(|seq| beat.heard < *seq) {
            return HeartbeatOutcome::Heard { changed: false };
        }
        self.deaf.remove(&peer);
        if !same {
            self.join(now, &beat);
        }
        if let Some(Some(_)) = self.drained.get(&beat.address) {
            self.drained.insert(beat.address.clone(), None);
        }
        let Some(m) = self.map.get_mut(&beat.address) else { return HeartbeatOutcome::Old };
        let changed = m.hear(now, peer, beat, &self.options) || !same;
        HeartbeatOutcome::Heard { changed }
    }

    /// A new incarnation of an address.
    fn join(&mut self, now: u64, beat: &Heartbeat) {
        let before = self.map.remove(&beat.address);
        if let Some(m) = &before
            && !m.is_orderly()
        {
            self.died(now, &beat.address, m.joined);
        }
        // Without a topology it has just begun: any mark was meant for an earlier incarnation.
        if before.is_some() || beat.topology.1 == 0 {
            self.drained.remove(&beat.address);
        }
        self.flaps.retain(|_, f| now.saturating_sub(f.last.max(f.held_until)) < 2 * FLAP_MS);
        if let Some(f) = self.flaps.get_mut(&beat.address)
            && f.deaths >= 2
        {
            // Doubled with each death, until it is more than the longest.
            let hold = (HOLD_MS.0 << (f.deaths - 2).min(5)).min(HOLD_MS.1);
            f.held_until = now + hold;
        }
        let member =
            Member { incarnation: beat.incarnation, joined: now, heard_at: now, ..Member::default() };
        self.map.insert(beat.address.clone(), member);
    }

    fn died(&mut self, now: u64, address: &str, joined: u64) {
        let f = self.flaps.entry(address.to_owned()).or_default();
        let good_life = now.saturating_sub(joined.max(f.held_until)) >= FLAP_MS;
        if good_life || (f.deaths == 1 && now.saturating_sub(f.last) > FLAP_MS) {
            f.deaths = 0;
        }
        f.deaths = f.deaths.saturating_add(1);
        f.last = now;
    }

    /// The session is closed.
    pub(super) fn gone(&mut self, now: u64, peer: PeerId) {
        self.deaf.remove(&peer);
        if let Some(m) = self.map.values_mut().find(|m| m.session == Some(peer)) {
            m.session = None;
            m.gone = Some(now);
        }
    }

    /// This process stood still for so long: nobody else is to blame.
    pub(super) fn forgive(&mut self, ms: u64) {
        for m in self.map.values_mut() {
            m.heard_at += ms;
            m.gone = m.gone.map(|at| at + ms);
            m.unheard.iter_mut().for_each(|(_, at)| *at += ms);
        }
    }

    /// Takes out who is dead or has left; says how many died, and how many are gone all together.
    pub(super) fn sweep(&mut self, now: u64) -> (u64, usize) {
        let own = &self.options.address;
        let over = |(address, m): (&String, &Member)| {
            (address != own && m.until(&self.options) <= now).then(|| address.clone())
        };
        let gone: Vec<String> = self.map.iter().filter_map(over).collect();
        let mut deaths = 0;
        for address in &gone {
            let Some(m) = self.map.remove(address) else { continue };
            self.drained.remove(address);
            if let (Some(peer), Some((seq, _))) = (m.session, m.unheard.front()) {
                self.deaf.insert(peer, *seq);
            }
            if !m.is_orderly() {
                deaths += 1;
                self.died(now, address, m.joined);
            }
        }
        self.drained.retain(|_, until| until.is_none_or(|until| until > now));
        (deaths, gone.len())
    }

    /// When somebody is dead if nothing is heard.
    pub(super) fn next(&self) -> u64 {
        let others = self.map.iter().filter(|(address, _)| **address != self.options.address);
        others.map(|(_, m)| m.until(&self.options)).min().unwrap_or(u64::MAX)
    }

    fn held_until(&self, address: &str) -> u64 {
        self.flaps.get(address).map_or(0, |f| f.held_until)
    }

    /// Describes a member for the assignment. `owner`: by partition, an address.
    pub(super) fn candidate(
        &self,
        now: u64,
        address: &str,
        owners: &[Option<String>],
    ) -> Option<AssignmentCandidate> {
        let m = self.map.get(address)?;
        let standing = if self.is_draining(address) {
            Standing::Draining
        } else if self.held_until(address) > now {
            Standing::HeldBack
        } else {
            Standing::Full
        };
        let after = self.options.unreachable_ms;
        let owner = |p: &PartitionId| owners.get(usize::from(p.0)).and_then(Option::as_deref);
        let listed =
            m.reach.listed.iter().filter(|(p, since)| owner(p) != Some(address) || **since + after <= now);
        // It must reach it for a while before it is taken from another: stores come back at one
        // broker sooner than at others.
        let fresh = |p: &PartitionId, at: u64| {
            at + after > now && owner(p).is_some_and(|o| o != address && self.knows(o))
        };
        let cleared = m.reach.cleared.iter().filter(|(p, at)| fresh(p, **at));
        let unreachable: BTreeSet<_> = listed.chain(cleared).map(|(p, _)| *p).collect();
        Some(AssignmentCandidate { weight: m.weight, standing, unreachable })
    }

    /// When time alone may change an [`AssignmentCandidate`].
    pub(super) fn recheck(&self, now: u64) -> u64 {
        let held = self.map.keys().map(|a| self.held_until(a));
        let reach = self.map.values().flat_map(|m| m.reach.listed.values().chain(m.reach.cleared.values()));
        let times = held.chain(reach.map(|at| at + self.options.unreachable_ms));
        times.filter(|at| *at > now).min().unwrap_or(u64::MAX)
    }

    pub(super) fn views(&self, now: u64) -> Vec<MemberView> {
        let view = |(address, m): (&String, &Member)| MemberView {
            address: address.clone(),
            software: m.software.clone(),
            weight: m.weight,
            heartbeat_age_ms: if *address == self.options.address {
                0
            } else {
                now.saturating_sub(m.heard_at)
            },
            stopping: m.stopping,
            held_back_ms: self.held_until(address).saturating_sub(now),
            owned: m.owned.len() as u32,
            unreachable: m.reach.listed.len() as u32,
            load: m.load,
        };
        self.map.iter().map(view).collect()
    }
}

impl Member {
    fn hear(&mut self, now: u64, peer: PeerId, beat: Heartbeat, options: &NodeOptions) -> bool {
        if self.session != Some(peer) {
            self.session = Some(peer);
            self.unheard.clear();
        }
        self.gone = None;
        while self.unheard.front().is_some_and(|(seq, _)| *seq <= beat.heard) {
            self.unheard.pop_front();
        }
        // It sends, but has not heard our answers for so long: half a connection is none.
        let deaf = self.unheard.front().is_some_and(|(_, at)| at + options.member_timeout_ms <= now);
        if !deaf {
            self.heard_at = now;
        }
        if self.unheard.len() < MAX_UNHEARD {
            self.unheard.push_back((beat.seq, now));
        }
        let had_any = !self.owned.is_empty();
        let changed = self.reach.update(now, &beat.unreachable, options.unreachable_ms)
            || self.weight != beat.weight
            || self.stopping != beat.stopping
            || (beat.stopping && had_any == beat.owned.is_empty());
        (self.weight, self.stopping, self.software) = (beat.weight, beat.stopping, beat.software);
        (self.owned, self.load) = (beat.owned, beat.load);
        self.left &= self.is_orderly();
        changed
    }

    /// It stops, and has nothing any more.
    pub(super) fn is_orderly(&self) -> bool {
        self.stopping && self.owned.is_empty()
    }

    /// When it is dead if nothing is heard.
    fn until(&self, options: &NodeOptions) -> u64 {
        let silent = self.heard_at + options.member_timeout_ms;
        self.gone.map_or(silent, |at| silent.min(at + options.heartbeat_ms))
    }
}

impl Reach {
    /// A complete list; `true`: it is another than before.
    fn update(&mut self, now: u64, list: &[PartitionId], after_ms: u64) -> bool {
        let list: BTreeSet<PartitionId> = list.iter().copied().collect();
        let cleared: Vec<_> = self.listed.keys().filter(|p| !list.contains(p)).copied().collect();
        let mut changed = !cleared.is_empty();
        for p in cleared {
            self.listed.remove(&p);
            self.cleared.insert(p, now);
        }
        for p in list {
            self.cleared.remove(&p);
            self.listed.entry(p).or_insert_with(|| {
                changed = true;
                now
            });
        }
        self.cleared.retain(|_, at| *at + after_ms > now);
        changed
    }
}
