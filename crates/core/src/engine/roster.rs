//! Who takes callbacks: sessions, their registrations (members of a destination) and credits, and
//! each destination's queue.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mtimer_protocol::{ClientView, Delivery};
use mtimer_types::limits::MAX_SESSION_UNSETTLED_BYTES;
use mtimer_types::{Destination, PartitionId, Time, TimerId};
use slab::Slab;

use super::hash::{Map, Seeded};
use crate::api::SessionId;

/// Number of a destination in this engine.
pub(super) type DestIx = usize;

/// Names a member for as long as its registration lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MemberRef {
    ix: usize,
    generation: u64,
}

/// One registration of one session.
#[derive(Debug)]
pub(super) struct Member {
    generation: u64,
    pub(super) session: SessionId,
    pub(super) registration: u32,
    pub(super) dest: DestIx,
    credit: u32,
    outstanding: u32,
    /// Deliveries of this turn.
    pub(super) outbox: Vec<Delivery>,
    /// Unregistered or gone: takes nothing more, is forgotten when nothing is outstanding.
    leaving: bool,
}

impl Member {
    fn free(&self) -> u32 {
        if self.leaving { 0 } else { self.credit.saturating_sub(self.outstanding) }
    }
}

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: u128,
    pub(super) registrations: Map<u32, MemberRef>,
    /// Deliveries that it has not settled, and the bytes of their payloads and headers.
    flights: Map<TimerId, usize>,
    flight_bytes: usize,
    /// Operations not answered yet.
    pub(super) unanswered: usize,
}

/// What a destination has parked in one partition.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Park {
    /// About how many.
    pub(super) count: u64,
    /// A page of them is on its way back.
    pub(super) fetching: bool,
    /// Of that page, how many are not here yet.
    pub(super) returning: u32,
    /// The earliest deadline that a parked timer has, as far as is known; the beginning of time, if
    /// it is to be found out.
    pub(super) deadline: Option<Time>,
    /// When the first of them was due, as far as is known.
    pub(super) oldest: Option<Time>,
}

/// A destination that has members, timers in memory, or parked timers.
#[derive(Debug)]
pub(super) struct Dest {
    pub(super) name: Destination,
    members: Vec<MemberRef>,
    /// Claimed timers that wait for a member. Ids of timers that wait no longer stay until they are
    /// passed over.
    pub(super) ready: VecDeque<TimerId>,
    /// The deadlines of those that wait.
    deadlines: BTreeSet<(Time, TimerId)>,
    /// How many ids in `ready` may be of timers that have expired there.
    expired: usize,
    pub(super) parks: BTreeMap<PartitionId, Park>,
    /// Timers on their way back from the park.
    pub(super) returning: u32,
    /// Whose park is to be fetched from next: this partition's or the first after it.
    pub(super) unpark_from: PartitionId,
    /// Timers in memory.
    pub(super) entries: usize,
    /// No credit free and nothing taken since this time, in attended ms.
    pub(super) full_since: Option<u64>,
    /// Deliveries whose outcome is on its way to the store: their credit is held by the store, not
    /// by the clients.
    pub(super) settling: usize,
    /// About how many deliveries it took in the last 250 ms.
    pub(super) sent_lately: u64,
    dirty: bool,
}

#[derive(Debug)]
pub(super) struct Roster {
    seed: Seeded,
    pub(super) sessions: Map<SessionId, Session>,
    members: Slab<Member>,
    dests: Slab<Dest>,
    by_name: Map<Destination, DestIx>,
    /// The one that was asked for last: neighbours mostly have the same.
    last: Option<(Destination, DestIx)>,
    generation: u64,
    /// Destinations to look at in this turn.
    dirty: Vec<DestIx>,
    /// Members with something in their outbox.
    pub(super) outgoing: Vec<MemberRef>,
}

impl Dest {
    /// A timer begins to wait for a member.
    pub(super) fn push_ready(&mut self, id: TimerId, deadline: Option<Time>) {
        self.ready.push_back(id);
        self.deadlines.extend(deadline.map(|deadline| (deadline, id)));
    }

    /// A timer that waited does so no longer. Its id may stay in `ready`.
    pub(super) fn leave_ready(&mut self, id: TimerId, deadline: Option<Time>) {
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, id));
        }
    }

    /// About how many wait.
    pub(super) fn waiting(&self) -> usize {
        self.ready.len().saturating_sub(self.expired)
    }

    /// The earliest deadline of the timers that wait.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Takes out the deadline of a timer that waits and has missed it. Its id stays in `ready`.
    pub(super) fn pop_missed(&mut self, now: Time) -> Option<TimerId> {
        self.next_deadline().filter(|deadline| *deadline < now)?;
        self.expired += 1;
        self.deadlines.pop_first().map(|(_, id)| id)
    }

    /// Removes the ids of timers that wait no longer, once they may be the majority, so that each
    /// costs little.
    pub(super) fn compact_ready(&mut self, waits: impl Fn(TimerId) -> bool) {
        if 2 * self.expired > self.ready.len() {
            self.ready.retain(|id| waits(*id));
            self.expired = 0;
        }
    }
}

impl Session {
    /// The deliveries that it has not settled, in order.
    pub(super) fn unsettled(&self) -> Vec<TimerId> {
        let mut ids: Vec<TimerId> = self.flights.keys().copied().collect();
        ids.sort_unstable();
        ids
    }
}

impl Roster {
    pub(super) fn new(seed: Seeded) -> Self {
        Self {
            seed,
            sessions: Map::with_hasher(seed),
            members: Slab::new(),
            dests: Slab::new(),
            by_name: Map::with_hasher(seed),
            last: None,
            generation: 0,
            dirty: Vec::new(),
            outgoing: Vec::new(),
        }
    }

    pub(super) fn open(&mut self, id: SessionId, client: u128) {
        let (registrations, flights) = (Map::with_hasher(self.seed), Map::with_hasher(self.seed));
        self.sessions.insert(id, Session { client, registrations, flights, flight_bytes: 0, unanswered: 0 });
    }

    /// The number of a destination, a new one if need be.
    pub(super) fn dest_ix(&mut self, name: &Destination) -> DestIx {
        if let Some((_, ix)) = self.last.as_ref().filter(|(last, _)| last == name) {
            return *ix;
        }
        let ix = self.by_name.get(name).copied();
        let ix = ix.unwrap_or_else(|| self.new_dest(name));
        self.last = Some((name.clone(), ix));
        ix
    }

    fn new_dest(&mut self, name: &Destination) -> DestIx {
        let ix = self.dests.insert(Dest {
            name: name.clone(),
            members: Vec::new(),
            ready: VecDeque::new(),
            deadlines: BTreeSet::new(),
            expired: 0,
            parks: BTreeMap::new(),
            returning: 0,
            unpark_from: PartitionId(0),
            entries: 0,
            full_since: None,
            settling: 0,
            sent_lately: 0,
            dirty: false,
        });
        self.by_name.insert(name.clone(), ix);
        ix
    }

    pub(super) fn dest(&self, ix: DestIx) -> &Dest {
        &self.dests[ix]
    }

    pub(super) fn dest_mut(&mut self, ix: DestIx) -> &mut Dest {
        &mut self.dests[ix]
    }

    pub(super) fn dests(&self) -> impl Iterator<Item = (DestIx, &Dest)> {
        self.dests.iter()
    }

    /// Looks at this destination before the turn ends.
    pub(super) fn touch(&mut self, ix: DestIx) {
        let dest = &mut self.dests[ix];
        if !std::mem::replace(&mut dest.dirty, true) {
            self.dirty.push(ix);
        }
    }

    pub(super) fn take_dirty(&mut self) -> Vec<DestIx> {
        let dirty = std::mem::take(&mut self.dirty);
        dirty.iter().for_each(|ix| self.dests[*ix].dirty = false);
        dirty
    }

    /// Forgets a destination that has nothing left. Call it with destinations of which something
    /// ended.
    pub(super) fn sweep(&mut self, ix: DestIx) {
        let Some(d) = self.dests.get(ix) else { return };
        let idle =
            d.members.is_empty() && d.parks.is_empty() && d.entries == 0 && d.returning == 0 && !d.dirty;
        if idle {
            let dest = self.dests.remove(ix);
            self.by_name.remove(&dest.name);
            self.last = None;
        }
    }

    /// Registers, or changes the credit of a registration. `Err` if the number stands for another
    /// destination.
    pub(super) fn register(
        &mut self,
        session: SessionId,
        registration: u32,
        name: &Destination,
        credit: u32,
    ) -> Result<(), &'static str> {
        let dest = self.dest_ix(name);
        self.touch(dest);
        let Some(s) = self.sessions.get_mut(&session) else { return Ok(()) };
        if let Some(member) = s.registrations.get(&registration).and_then(|m| live(&mut self.members, *m)) {
            if member.dest != dest {
                return Err("the registration number stands for another destination: use a new one");
            }
            member.credit = credit;
            return Ok(());
        }
        if s.registrations.len() >= mtimer_types::limits::MAX_REGISTRATIONS {
            return Err("too many registrations in one session: use fewer destinations or more sessions");
        }
        self.generation += 1;
        let generation = self.generation;
        let member = Member {
            generation,
            session,
            registration,
            dest,
            credit,
            outstanding: 0,
            outbox: Vec::new(),
            leaving: false,
        };
        let member = MemberRef { ix: self.members.insert(member), generation };
        s.registrations.insert(registration, member);
        self.dests[dest].members.push(member);
        Ok(())
    }

    pub(super) fn unregister(&mut self, session: SessionId, registration: u32) {
        let Some(s) = self.sessions.get_mut(&session) else { return };
        if let Some(member) = s.registrations.remove(&registration) {
            self.leave(member);
        }
    }

    /// Forgets a session; its members take nothing more.
    pub(super) fn close(&mut self, session: SessionId) -> Option<Session> {
        let mut s = self.sessions.remove(&session)?;
        let members: Vec<MemberRef> = s.registrations.drain().map(|(_, m)| m).collect();
        members.into_iter().for_each(|m| self.leave(m));
        Some(s)
    }

    /// The session takes nothing more, under any registration.
    pub(super) fn leave_all(&mut self, session: SessionId) {
        let members: Vec<MemberRef> = match self.sessions.get_mut(&session) {
            Some(s) => s.registrations.drain().map(|(_, m)| m).collect(),
            None => return,
        };
        members.into_iter().for_each(|m| self.leave(m));
    }

    fn leave(&mut self, member: MemberRef) {
        let Some(m) = live(&mut self.members, member) else { return };
        m.leaving = true;
        let (dest, done) = (m.dest, m.outstanding == 0);
        self.dests[dest].members.retain(|x| *x != member);
        self.touch(dest);
        if done {
            self.members.remove(member.ix);
        }
    }

    pub(super) fn member(&mut self, member: MemberRef) -> Option<&mut Member> {
        live(&mut self.members, member)
    }

    /// Whether a delivery may still be sent to this member.
    pub(super) fn takes(&mut self, member: MemberRef) -> bool {
        self.member(member).is_some_and(|m| !m.leaving)
    }

    /// Whether at least as much of a member's credit is free as is in use.
    pub(super) fn has_slack(&mut self, member: MemberRef) -> bool {
        self.member(member).is_some_and(|m| m.free() >= m.outstanding)
    }

    /// Gives back one credit.
    pub(super) fn give_back(&mut self, member: MemberRef) {
        let Some(m) = live(&mut self.members, member) else { return };
        m.outstanding = m.outstanding.saturating_sub(1);
        let (dest, done) = (m.dest, m.leaving && m.outstanding == 0);
        if done {
            self.members.remove(member.ix);
        } else {
            self.touch(dest);
        }
    }

    /// Credits of a destination that are free.
    pub(super) fn free(&self, dest: DestIx) -> u64 {
        let members = self.dests[dest].members.iter().filter_map(|m| self.members.get(m.ix));
        members.map(|m| u64::from(self.free_of(m))).sum()
    }

    /// Free credit of a member; none while its session has too many bytes to settle.
    fn free_of(&self, m: &Member) -> u32 {
        if self.is_session_full(m.session) { 0 } else { m.free() }
    }

    /// Whether a member's session has as many bytes to settle as it may, so that it takes nothing
    /// more.
    pub(super) fn is_full(&mut self, member: MemberRef) -> bool {
        let session = self.member(member).map(|m| m.session);
        session.is_none_or(|session| self.is_session_full(session))
    }

    fn is_session_full(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_none_or(|s| s.flight_bytes >= MAX_SESSION_UNSETTLED_BYTES)
    }

    /// The least loaded member of a destination with credit, and how many deliveries it should take
    /// in one go, so that a backlog of `waiting` is shared evenly.
    pub(super) fn least_loaded(&self, dest: DestIx, waiting: usize) -> Option<(MemberRef, u32)> {
        let members = &self.dests[dest].members;
        let candidates =
            members.iter().filter_map(|r| self.members.get(r.ix).map(|m| (*r, m, self.free_of(m))));
        let (best, _, free) =
            candidates.filter(|(.., free)| *free > 0).min_by_key(|(_, m, _)| m.outstanding)?;
        let share = waiting.div_ceil(members.len()).clamp(1, 64) as u32;
        Some((best, share.min(free)))
    }

    /// A delivery is on its way to a session.
    pub(super) fn begin_flight(&mut self, session: SessionId, id: TimerId, bytes: usize) {
        if let Some(s) = self.sessions.get_mut(&session)
            && s.flights.insert(id, bytes).is_none()
        {
            s.flight_bytes += bytes;
        }
    }

    /// A delivery is settled, or taken for lost.
    pub(super) fn end_flight(&mut self, session: SessionId, id: TimerId) {
        let Some(s) = self.sessions.get_mut(&session) else { return };
        let Some(bytes) = s.flights.remove(&id) else { return };
        let was_full = s.flight_bytes >= MAX_SESSION_UNSETTLED_BYTES;
        s.flight_bytes -= bytes;
        if was_full && s.flight_bytes < MAX_SESSION_UNSETTLED_BYTES {
            // Every destination of the session may have waited for this.
            let members: Vec<MemberRef> = s.registrations.values().copied().collect();
            for member in members {
                if let Some(dest) = live(&mut self.members, member).map(|m| m.dest) {
                    self.touch(dest);
                }
            }
        }
    }

    /// Registrations for a destination.
    pub(super) fn members(&self, dest: DestIx) -> usize {
        self.dest(dest).members.len()
    }

    /// Whether anybody is registered for a destination.
    pub(super) fn has_members(&self, dest: DestIx) -> bool {
        self.members(dest) > 0
    }

    /// Credit of a destination that is in use.
    pub(super) fn outstanding(&self, dest: DestIx) -> usize {
        let members = self.dest(dest).members.iter().filter_map(|m| self.members.get(m.ix));
        members.map(|m| m.outstanding as usize).sum()
    }

    /// The clients of every destination, in no particular order.
    pub(super) fn client_views(&self) -> impl Iterator<Item = ClientView> + '_ {
        self.dests.iter().map(|(_, dest)| {
            let members = dest.members.iter().filter_map(|m| self.members.get(m.ix));
            let mut view = ClientView {
                dest: dest.name.clone(),
                sessions: 0,
                credit: 0,
                in_flight: 0,
                waiting: dest.ready.len() as u64,
            };
            for member in members {
                view.sessions += 1;
                view.credit += u64::from(member.credit);
                view.in_flight += u64::from(member.outstanding);
            }
            view
        })
    }

    /// Uses one credit.
    pub(super) fn charge(&mut self, member: MemberRef) {
        if let Some(m) = live(&mut self.members, member) {
            m.outstanding += 1;
        }
    }

    /// Takes back a delivery of this turn, if it was not sent yet.
    pub(super) fn withdraw(&mut self, member: MemberRef, id: TimerId) {
        if let Some(m) = live(&mut self.members, member) {
            m.outbox.retain(|delivery| delivery.id != id);
        }
    }

    /// Queues a delivery for sending at the end of the turn.
    pub(super) fn post(&mut self, member: MemberRef, delivery: Delivery) {
        if let Some(m) = live(&mut self.members, member) {
            if m.outbox.is_empty() {
                self.outgoing.push(member);
            }
            m.outbox.push(delivery);
        }
    }
}

fn live(members: &mut Slab<Member>, member: MemberRef) -> Option<&mut Member> {
    members.get_mut(member.ix).filter(|m| m.generation == member.generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_forgotten_when_they_have_left_and_nothing_is_outstanding() {
        let mut roster = Roster::new(Seeded(1));
        let (session, dest) = (SessionId(1), Destination::new("test", "a").unwrap());
        roster.open(session, 1);
        roster.register(session, 1, &dest, 10).unwrap();
        roster.unregister(session, 1);
        assert_eq!(roster.members.len(), 0);
        roster.register(session, 2, &dest, 10).unwrap();
        let member = roster.sessions[&session].registrations[&2];
        (0..2).for_each(|_| roster.charge(member));
        roster.unregister(session, 2);
        roster.give_back(member);
        assert_eq!((roster.members.len(), roster.takes(member)), (1, false), "one delivery is outstanding");
        roster.give_back(member);
        assert_eq!(roster.members.len(), 0);
    }
}
