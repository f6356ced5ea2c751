//! Who takes callbacks: sessions, their registrations (members of a destination) and credits.
//!
//! Invariants: a registration of an open session is a member of its destination, and nobody else
//! is; the bytes of a session are those of its deliveries that are not settled; a member with
//! deliveries of this turn is in `outgoing` once. Every change of a member's credit goes through
//! [`Roster::change`], so that the sums of its destination follow.

use std::collections::BTreeSet;
use std::ops::Bound;

use mtimer_protocol::{ClientView, Delivery};
use mtimer_types::limits::{
    MAX_REGISTRATIONS, MAX_REGISTRATIONS_OF_DESTINATION, MAX_SESSION_UNSETTLED_BYTES,
};
use mtimer_types::{Destination, PartitionId, StoredSettings, Time, TimerId};

use super::destination::{Dest, DestinationTable};
use super::destination_members::{DestIx, DestinationMember, DestinationMembers, Load, MemberRef};
use super::hash::{Map, Seeded};
use super::parks::Parks;
use crate::api::SessionId;

/// A session's client, registrations and deliveries under way.
#[derive(Debug)]
struct SessionState {
    client: u128,
    registrations: Map<u32, MemberRef>,
    /// Deliveries that it has not settled, and the bytes of their payloads and headers.
    flights: Map<TimerId, usize>,
    flight_bytes: usize,
    /// Its members take nothing: it had as many bytes to settle as it may when it was last looked
    /// at.
    is_full: bool,
    /// Operations not answered yet.
    unanswered: usize,
}

impl SessionState {
    /// Whether it has as many bytes to settle as it may.
    fn is_over(&self) -> bool {
        self.flight_bytes >= MAX_SESSION_UNSETTLED_BYTES
    }
}

#[derive(Debug)]
pub(super) struct Roster {
    seed: Seeded,
    sessions: Map<SessionId, SessionState>,
    members: DestinationMembers,
    dests: DestinationTable,
    /// Members with something in their outbox.
    outgoing: Vec<MemberRef>,
    /// Where something is parked, as far as is known.
    parked: BTreeSet<(PartitionId, DestIx)>,
    /// Full sessions of which something was settled.
    relieved: Vec<SessionId>,
    /// Members that were looked at to choose one.
    #[cfg(test)]
    pub(super) looks: std::cell::Cell<u64>,
}

/// Why a registration is not made.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegistrationError {
    #[error("registration {number} stands for {found} and was repeated for {wanted}: use another number")]
    OtherDestination { number: u32, found: Destination, wanted: Destination },
    #[error(
        "too many registrations: this connection has {MAX_REGISTRATIONS}, the most there can be; use \
         fewer destinations or more connections"
    )]
    TooMany,
    #[error(
        "this connection has {MAX_REGISTRATIONS_OF_DESTINATION} registrations for {0}, the most there \
         can be for one destination: give one of them more credit"
    )]
    TooManyOfDestination(Destination),
}

impl RegistrationError {
    /// Whether the client can go on: it did nothing that it could have known to be wrong.
    pub(super) fn is_harmless(&self) -> bool {
        matches!(self, Self::TooManyOfDestination(_))
    }
}

impl Roster {
    pub(super) fn new(seed: Seeded) -> Self {
        Self {
            seed,
            sessions: Map::with_hasher(seed),
            members: DestinationMembers::default(),
            dests: DestinationTable::new(seed),
            outgoing: Vec::new(),
            parked: BTreeSet::new(),
            relieved: Vec::new(),
            #[cfg(test)]
            looks: std::cell::Cell::default(),
        }
    }

    pub(super) fn open(&mut self, id: SessionId, client: u128) {
        let (registrations, flights) = (Map::with_hasher(self.seed), Map::with_hasher(self.seed));
        let (flight_bytes, is_full, unanswered) = (0, false, 0);
        let state = SessionState { client, registrations, flights, flight_bytes, is_full, unanswered };
        self.sessions.insert(id, state);
    }

    pub(super) fn is_open(&self, id: SessionId) -> bool {
        self.sessions.contains_key(&id)
    }

    /// The open sessions, in order.
    pub(super) fn session_ids(&self) -> Vec<SessionId> {
        let mut ids: Vec<SessionId> = self.sessions.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// How many sessions are open.
    pub(super) fn sessions(&self) -> u64 {
        self.sessions.len() as u64
    }

    /// The durable name of a session's client, unless the session is closed.
    pub(super) fn client(&self, id: SessionId) -> Option<u128> {
        self.sessions.get(&id).map(|s| s.client)
    }

    /// Counts operations that a session waits for from now on. Returns how many they are with those
    /// before, or `None` if it is closed.
    pub(super) fn begin_operations(&mut self, id: SessionId, operations: usize) -> Option<usize> {
        let s = self.sessions.get_mut(&id)?;
        s.unanswered += operations;
        Some(s.unanswered)
    }

    /// Operations of a session are answered. False if it is closed.
    pub(super) fn end_operations(&mut self, id: SessionId, operations: usize) -> bool {
        let Some(s) = self.sessions.get_mut(&id) else { return false };
        s.unanswered = s.unanswered.saturating_sub(operations);
        true
    }

    /// The number of a destination, a new one if need be.
    pub(super) fn dest_ix(&mut self, name: &Destination) -> DestIx {
        self.dests.ix(name)
    }

    /// The number of a destination that has members, timers in memory or parked timers.
    pub(super) fn find_dest(&self, name: &Destination) -> Option<DestIx> {
        self.dests.find(name)
    }

    pub(super) fn dest(&self, ix: DestIx) -> &Dest {
        self.dests.get(ix)
    }

    pub(super) fn dest_mut(&mut self, ix: DestIx) -> &mut Dest {
        self.dests.get_mut(ix)
    }

    pub(super) fn dests(&self) -> impl Iterator<Item = (DestIx, &Dest)> {
        self.dests.iter()
    }

    /// Destinations that were looked at in a turn since housekeeping last released them.
    pub(super) fn busy_dests(&self) -> Vec<DestIx> {
        self.dests.busy()
    }

    /// Housekeeping passes over this destination until it is looked at in a turn again.
    pub(super) fn rest(&mut self, ix: DestIx) {
        self.dests.rest(ix);
    }

    /// Changes the parks of a destination in one partition. The destination is looked at before the
    /// turn ends.
    pub(super) fn change_park(&mut self, ix: DestIx, at: PartitionId, change: impl FnOnce(&mut Parks)) {
        let parks = &mut self.dests.get_mut(ix).parks;
        change(parks);
        if parks.has(at) {
            self.parked.insert((at, ix));
        } else {
            self.parked.remove(&(at, ix));
        }
        self.touch(ix);
    }

    /// Whether anything is parked.
    pub(super) fn has_parks(&self) -> bool {
        !self.parked.is_empty()
    }

    /// The destinations with something parked in a partition.
    pub(super) fn parked_in(&self, at: PartitionId) -> Vec<DestIx> {
        self.parked.range((at, 0)..=(at, DestIx::MAX)).map(|(_, ix)| *ix).collect()
    }

    /// The next place where something is parked, in the order of partitions; the first one after
    /// the last one. `after`: where to begin, not included.
    pub(super) fn next_park(&self, after: Option<(PartitionId, DestIx)>) -> Option<(PartitionId, DestIx)> {
        let behind =
            self.parked.range((after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)).next();
        behind.or_else(|| self.parked.first()).copied()
    }

    /// Takes in settings of a destination. False if they are known, or newer ones are.
    pub(super) fn configure(&mut self, row: StoredSettings) -> bool {
        self.dests.configure(row)
    }

    /// Ends pauses whose end has come.
    pub(super) fn end_pauses(&mut self, now: Time) {
        self.dests.end_pauses(now);
    }

    /// Timers of a destination that could be given out at once, but for its limits.
    pub(super) fn waiting_for_limits(&self, ix: DestIx) -> u64 {
        let dest = self.dests.get(ix);
        (dest.ready.len() as u64 + dest.parks.count()).min(self.free(ix))
    }

    /// What was given out of a destination with limits is sent. It may have been forgotten since.
    pub(super) fn note_sent(&mut self, ix: DestIx) {
        self.dests.note_sent(ix);
    }

    /// Notes when to look at a destination again, for its limits.
    pub(super) fn wake_for_limits(&mut self, now: u64, ix: DestIx, waiting: u64) {
        self.dests.wake_for_limits(now, ix, waiting);
    }

    /// Has the destinations looked at whose limits may allow more by now.
    pub(super) fn touch_limited(&mut self, now: u64) {
        self.dests.touch_limited(now);
    }

    /// When there is one, monotonic ms.
    pub(super) fn next_limited(&self) -> Option<u64> {
        self.dests.next_limited()
    }

    /// The destinations that are paused, and their settings, in no particular order.
    pub(super) fn paused(&self) -> impl Iterator<Item = &StoredSettings> {
        self.dests.paused()
    }

    /// The registrations for a destination: sessions, and their numbers there.
    ///
    /// Takes time in proportion to the number of all registrations.
    pub(super) fn registrations(&self, dest: DestIx) -> impl Iterator<Item = (SessionId, u32)> + '_ {
        self.members.iter().filter(move |m| m.dest == dest).map(|m| (m.session, m.registration))
    }

    /// Has this destination looked at before the turn ends.
    pub(super) fn touch(&mut self, ix: DestIx) {
        self.dests.touch(ix);
    }

    /// Takes the destinations to look at, each once. Sessions of which enough was settled take
    /// deliveries again.
    pub(super) fn take_dirty(&mut self) -> Vec<DestIx> {
        for session in std::mem::take(&mut self.relieved) {
            self.note_fullness(session);
        }
        self.dests.take_dirty()
    }

    /// Forgets a destination that has nothing left. Call it with destinations of which something
    /// ended.
    pub(super) fn forget_unused(&mut self, ix: DestIx) {
        self.dests.forget_unused(ix);
    }

    /// Registers, or changes the credit of a registration.
    pub(super) fn register(
        &mut self,
        session: SessionId,
        registration: u32,
        name: &Destination,
        credit: u32,
    ) -> Result<(), RegistrationError> {
        let dest = self.dest_ix(name);
        self.touch(dest);
        let Some(s) = self.sessions.get_mut(&session) else { return Ok(()) };
        let own = self.dests.get(dest).credit.registrations_of(session);
        let known = s.registrations.get(&registration).copied();
        if let Some(member) = known.and_then(|m| self.members.get(m)) {
            if member.dest != dest {
                let (found, wanted) = (self.dests.get(member.dest).name().clone(), name.clone());
                return Err(RegistrationError::OtherDestination { number: registration, found, wanted });
            }
        } else if s.registrations.len() >= MAX_REGISTRATIONS {
            return Err(RegistrationError::TooMany);
        } else if own >= MAX_REGISTRATIONS_OF_DESTINATION {
            return Err(RegistrationError::TooManyOfDestination(name.clone()));
        }
        let member = known.unwrap_or_else(|| {
            let member = self.members.insert(session, registration, dest, 0);
            s.registrations.insert(registration, member);
            self.dests.get_mut(dest).credit.join(session, member, s.is_full);
            member
        });
        self.change(member, |m| m.set_credit(credit));
        Ok(())
    }

    /// Changes a member, and the sums of its destination with it.
    fn change(&mut self, member: MemberRef, change: impl FnOnce(&mut DestinationMember)) {
        let Some(m) = self.members.get_mut(member) else { return };
        let before = m.load();
        change(m);
        let (session, dest, after) = (m.session, m.dest, m.load());
        if before != after {
            self.dests.get_mut(dest).credit.change(session, before, after);
        }
    }

    pub(super) fn unregister(&mut self, session: SessionId, registration: u32) {
        let Some(s) = self.sessions.get_mut(&session) else { return };
        if let Some(member) = s.registrations.remove(&registration) {
            self.leave(member);
        }
    }

    /// Forgets a session; its members take nothing more. Returns the deliveries that it has not
    /// settled, in order.
    pub(super) fn close(&mut self, session: SessionId) -> Vec<TimerId> {
        self.leave_all(session);
        let Some(s) = self.sessions.remove(&session) else { return Vec::new() };
        let mut unsettled: Vec<TimerId> = s.flights.keys().copied().collect();
        unsettled.sort_unstable();
        unsettled
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
        let Some((dest, session)) = self.members.get(member).map(|m| (m.dest, m.session)) else { return };
        self.change(member, DestinationMember::leave);
        self.dests.get_mut(dest).credit.leave(session, member);
        self.members.forget_if_done(member);
        self.touch(dest);
    }

    pub(super) fn member(&mut self, member: MemberRef) -> Option<&mut DestinationMember> {
        self.members.get_mut(member)
    }

    /// Whether a delivery may still be sent to this member.
    pub(super) fn takes(&self, member: MemberRef) -> bool {
        self.members.get(member).is_some_and(DestinationMember::takes)
    }

    /// Whether at least as much of a member's credit is free as is in use.
    pub(super) fn has_slack(&self, member: MemberRef) -> bool {
        self.members.get(member).is_some_and(|m| m.free() >= m.outstanding())
    }

    /// Gives back one credit.
    pub(super) fn give_back(&mut self, member: MemberRef) {
        let Some(dest) = self.members.get(member).map(|m| m.dest) else { return };
        self.change(member, DestinationMember::discharge);
        if !self.members.forget_if_done(member) {
            self.touch(dest);
        }
    }

    /// Credits of a destination that may be used: those that are free, none of sessions that have
    /// too many bytes to settle, and none at all while it is paused.
    pub(super) fn free(&self, dest: DestIx) -> u64 {
        let d = self.dests.get(dest);
        if d.policy.is_paused() { 0 } else { d.credit.sum().free }
    }

    /// Whether a member's session has as many bytes to settle as it may, so that it takes nothing
    /// more.
    pub(super) fn is_full(&self, member: MemberRef) -> bool {
        let session = self.members.get(member).map(|m| m.session);
        session.and_then(|session| self.sessions.get(&session)).is_none_or(SessionState::is_over)
    }

    /// A session has become full, or is so no longer: its members take nothing, or something again.
    fn note_fullness(&mut self, session: SessionId) {
        let Some(s) = self.sessions.get_mut(&session).filter(|s| s.is_full != s.is_over()) else { return };
        s.is_full = s.is_over();
        for member in s.registrations.values() {
            let Some(dest) = self.members.get(*member).map(|m| m.dest) else { continue };
            self.dests.get_mut(dest).credit.set_full(session, s.is_full);
            if !s.is_full {
                // It may have waited for this.
                self.dests.touch(dest);
            }
        }
    }

    /// The least loaded member of a destination with credit, and how many deliveries it should take
    /// in one go, so that a backlog of `waiting` is shared evenly among the sessions, and among the
    /// registrations of each.
    pub(super) fn least_loaded(&self, dest: DestIx, waiting: usize) -> Option<(MemberRef, u32)> {
        if self.dests.get(dest).policy.is_paused() {
            return None;
        }
        let credit = &self.dests.get(dest).credit;
        let members = credit.least_loaded();
        let free = members.iter().filter_map(|r| {
            #[cfg(test)]
            self.looks.set(self.looks.get() + 1);
            self.members.get(*r).map(|m| (*r, m)).filter(|(_, m)| m.free() > 0)
        });
        let (best, m) = free.min_by_key(|(_, m)| m.outstanding())?;
        let share = waiting.div_ceil(credit.sessions() * members.len()).clamp(1, 64) as u32;
        Some((best, share.min(m.free())))
    }

    /// A delivery is on its way to a session.
    pub(super) fn begin_flight(&mut self, session: SessionId, id: TimerId, bytes: usize) {
        if let Some(s) = self.sessions.get_mut(&session)
            && s.flights.insert(id, bytes).is_none()
        {
            s.flight_bytes += bytes;
            if s.is_over() {
                self.note_fullness(session);
            }
        }
    }

    /// A delivery is settled, or taken for lost.
    pub(super) fn end_flight(&mut self, session: SessionId, id: TimerId) {
        let Some(s) = self.sessions.get_mut(&session) else { return };
        let Some(bytes) = s.flights.remove(&id) else { return };
        let was_over = s.is_over();
        s.flight_bytes -= bytes;
        if was_over && !s.is_over() {
            // Once a turn: all its registrations have to be looked at.
            self.relieved.push(session);
        }
    }

    /// Registrations for a destination.
    pub(super) fn members(&self, dest: DestIx) -> usize {
        self.dest(dest).credit.registrations()
    }

    /// Whether anybody is registered for a destination.
    pub(super) fn has_members(&self, dest: DestIx) -> bool {
        self.members(dest) > 0
    }

    /// Credit of a destination that is in use.
    pub(super) fn outstanding(&self, dest: DestIx) -> usize {
        self.dest(dest).credit.sum().outstanding as usize
    }

    /// The member that a registration stands for.
    #[cfg(test)]
    pub(super) fn registered(&self, session: SessionId, registration: u32) -> Option<MemberRef> {
        self.sessions.get(&session)?.registrations.get(&registration).copied()
    }

    /// The clients of every destination, in no particular order.
    pub(super) fn client_views(&self) -> impl Iterator<Item = ClientView> + '_ {
        self.dests.iter().map(|(_, dest)| {
            let Load { credit, outstanding, .. } = dest.credit.sum();
            ClientView {
                dest: dest.name().clone(),
                sessions: u32::try_from(dest.credit.sessions()).unwrap_or(u32::MAX),
                credit,
                in_flight: outstanding,
                waiting: dest.ready.len() as u64,
            }
        })
    }

    /// Uses one credit.
    pub(super) fn charge(&mut self, member: MemberRef) {
        self.change(member, DestinationMember::charge);
    }

    /// Takes back a delivery of this turn, if it was not sent yet.
    pub(super) fn withdraw(&mut self, member: MemberRef, id: TimerId) {
        if let Some(m) = self.members.get_mut(member) {
            m.retain_outbox(|delivery| delivery.id != id);
        }
    }

    /// Queues a delivery for sending at the end of the turn.
    pub(super) fn post(&mut self, member: MemberRef, delivery: Delivery) {
        if let Some(m) = self.members.get_mut(member)
            && m.post(delivery)
        {
            self.outgoing.push(member);
        }
    }

    /// Takes the members with deliveries of this turn, each once. Take the outbox of each, too:
    /// until that is empty the member does not come back to this list.
    pub(super) fn take_outgoing(&mut self) -> Vec<MemberRef> {
        std::mem::take(&mut self.outgoing)
    }
}
