//! Who takes callbacks: sessions, their registrations (members of a destination) and credits.
//!
//! Invariants: a registration of an open session is a member of its destination, and nobody else
//! is; the bytes of a session are those of its deliveries that are not settled; a member with
//! deliveries of this turn is in `outgoing` once.

use mtimer_protocol::{ClientView, Delivery};
use mtimer_types::limits::MAX_SESSION_UNSETTLED_BYTES;
use mtimer_types::{Destination, TimerId};

use super::destination::{Dest, DestinationTable};
use super::destination_members::{DestIx, DestinationMember, DestinationMembers, MemberRef};
use super::hash::{Map, Seeded};
use crate::api::SessionId;

/// What the engine knows of a session.
#[derive(Debug)]
struct SessionState {
    client: u128,
    registrations: Map<u32, MemberRef>,
    /// Deliveries that it has not settled, and the bytes of their payloads and headers.
    flights: Map<TimerId, usize>,
    flight_bytes: usize,
    /// Operations not answered yet.
    unanswered: usize,
}

#[derive(Debug)]
pub(super) struct Roster {
    seed: Seeded,
    sessions: Map<SessionId, SessionState>,
    members: DestinationMembers,
    dests: DestinationTable,
    /// Members with something in their outbox.
    outgoing: Vec<MemberRef>,
}

impl Roster {
    pub(super) fn new(seed: Seeded) -> Self {
        Self {
            seed,
            sessions: Map::with_hasher(seed),
            members: DestinationMembers::default(),
            dests: DestinationTable::new(seed),
            outgoing: Vec::new(),
        }
    }

    pub(super) fn open(&mut self, id: SessionId, client: u128) {
        let (registrations, flights) = (Map::with_hasher(self.seed), Map::with_hasher(self.seed));
        self.sessions
            .insert(id, SessionState { client, registrations, flights, flight_bytes: 0, unanswered: 0 });
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

    pub(super) fn dest(&self, ix: DestIx) -> &Dest {
        self.dests.get(ix)
    }

    pub(super) fn dest_mut(&mut self, ix: DestIx) -> &mut Dest {
        self.dests.get_mut(ix)
    }

    pub(super) fn dests(&self) -> impl Iterator<Item = (DestIx, &Dest)> {
        self.dests.iter()
    }

    /// Has this destination looked at before the turn ends.
    pub(super) fn touch(&mut self, ix: DestIx) {
        self.dests.touch(ix);
    }

    /// Takes the destinations to look at, each once.
    pub(super) fn take_dirty(&mut self) -> Vec<DestIx> {
        self.dests.take_dirty()
    }

    /// Forgets a destination that has nothing left. Call it with destinations of which something
    /// ended.
    pub(super) fn forget_unused(&mut self, ix: DestIx) {
        self.dests.forget_unused(ix);
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
        if let Some(member) = s.registrations.get(&registration).and_then(|m| self.members.get_mut(*m)) {
            if member.dest != dest {
                return Err("the registration number stands for another destination: use a new one");
            }
            member.set_credit(credit);
            return Ok(());
        }
        if s.registrations.len() >= mtimer_types::limits::MAX_REGISTRATIONS {
            return Err("too many registrations in one session: use fewer destinations or more sessions");
        }
        let member = self.members.insert(session, registration, dest, credit);
        s.registrations.insert(registration, member);
        self.dests.get_mut(dest).join(member);
        Ok(())
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
        if let Some(dest) = self.members.leave(member) {
            self.dests.get_mut(dest).leave(member);
            self.touch(dest);
        }
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
        if let Some(dest) = self.members.give_back(member) {
            self.touch(dest);
        }
    }

    /// Credits of a destination that are free.
    pub(super) fn free(&self, dest: DestIx) -> u64 {
        let members = self.dests.get(dest).members().iter().filter_map(|m| self.members.get(*m));
        members.map(|m| u64::from(self.free_of(m))).sum()
    }

    /// Free credit of a member; none while its session has too many bytes to settle.
    fn free_of(&self, m: &DestinationMember) -> u32 {
        if self.is_session_full(m.session) { 0 } else { m.free() }
    }

    /// Whether a member's session has as many bytes to settle as it may, so that it takes nothing
    /// more.
    pub(super) fn is_full(&self, member: MemberRef) -> bool {
        let session = self.members.get(member).map(|m| m.session);
        session.is_none_or(|session| self.is_session_full(session))
    }

    fn is_session_full(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_none_or(|s| s.flight_bytes >= MAX_SESSION_UNSETTLED_BYTES)
    }

    /// The least loaded member of a destination with credit, and how many deliveries it should take
    /// in one go, so that a backlog of `waiting` is shared evenly.
    pub(super) fn least_loaded(&self, dest: DestIx, waiting: usize) -> Option<(MemberRef, u32)> {
        let members = self.dests.get(dest).members();
        let candidates =
            members.iter().filter_map(|r| self.members.get(*r).map(|m| (*r, m, self.free_of(m))));
        let (best, _, free) =
            candidates.filter(|(.., free)| *free > 0).min_by_key(|(_, m, _)| m.outstanding())?;
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
                if let Some(dest) = self.members.get(member).map(|m| m.dest) {
                    self.touch(dest);
                }
            }
        }
    }

    /// Registrations for a destination.
    pub(super) fn members(&self, dest: DestIx) -> usize {
        self.dest(dest).members().len()
    }

    /// Whether anybody is registered for a destination.
    pub(super) fn has_members(&self, dest: DestIx) -> bool {
        self.members(dest) > 0
    }

    /// Credit of a destination that is in use.
    pub(super) fn outstanding(&self, dest: DestIx) -> usize {
        let members = self.dest(dest).members().iter().filter_map(|m| self.members.get(*m));
        members.map(|m| m.outstanding() as usize).sum()
    }

    /// The member that a registration stands for.
    #[cfg(test)]
    pub(super) fn registered(&self, session: SessionId, registration: u32) -> Option<MemberRef> {
        self.sessions.get(&session)?.registrations.get(&registration).copied()
    }

    /// The clients of every destination, in no particular order.
    pub(super) fn client_views(&self) -> impl Iterator<Item = ClientView> + '_ {
        self.dests.iter().map(|(_, dest)| {
            let members = dest.members().iter().filter_map(|m| self.members.get(*m));
            let mut view = ClientView {
                dest: dest.name().clone(),
                sessions: 0,
                credit: 0,
                in_flight: 0,
                waiting: dest.ready.len() as u64,
            };
            for member in members {
                view.sessions += 1;
                view.credit += u64::from(member.credit());
                view.in_flight += u64::from(member.outstanding());
            }
            view
        })
    }

    /// Uses one credit.
    pub(super) fn charge(&mut self, member: MemberRef) {
        if let Some(m) = self.members.get_mut(member) {
            m.charge();
        }
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
