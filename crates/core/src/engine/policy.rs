//! What the settings of one destination say about its deliveries at present.
//!
//! Invariant: while it is paused nothing of it is given out, and nothing comes back from its parks.
//! After a pause that ends slowly, what was parked comes back in proportion to the time.
//! Not in here: the settings themselves, and when a pause ends (`policies`).

use mtimer_types::{DestinationSettings, Time};

/// Parts of a timer in which a share of the time is reckoned.
const PARTS: u64 = 1_000;

/// The policy of a destination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Policy {
    is_paused: bool,
    is_strict: bool,
    /// When deliveries have begun again after the last pause.
    resumed: Option<Time>,
    release: Option<GradualRelease>,
}

/// A pause that has ended, and after which timers come back slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GradualRelease {
    /// By then all that was parked has come back.
    end: Time,
    /// Up to when the share was reckoned.
    reckoned: Time,
    /// Timers that may come back now, in [`PARTS`] of one.
    share: u64,
}

impl Policy {
    /// The policy under these settings, as it is at this time.
    pub(super) fn of(settings: &DestinationSettings, now: Time) -> Self {
        let is_strict = settings.strict_priority;
        let Some(pause) = &settings.pause else { return Self { is_strict, ..Self::default() } };
        if !pause.is_over(now) {
            return Self { is_paused: true, is_strict, ..Self::default() };
        }
        let end = pause.until.map(|until| until + pause.over_ms).filter(|end| *end > now);
        let release = end.map(|end| GradualRelease { end, reckoned: now, share: 0 });
        Self { is_paused: false, is_strict, resumed: pause.until, release }
    }

    /// Whether the most urgent timers always go first.
    pub(super) fn is_strict(&self) -> bool {
        self.is_strict
    }

    /// Whether nothing of the destination may be sent.
    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// When deliveries have begun again after the last pause.
    pub(super) fn resumed(&self) -> Option<Time> {
        self.resumed
    }

    /// Whether timers come back slowly from the parks.
    pub(super) fn is_releasing(&self) -> bool {
        self.release.is_some()
    }

    /// How many of the `parked` timers may come back now; `None`: as many as there is credit for.
    pub(super) fn may_return(&mut self, now: Time, parked: u64) -> Option<u64> {
        if self.is_paused {
            return Some(0);
        }
        let release = self.release.as_mut()?;
        let left_ms = release.end.ms_since(release.reckoned);
        let past_ms = now.ms_since(release.reckoned);
        if past_ms >= left_ms {
            self.release = None;
            return None;
        }
        let coming = parked.saturating_sub(release.share / PARTS);
        release.share += coming.saturating_mul(PARTS).saturating_mul(past_ms) / left_ms.max(1);
        release.reckoned = now.max(release.reckoned);
        Some(release.share / PARTS)
    }

    /// So many are on their way back.
    pub(super) fn return_begins(&mut self, timers: u64) {
        if let Some(release) = &mut self.release {
            release.share = release.share.saturating_sub(timers.saturating_mul(PARTS));
        }
    }
}

#[cfg(test)]
mod tests {
    use mtimer_types::Pause;

    use super::*;

    const NOW: Time = Time::from_ms(1_000_000);

    fn pause(until: Option<u64>, over_ms: u64) -> DestinationSettings {
        let until = until.map(|ms| NOW + ms);
        let pause = Pause { since: NOW - 500, until, over_ms, ..Pause::default() };
        DestinationSettings { pause: Some(pause), ..DestinationSettings::default() }
    }

    #[test]
    fn the_order_is_as_it_was_set_while_it_is_paused_and_not() {
        for strict_priority in [false, true] {
            for settings in [DestinationSettings::default(), pause(None, 0), pause(Some(0), 9)] {
                let settings = DestinationSettings { strict_priority, ..settings };
                assert_eq!(Policy::of(&settings, NOW).is_strict(), strict_priority);
            }
        }
    }

    #[test]
    fn nothing_comes_back_while_it_is_paused() {
        let mut policy = Policy::of(&pause(None, 0), NOW);
        assert!(policy.is_paused() && policy.resumed().is_none());
        assert_eq!(policy.may_return(NOW + 9_999, 50), Some(0));
        assert!(Policy::of(&pause(Some(1), 0), NOW).is_paused());
        let mut over = Policy::of(&pause(Some(1), 0), NOW + 1);
        assert_eq!((over.is_paused(), over.resumed()), (false, Some(NOW + 1)));
        assert_eq!(over.may_return(NOW + 1, 50), None);
    }

    #[test]
    fn what_was_parked_comes_back_evenly_over_the_time_that_was_set() {
        let mut policy = Policy::of(&pause(Some(0), 10_000), NOW);
        let (mut parked, mut back) = (1_000, Vec::new());
        for step in 0..=200 {
            let now = NOW + step * 50;
            let Some(may) = policy.may_return(now, parked) else {
                back.push(1_000);
                break;
            };
            policy.return_begins(may);
            parked -= may;
            back.push(1_000 - parked);
        }
        assert_eq!([0, 20, 100, 180].map(|step| back[step]), [0, 100, 500, 900]);
        assert_eq!((back.len(), policy.is_releasing()), (201, false));
    }

    #[test]
    fn a_new_owner_goes_on_where_the_time_is() {
        // Half of the time is over, and half of the timers are back.
        let mut policy = Policy::of(&pause(Some(0), 10_000), NOW + 5_000);
        assert_eq!(policy.may_return(NOW + 5_000, 500), Some(0));
        assert_eq!(policy.may_return(NOW + 6_000, 500), Some(100));
    }
}
