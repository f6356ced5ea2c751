//! The credit of one destination: sums, and which session takes the next delivery.
//!
//! Invariants: the sums are those over the registrations that are here; `by_load` has exactly the
//! sessions that have free credit and are not full. Choosing, and every change, takes time in
//! proportion to the logarithm of the number of sessions, and to the registrations of one session
//! ([`MAX_REGISTRATIONS_OF_DESTINATION`](mtimer_types::limits::MAX_REGISTRATIONS_OF_DESTINATION)).

use std::collections::{BTreeMap, BTreeSet};

use super::destination_members::{Load, MemberRef};
use crate::api::SessionId;

/// The registrations of one session for the destination, which count as one.
#[derive(Debug)]
struct SessionShare {
    /// When its first registration was made, in relation to the others.
    joined: u64,
    members: Vec<MemberRef>,
    load: Load,
    /// It takes no deliveries for now, even with credit.
    is_full: bool,
}

impl SessionShare {
    fn free(&self) -> u64 {
        if self.is_full { 0 } else { self.load.free }
    }

    fn place(&self, session: SessionId) -> (u64, u64, SessionId) {
        (self.load.outstanding, self.joined, session)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct DestinationCredit {
    sessions: BTreeMap<SessionId, SessionShare>,
    /// Sessions that take deliveries, the one with the least in use first. Of equals the one that
    /// has joined first.
    by_load: BTreeSet<(u64, u64, SessionId)>,
    /// Free credit here is that of sessions that are not full.
    sum: Load,
    registrations: usize,
    joined: u64,
}

impl DestinationCredit {
    /// Adds a registration, without credit for now. `is_full`: whether the session takes nothing.
    pub(super) fn join(&mut self, session: SessionId, member: MemberRef, is_full: bool) {
        self.joined += 1;
        let (joined, load) = (self.joined, Load::default());
        let new = || SessionShare { joined, members: Vec::new(), load, is_full };
        self.sessions.entry(session).or_insert_with(new).members.push(member);
        self.registrations += 1;
    }

    /// Removes a registration, whose load has become nothing.
    pub(super) fn leave(&mut self, session: SessionId, member: MemberRef) {
        let Some(share) = self.sessions.get_mut(&session) else { return };
        let before = share.members.len();
        share.members.retain(|other| *other != member);
        self.registrations -= before - share.members.len();
        if share.members.is_empty() {
            self.sessions.remove(&session);
        }
    }

    /// The load of one of a session's registrations changes.
    pub(super) fn change(&mut self, session: SessionId, before: Load, after: Load) {
        if before != after {
            self.update(session, |share| share.load.change(before, after));
        }
    }

    /// Notes that a session takes no deliveries for now, even with credit, or takes them again.
    pub(super) fn set_full(&mut self, session: SessionId, is_full: bool) {
        self.update(session, |share| share.is_full = is_full);
    }

    fn update(&mut self, session: SessionId, change: impl FnOnce(&mut SessionShare)) {
        let Some(share) = self.sessions.get_mut(&session) else { return };
        let (place, before) = (share.place(session), Load { free: share.free(), ..share.load });
        change(share);
        let (new_place, after) = (share.place(session), Load { free: share.free(), ..share.load });
        self.sum.change(before, after);
        if before.free > 0 && (after.free == 0 || place != new_place) {
            self.by_load.remove(&place);
        }
        if after.free > 0 && (before.free == 0 || place != new_place) {
            self.by_load.insert(new_place);
        }
    }

    /// The registrations of the session with the least in use among those that take deliveries.
    pub(super) fn least_loaded(&self) -> &[MemberRef] {
        let first = self.by_load.first().and_then(|(.., session)| self.sessions.get(session));
        first.map_or(&[], |share| &share.members)
    }

    /// How many registrations a session has.
    pub(super) fn registrations_of(&self, session: SessionId) -> usize {
        self.sessions.get(&session).map_or(0, |share| share.members.len())
    }

    /// The sums over all registrations. Of full sessions no credit is free.
    pub(super) fn sum(&self) -> Load {
        self.sum
    }

    /// How many registrations there are.
    pub(super) fn registrations(&self) -> usize {
        self.registrations
    }

    /// How many sessions are registered.
    pub(super) fn sessions(&self) -> usize {
        self.sessions.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::destination_members::DestinationMembers;
    use super::*;

    fn load(credit: u64, outstanding: u64) -> Load {
        Load { credit, outstanding, free: credit.saturating_sub(outstanding) }
    }

    /// The session and load of each registration. The sessions, in the order of joining.
    #[derive(Default)]
    struct Model {
        registrations: Vec<(SessionId, MemberRef, Load)>,
        sessions: Vec<SessionId>,
        full: [bool; 4],
    }

    impl Model {
        /// The session that takes the next delivery, and the sums. Walks over everything.
        fn expected(&self) -> (Option<SessionId>, Load) {
            let all = |session: SessionId| {
                let own = self.registrations.iter().filter(move |(other, ..)| *other == session);
                own.fold(Load::default(), |mut share, (.., one)| {
                    let free = if self.full[session.0 as usize] { 0 } else { one.free };
                    share.change(Load::default(), Load { free, ..*one });
                    share
                })
            };
            let takes = self.sessions.iter().filter(|session| all(**session).free > 0);
            let first = takes.min_by_key(|session| all(**session).outstanding).copied();
            let mut sum = Load::default();
            self.sessions.iter().for_each(|session| sum.change(Load::default(), all(*session)));
            (first, sum)
        }

        fn forget_sessions(&mut self) {
            let registrations = &self.registrations;
            self.sessions.retain(|session| registrations.iter().any(|(other, ..)| other == session));
        }
    }

    proptest! {
        #[test]
        fn chooses_and_adds_up_as_a_walk_over_all_registrations_does(
            steps in vec((0..4_u64, 0..4_usize, 0..5_u64, 0..5_u64), 1..60)
        ) {
            let mut members = DestinationMembers::default();
            let mut credit = DestinationCredit::default();
            let mut model = Model::default();
            for (session, kind, a, b) in steps {
                let id = SessionId(session);
                let own = |n: &usize| model.registrations[*n].0 == id;
                let own: Vec<usize> = (0..model.registrations.len()).filter(own).collect();
                match (kind, own.get(a as usize)) {
                    (0, _) => {
                        let member = members.insert(id, 1, 0, 0);
                        credit.join(id, member, model.full[session as usize]);
                        credit.change(id, Load::default(), load(a, b));
                        model.registrations.push((id, member, load(a, b)));
                        if !model.sessions.contains(&id) {
                            model.sessions.push(id);
                        }
                    }
                    (1, Some(at)) => {
                        let (_, member, before) = model.registrations.remove(*at);
                        credit.change(id, before, Load::default());
                        credit.leave(id, member);
                        model.forget_sessions();
                    }
                    (2, Some(at)) => {
                        let before = std::mem::replace(&mut model.registrations[*at].2, load(b, a));
                        credit.change(id, before, load(b, a));
                    }
                    (3, _) => {
                        model.full[session as usize] = b > 2;
                        credit.set_full(id, b > 2);
                    }
                    _ => {}
                }
                let chosen = credit.least_loaded().first();
                let chosen = chosen.map(|member| members.get(*member).unwrap().session);
                prop_assert_eq!((chosen, credit.sum()), model.expected());
                prop_assert_eq!(credit.registrations(), model.registrations.len());
                prop_assert_eq!(credit.sessions(), model.sessions.len());
            }
        }
    }
}
