//! Members of destinations: the registrations of sessions for destinations, and their credit.
//!
//! Invariant: a member that has left takes nothing more and is forgotten when nothing of it is
//! outstanding; a reference to it names no later member.

use mtimer_protocol::Delivery;
use slab::Slab;

use crate::api::SessionId;

/// Number of a destination in this engine.
pub(super) type DestIx = usize;

/// Names a member for as long as its registration lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MemberRef {
    ix: usize,
    generation: u64,
}

/// A member's contribution to the sums of its destination.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Load {
    pub(super) credit: u64,
    /// Credit in use.
    pub(super) outstanding: u64,
    /// Credit that is not in use.
    pub(super) free: u64,
}

impl Load {
    /// Takes in that a part of it changes.
    pub(super) fn change(&mut self, before: Load, after: Load) {
        self.credit = self.credit + after.credit - before.credit;
        self.outstanding = self.outstanding + after.outstanding - before.outstanding;
        self.free = self.free + after.free - before.free;
    }
}

/// A member of a destination: one registration of one session.
#[derive(Debug)]
pub(super) struct DestinationMember {
    pub(super) session: SessionId,
    pub(super) registration: u32,
    pub(super) dest: DestIx,
    generation: u64,
    credit: u32,
    /// Credit in use: deliveries whose outcomes are not stored.
    outstanding: u32,
    /// Deliveries of this turn.
    outbox: Vec<Delivery>,
    /// Unregistered or gone.
    leaving: bool,
}

impl DestinationMember {
    /// Credit that is not in use.
    pub(super) fn free(&self) -> u32 {
        if self.leaving { 0 } else { self.credit.saturating_sub(self.outstanding) }
    }

    /// Its contribution to the sums of its destination: nothing once it has left.
    pub(super) fn load(&self) -> Load {
        if self.leaving {
            return Load::default();
        }
        let (credit, outstanding) = (u64::from(self.credit), u64::from(self.outstanding));
        Load { credit, outstanding, free: u64::from(self.free()) }
    }

    pub(super) fn set_credit(&mut self, credit: u32) {
        self.credit = credit;
    }

    /// Credit in use.
    pub(super) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Whether deliveries may still be sent to it.
    pub(super) fn takes(&self) -> bool {
        !self.leaving
    }

    /// Uses one credit.
    pub(super) fn charge(&mut self) {
        self.outstanding += 1;
    }

    /// Gives back one credit.
    pub(super) fn discharge(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// It takes nothing more.
    pub(super) fn leave(&mut self) {
        self.leaving = true;
    }

    /// Queues a delivery for sending at the end of the turn. True if it is the first.
    pub(super) fn post(&mut self, delivery: Delivery) -> bool {
        self.outbox.push(delivery);
        self.outbox.len() == 1
    }

    /// Takes the deliveries of this turn.
    pub(super) fn take_outbox(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.outbox)
    }

    /// The deliveries of this turn.
    #[cfg(test)]
    pub(super) fn outbox(&self) -> &[Delivery] {
        &self.outbox
    }

    /// Keeps the deliveries of this turn that `keep` accepts.
    pub(super) fn retain_outbox(&mut self, keep: impl Fn(&Delivery) -> bool) {
        self.outbox.retain(keep);
    }

    fn is_done(&self) -> bool {
        self.leaving && self.outstanding == 0
    }
}

/// All members of all destinations.
#[derive(Debug, Default)]
pub(super) struct DestinationMembers {
    all: Slab<DestinationMember>,
    generation: u64,
}

impl DestinationMembers {
    /// Adds a member.
    pub(super) fn insert(
        &mut self,
        session: SessionId,
        registration: u32,
        dest: DestIx,
        credit: u32,
    ) -> MemberRef {
        self.generation += 1;
        let generation = self.generation;
        let outbox = Vec::new();
        let (outstanding, leaving) = (0, false);
        let member = DestinationMember {
            session,
            registration,
            dest,
            generation,
            credit,
            outstanding,
            outbox,
            leaving,
        };
        MemberRef { ix: self.all.insert(member), generation }
    }

    pub(super) fn get(&self, member: MemberRef) -> Option<&DestinationMember> {
        self.all.get(member.ix).filter(|m| m.generation == member.generation)
    }

    /// All of them, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &DestinationMember> {
        self.all.iter().map(|(_, member)| member)
    }

    pub(super) fn get_mut(&mut self, member: MemberRef) -> Option<&mut DestinationMember> {
        self.all.get_mut(member.ix).filter(|m| m.generation == member.generation)
    }

    /// Forgets a member that has left and of which nothing is outstanding. True if it did.
    pub(super) fn forget_if_done(&mut self, member: MemberRef) -> bool {
        let done = self.get(member).is_some_and(DestinationMember::is_done);
        if done {
            self.all.remove(member.ix);
        }
        done
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.all.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_forgotten_when_they_have_left_and_nothing_is_outstanding() {
        let mut members = DestinationMembers::default();
        let join = |members: &mut DestinationMembers| members.insert(SessionId(1), 1, 7, 10);
        let first = join(&mut members);
        assert!(!members.forget_if_done(first));
        members.get_mut(first).unwrap().leave();
        assert!(members.forget_if_done(first) && !members.forget_if_done(first));
        assert_eq!(members.len(), 0);
        let second = join(&mut members);
        assert!(members.get(first).is_none(), "it is another");
        let member = |members: &mut DestinationMembers, change: fn(&mut DestinationMember)| {
            change(members.get_mut(second).unwrap());
        };
        (0..2).for_each(|_| member(&mut members, DestinationMember::charge));
        assert_eq!(members.get(second).unwrap().load(), Load { credit: 10, outstanding: 2, free: 8 });
        member(&mut members, DestinationMember::leave);
        member(&mut members, DestinationMember::discharge);
        let left = members.get(second).unwrap();
        assert_eq!((left.takes(), left.free(), left.load()), (false, 0, Load::default()));
        assert!(!members.forget_if_done(second), "one is outstanding");
        member(&mut members, DestinationMember::discharge);
        assert!(members.forget_if_done(second) && members.len() == 0);
    }
}
