//! How many timers each destination has in a partition.

use mtimer_types::{Destination, Filter};

use crate::table::At;

/// A page of the counts, in the order of destinations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CountsRange {
    /// Only destinations of this group and app; nothing else of the filter matters
    /// ([`Filter::accepts_destination`]).
    pub filter: Filter,
    /// Only destinations behind this one.
    pub after: Option<Destination>,
    /// At most so many rows, 1 at least.
    pub limit: u32,
}

/// The counts of some destinations.
///
/// An owner keeps them: nothing is counted when somebody asks. A store may need a while after an
/// acquisition until it knows them all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CountsPage {
    /// Destinations that have timers, in order, each with its counts.
    pub rows: Vec<(Destination, Counts)>,
    /// Where to go on: behind this one, which is of the last row; `None` at the end.
    pub next: Option<Destination>,
    /// Timers of the partition, of any destination, that are in nobody's counts yet; 0: the counts
    /// of this page are exact.
    pub uncounted: u64,
}

/// How many timers of one destination are where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// First delivery to come.
    pub pending: u64,
    /// Retries to come.
    pub retrying: u64,
    /// Parked.
    pub parked: u64,
    /// Taken, and not unconfirmed.
    pub taken: u64,
    /// Unconfirmed.
    pub unconfirmed: u64,
    /// Dead letters.
    pub dead: u64,
    /// Staged by imports; they are in none of the others.
    pub staged: u64,
}

impl Counts {
    /// Moves one count between places.
    pub fn shift(&mut self, before: Option<At>, after: Option<At>) {
        if let Some(at) = before {
            let n = self.of(at);
            *n = n.saturating_sub(1);
        }
        if let Some(at) = after {
            *self.of(at) += 1;
        }
    }

    /// All of them.
    pub const fn total(&self) -> u64 {
        let live = self.pending + self.retrying + self.parked + self.taken + self.staged;
        live + self.unconfirmed + self.dead
    }

    /// The count of one place.
    pub const fn of(&mut self, at: At) -> &mut u64 {
        match at {
            At::Pending { fire, .. } if fire.is_staged() => &mut self.staged,
            At::Pending { tier: 0, .. } => &mut self.pending,
            At::Pending { .. } => &mut self.retrying,
            At::Parked => &mut self.parked,
            At::Taken { .. } => &mut self.taken,
            At::Unconfirmed { .. } => &mut self.unconfirmed,
            At::Dead { .. } => &mut self.dead,
        }
    }
}

impl CountsRange {
    /// All of them, in pages of so many.
    pub fn of(limit: u32) -> Self {
        Self { filter: Filter::default(), after: None, limit }
    }

    /// The page of all counts that are known. Those of 0 are left out, and those of other
    /// destinations, so that `next` names none of them.
    pub fn page(
        &self,
        counts: impl IntoIterator<Item = (Destination, Counts)>,
        uncounted: u64,
    ) -> CountsPage {
        let is_asked_for = |dest: &Destination| {
            self.after.as_ref().is_none_or(|after| dest > after) && self.filter.accepts_destination(dest)
        };
        let mut rows: Vec<_> =
            counts.into_iter().filter(|(dest, counts)| counts.total() > 0 && is_asked_for(dest)).collect();
        let limit = self.limit.max(1) as usize;
        let has_more = rows.len() > limit;
        if has_more {
            // Only the first ones are sorted.
            rows.select_nth_unstable_by(limit - 1, |(a, _), (b, _)| a.cmp(b));
            rows.truncate(limit);
        }
        rows.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let next = rows.last().filter(|_| has_more).map(|(dest, _)| dest.clone());
        CountsPage { rows, next, uncounted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_lead_through_all_destinations_that_have_timers() {
        let dest = |n: u64| Destination::new("g", &format!("app-{n:03}")).unwrap();
        let counts = |n: u64| Counts { pending: n % 4, dead: n % 2, ..Counts::default() };
        let all: Vec<_> = (0..100).map(|n| (dest(n * 37 % 100), counts(n))).collect();
        let mut expected: Vec<_> = all.iter().filter(|(_, c)| c.total() > 0).cloned().collect();
        expected.sort_by(|(a, _), (b, _)| a.cmp(b));
        for limit in [1, 7, 75, 1_000] {
            let (mut range, mut rows) = (CountsRange::of(limit), Vec::new());
            loop {
                let page = range.page(all.clone(), 3);
                assert!(page.rows.len() <= limit as usize && page.uncounted == 3);
                rows.extend(page.rows);
                let Some(next) = page.next else { break };
                range.after = Some(next);
            }
            assert_eq!(rows, expected, "in pages of {limit}");
        }
    }

    #[test]
    fn other_destinations_are_neither_in_a_page_nor_named_by_its_end() {
        let dest = |group: &str, app: &str| Destination::new(group, app).unwrap();
        let one = Counts { parked: 1, ..Counts::default() };
        let all =
            || [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"), ("c", "x")].map(|(g, a)| (dest(g, a), one));
        let page = |filter: &Filter, limit| {
            CountsRange { filter: filter.clone(), ..CountsRange::of(limit) }.page(all(), 7)
        };
        let group = Filter { group: Some("b".to_owned()), ..Filter::default() };
        let rows = vec![(dest("b", "x"), one), (dest("b", "y"), one)];
        assert_eq!(page(&group, 2), CountsPage { rows: rows.clone(), next: None, uncounted: 7 });
        let next = Some(dest("b", "x"));
        assert_eq!(page(&group, 1), CountsPage { rows: rows[..1].to_vec(), next, uncounted: 7 });
        let app = Filter { app: Some("x".to_owned()), ..Filter::default() };
        let groups =
            |page: CountsPage| page.rows.iter().map(|(dest, _)| dest.group().to_owned()).collect::<String>();
        assert_eq!(groups(page(&app, 9)), "abc");
        // Nothing but the names matters.
        let key = Filter { key_prefix: Some("k".to_owned()), ..app };
        assert_eq!(groups(page(&key, 9)), "abc");
    }
}
