//! Assigns partitions to members: a pure function of the members present and the former owners.
//!
//! Purpose: balance that moves as little as possible.
//! Invariant: the same members and the same owners before give the same owners after, and these,
//! given again, stay.
//! Not in here: who counts as a member, how long something may be out of reach before that matters.

use std::collections::BTreeSet;

use mtimer_types::PartitionId;

/// How willingly a member is given partitions; a worse one gets only partitions that no better one
/// reaches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Standing {
    /// Like everybody.
    Full,
    /// It came and went too often of late.
    HeldBack,
    /// It is being emptied.
    Draining,
}

/// From the best to the worst.
const STANDINGS: [Standing; 3] = [Standing::Full, Standing::HeldBack, Standing::Draining];

/// One member's claim to a share.
#[derive(Clone, Debug)]
pub struct AssignmentCandidate {
    /// Its share in relation to others'; at least 1.
    pub weight: u16,
    /// How willingly it is given something.
    pub standing: Standing,
    /// Partitions that it cannot be given, or cannot keep.
    pub unreachable: BTreeSet<PartitionId>,
}

impl AssignmentCandidate {
    fn reaches(&self, partition: usize) -> bool {
        // Partitions are counted in 16 bits: see `PartitionId`.
        self.unreachable.is_empty() || !self.unreachable.contains(&PartitionId(partition as u16))
    }
}

/// Decides who is to own each partition: an index into `members`, or nobody.
///
/// `before` has, by partition number, the present owner as an index into `members`; `None`: nobody
/// who is a member. Among the members of best standing who reach a partition all is balanced by
/// weight (largest remainder), for equal weights within one; as few partitions move as balance
/// allows. A partition that nobody reaches stays where it is.
pub fn assign(members: &[AssignmentCandidate], before: &[Option<usize>]) -> Vec<Option<usize>> {
    let mut owners: Vec<_> = before.iter().map(|m| m.filter(|m| *m < members.len())).collect();
    let best: Vec<Option<Standing>> = (0..owners.len())
        .map(|p| members.iter().filter(|m| m.reaches(p)).map(|m| m.standing).min())
        .collect();
    for standing in STANDINGS {
        let partitions: Vec<usize> = (0..owners.len()).filter(|p| best[*p] == Some(standing)).collect();
        let mut share = Share::of(members, standing, &partitions, &owners);
        let stuck = (0..owners.len()).filter(|p| best[*p].is_none()).filter_map(|p| owners[p]);
        share.count_stuck(stuck);
        share.spread(&partitions, &mut owners);
    }
    owners
}

/// The balance among the members of one standing.
struct Share<'a> {
    members: &'a [AssignmentCandidate],
    standing: Standing,
    /// The participants: members of the standing that reach any of its partitions.
    takers: Vec<usize>,
    /// By member: how many partitions it has, those included that nobody reaches.
    held: Vec<usize>,
    /// How many there are, all together.
    total: usize,
    /// By member: how many it ought to have.
    quota: Vec<usize>,
}

impl<'a> Share<'a> {
    fn of(
        members: &'a [AssignmentCandidate],
        standing: Standing,
        partitions: &[usize],
        owners: &[Option<usize>],
    ) -> Self {
        let takes = |m: &usize| {
            members[*m].standing == standing && partitions.iter().any(|p| members[*m].reaches(*p))
        };
        let takers = (0..members.len()).filter(takes).collect();
        let (held, quota) = (vec![0; members.len()], vec![0; members.len()]);
        let mut share = Self { members, standing, takers, held, total: partitions.len(), quota };
        for p in partitions {
            if let Some(m) = owners[*p].filter(|m| share.may_have(*m, *p)) {
                share.held[m] += 1;
            }
        }
        share
    }

    /// Counts partitions whose store no member reaches towards their owners' shares, so that they
    /// make no other partition move.
    fn count_stuck(&mut self, owners: impl Iterator<Item = usize>) {
        for m in owners.filter(|m| self.takers.contains(m)) {
            self.held[m] += 1;
            self.total += 1;
        }
    }

    fn may_have(&self, member: usize, partition: usize) -> bool {
        let m = &self.members[member];
        m.standing == self.standing && m.reaches(partition)
    }

    /// Gives the homeless a home, then moves from those above their quota to those below, until
    /// nobody can be helped.
    ///
    /// Ends: with quotas by largest remainder, ties to the member that has more, every move brings
    /// the sum of squared distances from the exact shares down.
    fn spread(&mut self, partitions: &[usize], owners: &mut [Option<usize>]) {
        self.set_quotas();
        for p in partitions {
            if owners[*p].is_some_and(|m| self.may_have(m, *p)) {
                continue;
            }
            owners[*p] = self.neediest(*p);
            if let Some(m) = owners[*p] {
                self.held[m] += 1;
            }
        }
        loop {
            self.set_quotas();
            let mut moved = false;
            for p in partitions {
                let Some(from) = owners[*p].filter(|m| self.held[*m] > self.quota[*m]) else { continue };
                let Some(to) = self.neediest(*p).filter(|m| self.held[*m] < self.quota[*m]) else { continue };
                owners[*p] = Some(to);
                self.held[from] -= 1;
                self.held[to] += 1;
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    /// Who may have the partition and is farthest below its quota, or least above it; the first of
    /// several.
    fn neediest(&self, partition: usize) -> Option<usize> {
        let takers = self.takers.iter().copied().filter(|m| self.may_have(*m, partition));
        takers.min_by_key(|m| self.held[*m] as i64 - self.quota[*m] as i64)
    }

    /// Sets quotas by largest remainder. Of equal remainders, the member with more partitions gets
    /// the larger quota, so that it need not give one away.
    fn set_quotas(&mut self) {
        let weight = |m: usize| usize::from(self.members[m].weight.max(1));
        let weights: usize = self.takers.iter().map(|m| weight(*m)).sum();
        if weights == 0 {
            return;
        }
        let mut order: Vec<(usize, i64, usize)> = Vec::with_capacity(self.takers.len());
        let mut left = self.total;
        for m in &self.takers {
            let exact = self.total * weight(*m);
            let floor = exact / weights;
            self.quota[*m] = floor;
            left -= floor;
            order.push((exact % weights, self.held[*m] as i64 - floor as i64, *m));
        }
        order.sort_by(|a, b| (b.0, b.1).cmp(&(a.0, a.1)).then(a.2.cmp(&b.2)));
        for (_, _, m) in order.into_iter().take(left) {
            self.quota[m] += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member(weight: u16, standing: Standing, unreachable: &[u16]) -> AssignmentCandidate {
        AssignmentCandidate {
            weight,
            standing,
            unreachable: unreachable.iter().copied().map(PartitionId).collect(),
        }
    }

    fn full(n: usize) -> Vec<AssignmentCandidate> {
        vec![member(100, Standing::Full, &[]); n]
    }

    fn counts(members: usize, owners: &[Option<usize>]) -> Vec<usize> {
        (0..members).map(|m| owners.iter().filter(|o| **o == Some(m)).count()).collect()
    }

    fn moved(before: &[Option<usize>], after: &[Option<usize>]) -> usize {
        before.iter().zip(after).filter(|(b, a)| b.is_some() && b != a).count()
    }

    #[test]
    fn nobody_is_there_so_nobody_owns() {
        assert_eq!(assign(&[], &[Some(3), None]), vec![None, None]);
    }

    #[test]
    fn shares_follow_weights_by_largest_remainder() {
        let members = [(100, 7), (200, 13), (50, 3)].map(|(w, _)| member(w, Standing::Full, &[]));
        // 23 in proportion 2 : 4 : 1 are 6.57, 13.14 and 3.29.
        assert_eq!(counts(3, &assign(&members, &[None; 23])), [7, 13, 3]);
    }

    #[test]
    fn who_is_emptied_or_held_back_gets_only_what_no_better_one_reaches() {
        let members = [
            member(100, Standing::Full, &[0, 1]),
            member(100, Standing::HeldBack, &[0]),
            member(100, Standing::Draining, &[]),
        ];
        let owners = assign(&members, &[Some(2); 6]);
        assert_eq!(owners, [Some(2), Some(1), Some(0), Some(0), Some(0), Some(0)]);
    }

    #[test]
    fn what_nobody_reaches_stays_and_nothing_else_moves_for_its_sake() {
        let members = vec![member(100, Standing::Full, &[0, 1]); 2];
        let before = [Some(0), Some(0), Some(0), Some(1), Some(1), Some(1)];
        assert_eq!(assign(&members, &before), before);
        let homeless = [None, Some(0), Some(0), Some(1), Some(1), Some(1)];
        assert_eq!(assign(&members, &homeless)[0], None);
    }

    #[test]
    fn who_comes_back_gets_its_share_and_the_others_keep_theirs() {
        let all = assign(&full(4), &[None; 26]);
        // Member 3 goes, and comes back.
        let without: Vec<_> = all.iter().map(|o| o.filter(|m| *m != 3)).collect();
        let three = assign(&full(3), &without);
        assert_eq!(moved(&without, &three), 0);
        let again = assign(&full(4), &three);
        assert_eq!(moved(&three, &again), 6);
        assert!(counts(4, &again).iter().all(|n| (6..=7).contains(n)));
    }

    #[test]
    fn who_takes_no_part_has_no_share_in_the_balance() {
        let of = [
            member(100, Standing::Draining, &[]),
            member(100, Standing::HeldBack, &[]),
            member(100, Standing::Full, &[0, 1, 2, 3, 4, 5]),
        ];
        for third in of {
            let members = [full(2), vec![third]].concat();
            assert_eq!(counts(3, &assign(&members, &[Some(0); 6])), [3, 3, 0]);
        }
    }

    #[test]
    fn what_nobody_reaches_counts_for_whoever_has_it() {
        let members = vec![member(100, Standing::Full, &[0, 1]); 2];
        let after = assign(&members, &[Some(0); 6]);
        assert_eq!((counts(2, &after), &after[..2]), (vec![3, 3], &[Some(0); 2][..]));
    }

    /// Member 2 is below its share, and reaches nothing that member 0 has too many of.
    #[test]
    fn nothing_moves_to_a_member_that_has_its_share() {
        let near = member(100, Standing::Full, &[5]);
        let members = [near.clone(), near, member(100, Standing::Full, &[0, 1, 2, 3, 4])];
        let before = [Some(0), Some(0), Some(0), Some(1), Some(1), Some(2)];
        assert_eq!(assign(&members, &before), before);
    }

    #[test]
    fn of_equal_remainders_whoever_has_more_keeps_it() {
        // Half a partition and one and a half: each has a remainder of a half.
        let members = [100, 300].map(|w| member(w, Standing::Full, &[]));
        assert_eq!(assign(&members, &[Some(0), Some(1)]), [Some(0), Some(1)]);
    }

    /// The fewest moves that bring `held` (and so many without an owner) to within one: by trying
    /// who gets the extra ones.
    fn fewest(held: &[usize], total: usize) -> usize {
        let (floor, extras) = (total / held.len(), total % held.len());
        let subsets = 0u32..1 << held.len();
        let over = |set: u32| -> usize {
            held.iter().enumerate().map(|(m, h)| h.saturating_sub(floor + (set >> m & 1) as usize)).sum()
        };
        subsets.filter(|s| s.count_ones() as usize == extras).map(over).min().unwrap_or(0)
    }

    fn members() -> impl Strategy<Value = Vec<AssignmentCandidate>> {
        let standing = prop_oneof![
            4 => Just(Standing::Full), 1 => Just(Standing::HeldBack), 1 => Just(Standing::Draining)
        ];
        let unreachable = prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec(0u16..40, 0..40)];
        let one = (1u16..=1_000, standing, unreachable).prop_map(|(w, s, u)| member(w, s, &u));
        prop::collection::vec(one, 0..6)
    }

    fn before() -> impl Strategy<Value = Vec<Option<usize>>> {
        prop::collection::vec(prop::option::of(0usize..7), 0..40)
    }

    proptest! {
        #[test]
        fn equals_are_within_one_and_move_as_little_as_possible(n in 1usize..7, before in before()) {
            let before: Vec<_> = before.into_iter().map(|o| o.filter(|m| *m < n)).collect();
            let after = assign(&full(n), &before);
            let (held, has) = (counts(n, &before), counts(n, &after));
            prop_assert!(has.iter().max().unwrap() - has.iter().min().unwrap() <= 1, "{has:?}");
            prop_assert_eq!(has.iter().sum::<usize>(), before.len());
            prop_assert_eq!(moved(&before, &after), fewest(&held, before.len()));
        }

        #[test]
        fn with_weights_each_has_its_quota_and_only_what_is_over_it_moves(
            weights in prop::collection::vec(1u16..=1_000, 1..7), before in before(),
        ) {
            let members: Vec<_> = weights.iter().map(|w| member(*w, Standing::Full, &[])).collect();
            let before: Vec<_> = before.into_iter().map(|o| o.filter(|m| *m < members.len())).collect();
            let after = assign(&members, &before);
            let (held, has) = (counts(members.len(), &before), counts(members.len(), &after));
            let total: usize = weights.iter().map(|w| usize::from(*w)).sum();
            for (w, n) in weights.iter().zip(&has) {
                let exact = before.len() * usize::from(*w);
                prop_assert!(*n == exact / total || *n == exact / total + 1);
            }
            let over: usize = held.iter().zip(&has).map(|(h, q)| h.saturating_sub(*q)).sum();
            prop_assert_eq!(moved(&before, &after), over);
        }

        #[test]
        fn decided_again_it_stays_and_nobody_has_what_another_should(members in members(), before in before()) {
            let after = assign(&members, &before);
            prop_assert_eq!(&assign(&members, &after), &after);
            for (p, owner) in after.iter().enumerate() {
                let best = members.iter().filter(|m| m.reaches(p)).map(|m| m.standing).min();
                match (best, owner) {
                    (None, owner) => prop_assert_eq!(*owner, before[p].filter(|m| *m < members.len())),
                    (Some(best), Some(m)) => {
                        prop_assert!(members[*m].reaches(p) && members[*m].standing == best);
                    }
                    (Some(_), None) => prop_assert!(false, "{p} has no owner"),
                }
            }
        }
    }
}
