//! Messages of settlements some of which the store has not taken yet.
//!
//! Invariant: every settlement is noted once; a message is forgotten with its last.

use mtimer_protocol::SettleRefusal;
use mtimer_types::TimerId;
use slab::Slab;

use crate::api::SessionId;

/// The answer to one message of settlements, filled as they are decided.
#[derive(Debug)]
pub(super) struct SettleReport {
    pub(super) session: SessionId,
    pub(super) accepted: u32,
    pub(super) refused: Vec<(TimerId, SettleRefusal)>,
    missing: usize,
}

/// The reports that are not complete.
#[derive(Debug, Default)]
pub(super) struct SettleReports(Slab<SettleReport>);

impl SettleReports {
    /// Opens the report of a message of so many settlements, and returns its number.
    pub(super) fn open(&mut self, session: SessionId, settlements: usize) -> usize {
        self.0.insert(SettleReport { session, accepted: 0, refused: Vec::new(), missing: settlements })
    }

    /// Notes the outcome of one settlement. Returns the report if it was the last.
    pub(super) fn note(
        &mut self,
        report: usize,
        id: TimerId,
        refused: Option<SettleRefusal>,
    ) -> Option<SettleReport> {
        let open = self.0.get_mut(report)?;
        match refused {
            Some(why) => open.refused.push((id, why)),
            None => open.accepted += 1,
        }
        open.missing -= 1;
        (open.missing == 0).then(|| self.0.remove(report))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_complete_with_its_last_settlement() {
        let mut reports = SettleReports::default();
        let (id, late) = (TimerId::from_u128, SettleRefusal::Late);
        let report = reports.open(SessionId(7), 3);
        assert!(reports.note(report, id(1), None).is_none());
        assert!(reports.note(report, id(2), Some(late)).is_none());
        let done = reports.note(report, id(3), None).unwrap();
        assert_eq!((done.session, done.accepted, done.refused), (SessionId(7), 2, vec![(id(2), late)]));
        assert!(reports.note(report, id(4), None).is_none(), "it is forgotten");
    }
}
