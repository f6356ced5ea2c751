//! Destinations: names that applications register for and timers are scheduled for.
//!
//! Invariant: the number of a destination stays valid while it has a member, a timer in memory or
//! a park; afterwards it may stand for another.

use std::collections::{BTreeMap, BTreeSet};

use mtimer_types::{Destination, StoredSettings, Time};
use slab::Slab;

use super::credit::DestinationCredit;
use super::destination_members::DestIx;
use super::flow::Flow;
use super::hash::{Map, Seeded};
use super::limit::Limit;
use super::parks::Parks;
use super::policies::Policies;
use super::policy::Policy;
use super::ready::ReadyQueue;

/// What alone holds back timers of a destination that are due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HeldBack {
    /// Somebody has paused it.
    Paused,
    /// Its limits: there is credit for them.
    Limited,
}

/// A destination that has members, timers in memory, or parked timers.
#[derive(Debug)]
pub(super) struct Dest {
    name: Destination,
    /// Claimed timers that wait for a member.
    pub(super) ready: ReadyQueue,
    pub(super) parks: Parks,
    pub(super) flow: Flow,
    pub(super) policy: Policy,
    pub(super) limit: Limit,
    /// Failed attempts since the last success.
    failures: u64,
    /// Its registrations, and their credit.
    pub(super) credit: DestinationCredit,
    entries: usize,
    dirty: bool,
    /// Housekeeping looks at it.
    busy: bool,
}

impl Dest {
    fn new(name: Destination, policy: Policy, limit: Limit) -> Self {
        Self {
            name,
            ready: ReadyQueue::default(),
            parks: Parks::default(),
            flow: Flow::default(),
            policy,
            limit,
            failures: 0,
            credit: DestinationCredit::default(),
            entries: 0,
            dirty: false,
            busy: false,
        }
    }

    pub(super) fn name(&self) -> &Destination {
        &self.name
    }

    /// Failed attempts since the last success.
    pub(super) fn failures(&self) -> u64 {
        self.failures
    }

    /// An attempt has failed.
    pub(super) fn fail(&mut self) {
        self.failures += 1;
    }

    /// An attempt has succeeded.
    pub(super) fn succeed(&mut self) {
        self.failures = 0;
    }

    /// How many of its timers are in memory or parked.
    pub(super) fn pending(&self) -> u64 {
        self.entries as u64 + self.parks.count().saturating_sub(u64::from(self.parks.returning()))
    }

    /// A timer of it comes into memory.
    pub(super) fn enter(&mut self) {
        self.entries += 1;
    }

    /// A timer of it leaves memory.
    pub(super) fn exit(&mut self) {
        self.entries -= 1;
    }

    /// Whether timers wait for credit, or would come back from the park for it.
    pub(super) fn awaits_credit(&self) -> bool {
        !self.ready.is_empty() || !self.parks.is_empty() || self.parks.returning() > 0
    }

    /// What holds back its due timers, if it is not for want of credit.
    pub(super) fn held_back(&self) -> Option<HeldBack> {
        if self.policy.is_paused() {
            Some(HeldBack::Paused)
        } else {
            self.limit.is_scarce().then_some(HeldBack::Limited)
        }
    }

    fn is_unused(&self) -> bool {
        let parked = !self.parks.is_empty() || self.parks.returning() > 0;
        self.credit.registrations() == 0
            && !parked
            && self.entries == 0
            && !self.dirty
            && !self.limit.is_busy()
    }
}

/// All destinations, by number and by name.
#[derive(Debug)]
pub(super) struct DestinationTable {
    all: Slab<Dest>,
    by_name: Map<Destination, DestIx>,
    policies: Policies,
    /// When to look at destinations for their limits, monotonic ms.
    limited: BTreeMap<DestIx, u64>,
    wakes: BTreeSet<(u64, DestIx)>,
    /// The one that was asked for last: neighbours mostly have the same.
    last: Option<(Destination, DestIx)>,
    /// Destinations to look at in this turn.
    dirty: Vec<DestIx>,
    /// Destinations that housekeeping looks at: those that were looked at in a turn since it last
    /// released them.
    busy: BTreeSet<DestIx>,
}

impl DestinationTable {
    pub(super) fn new(seed: Seeded) -> Self {
        let (all, by_name) = (Slab::new(), Map::with_hasher(seed));
        let policies = Policies::new(seed);
        let (limited, wakes) = (BTreeMap::new(), BTreeSet::new());
        Self { all, by_name, policies, limited, wakes, last: None, dirty: Vec::new(), busy: BTreeSet::new() }
    }

    /// The number of a destination, a new one if need be.
    pub(super) fn ix(&mut self, name: &Destination) -> DestIx {
        if let Some((_, ix)) = self.last.as_ref().filter(|(last, _)| last == name) {
            return *ix;
        }
        let ix = self.by_name.get(name).copied();
        let ix = ix.unwrap_or_else(|| self.insert(name));
        self.last = Some((name.clone(), ix));
        ix
    }

    /// The number of a destination, if it has one.
    pub(super) fn find(&self, name: &Destination) -> Option<DestIx> {
        self.by_name.get(name).copied()
    }

    fn insert(&mut self, name: &Destination) -> DestIx {
        let mut limit = Limit::default();
        if let Some((version, limits)) = self.policies.limits_of(name) {
            limit.set(version, limits);
        }
        let ix = self.all.insert(Dest::new(name.clone(), self.policies.of(name), limit));
        self.by_name.insert(name.clone(), ix);
        ix
    }

    pub(super) fn get(&self, ix: DestIx) -> &Dest {
        &self.all[ix]
    }

    pub(super) fn get_mut(&mut self, ix: DestIx) -> &mut Dest {
        &mut self.all[ix]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (DestIx, &Dest)> {
        self.all.iter()
    }

    /// Takes in settings of a destination. False if they are known, or newer ones are.
    pub(super) fn configure(&mut self, row: StoredSettings) -> bool {
        let dest = row.dest.clone();
        let is_new = self.policies.learn(row);
        if is_new {
            self.renew_policy(&dest);
        }
        is_new
    }

    /// Ends pauses whose end has come.
    pub(super) fn end_pauses(&mut self, now: Time) {
        for dest in self.policies.look(now) {
            self.renew_policy(&dest);
        }
    }

    fn renew_policy(&mut self, dest: &Destination) {
        if let Some(ix) = self.find(dest) {
            self.all[ix].policy = self.policies.of(dest);
            if let Some((version, limits)) = self.policies.limits_of(dest) {
                self.all[ix].limit.set(version, limits);
            }
            self.touch(ix);
        }
    }

    /// The destinations that are paused.
    pub(super) fn paused(&self) -> impl Iterator<Item = &StoredSettings> {
        self.policies.paused()
    }

    /// What was given out of a destination with limits is sent. It may have been forgotten since.
    pub(super) fn note_sent(&mut self, ix: DestIx) {
        if let Some(dest) = self.all.get_mut(ix) {
            dest.limit.sent();
        }
    }

    /// Notes when to look at a destination again, for its limits.
    pub(super) fn wake_for_limits(&mut self, now: u64, ix: DestIx, waiting: u64) {
        let wake = self.all[ix].limit.wake_at(now, waiting);
        let before = match wake {
            Some(at) => self.limited.insert(ix, at),
            None => self.limited.remove(&ix),
        };
        if before != wake {
            before.into_iter().for_each(|at| _ = self.wakes.remove(&(at, ix)));
            self.wakes.extend(wake.map(|at| (at, ix)));
        }
    }

    /// Has the destinations looked at whose time has come.
    pub(super) fn touch_limited(&mut self, now: u64) {
        while let Some((at, ix)) = self.wakes.first().copied().filter(|(at, _)| *at <= now) {
            self.wakes.remove(&(at, ix));
            self.limited.remove(&ix);
            self.touch(ix);
        }
    }

    /// When the first one is to be looked at.
    pub(super) fn next_limited(&self) -> Option<u64> {
        self.wakes.first().map(|(at, _)| *at)
    }

    /// Has this destination looked at before the turn ends.
    pub(super) fn touch(&mut self, ix: DestIx) {
        let dest = &mut self.all[ix];
        if !std::mem::replace(&mut dest.dirty, true) {
            self.dirty.push(ix);
        }
    }

    /// Takes the destinations to look at, each once.
    pub(super) fn take_dirty(&mut self) -> Vec<DestIx> {
        let dirty = std::mem::take(&mut self.dirty);
        for ix in &dirty {
            let dest = &mut self.all[*ix];
            dest.dirty = false;
            if !std::mem::replace(&mut dest.busy, true) {
                self.busy.insert(*ix);
            }
        }
        dirty
    }

    /// The destinations that housekeeping looks at, in the order of their numbers.
    pub(super) fn busy(&self) -> Vec<DestIx> {
        self.busy.iter().copied().collect()
    }

    /// Housekeeping passes over this destination until it is looked at in a turn again.
    pub(super) fn rest(&mut self, ix: DestIx) {
        if let Some(dest) = self.all.get_mut(ix) {
            dest.busy = false;
            self.busy.remove(&ix);
        }
    }

    /// Forgets a destination that has nothing left. Call it with destinations of which something
    /// ended.
    pub(super) fn forget_unused(&mut self, ix: DestIx) {
        if self.all.get(ix).is_some_and(Dest::is_unused) {
            let dest = self.all.remove(ix);
            self.by_name.remove(&dest.name);
            self.busy.remove(&ix);
            self.last = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use mtimer_types::PartitionId;

    use super::super::destination_members::{DestinationMembers, MemberRef};
    use super::super::parks::ArrivedPage;
    use super::*;
    use crate::api::SessionId;

    fn name(app: &str) -> Destination {
        Destination::new("test", app).unwrap()
    }

    fn is_known(all: &DestinationTable, app: &str) -> bool {
        all.iter().any(|(_, dest)| dest.name == name(app))
    }

    #[test]
    fn a_number_stays_valid_while_anything_refers_to_it() {
        let mut all = DestinationTable::new(Seeded(1));
        let ix = all.ix(&name("a"));
        let member = DestinationMembers::default().insert(SessionId(1), 1, ix, 10);
        let park = PartitionId(0);
        type Step = fn(&mut Dest, MemberRef, PartitionId);
        let references: [(Step, Step); 3] = [
            (
                |dest, member, _| dest.credit.join(SessionId(1), member, false),
                |dest, member, _| dest.credit.leave(SessionId(1), member),
            ),
            (|dest, _, _| dest.enter(), |dest, _, _| dest.exit()),
            (|dest, _, park| dest.parks.add_found(park, 1), |dest, _, park| dest.parks.forget(park)),
        ];
        for (refer, _) in references {
            refer(all.get_mut(ix), member, park);
        }
        for (_, release) in references {
            all.forget_unused(ix);
            assert_eq!(all.ix(&name("a")), ix);
            assert!(is_known(&all, "a"));
            release(all.get_mut(ix), member, park);
        }
        all.forget_unused(ix);
        assert!(!is_known(&all, "a"));
    }

    #[test]
    fn a_number_that_was_forgotten_may_stand_for_another() {
        let mut all = DestinationTable::new(Seeded(1));
        let a = all.ix(&name("a"));
        all.forget_unused(a);
        let b = all.ix(&name("b"));
        assert_eq!(all.get(b).name, name("b"));
        let a = all.ix(&name("a"));
        assert_ne!(a, b);
        assert_eq!(all.get(a).name, name("a"));
    }

    #[test]
    fn a_destination_to_look_at_is_taken_once_and_not_forgotten_before() {
        let mut all = DestinationTable::new(Seeded(1));
        let (a, b) = (all.ix(&name("a")), all.ix(&name("b")));
        [b, a, b].into_iter().for_each(|ix| all.touch(ix));
        all.forget_unused(a);
        assert_eq!(all.take_dirty(), [b, a]);
        assert_eq!(all.take_dirty(), []);
        all.touch(b);
        assert_eq!(all.take_dirty(), [b]);
        all.forget_unused(a);
        assert!(!is_known(&all, "a") && is_known(&all, "b"));
    }

    #[test]
    fn a_timer_that_is_on_its_way_back_from_the_park_is_pending_once() {
        let mut all = DestinationTable::new(Seeded(1));
        let (ix, at) = (all.ix(&name("a")), PartitionId(0));
        let dest = all.get_mut(ix);
        dest.enter();
        dest.parks.add_found(at, 5);
        assert_eq!((dest.pending(), dest.awaits_credit()), (6, true));
        dest.parks.begin_fetch(5, |_| 0, false);
        let next = Some(1);
        dest.parks.page_arrived(at, &ArrivedPage { coming: 2, next, ..ArrivedPage::default() });
        (0..2).for_each(|_| dest.enter());
        assert_eq!(dest.pending(), 6);
        (0..2).for_each(|_| dest.parks.one_returned(at));
        assert_eq!(dest.pending(), 6);
    }
}
