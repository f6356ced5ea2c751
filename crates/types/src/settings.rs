//! The settings of a destination: what holds for all of its timers, whoever schedules them.

use serde::{Deserialize, Serialize};

use crate::invalid::InvalidSettings;
use crate::limits::{
    MAX_AHEAD_MS, MAX_CONCURRENCY, MAX_PAUSE_TEXT_BYTES, MAX_RATE_BURST, MAX_RATE_PER_MS, MAX_RATE_STARTS,
    MAX_RELEASE_MS, MIN_RATE_PER_MS,
};
use crate::name::Destination;
use crate::time::Time;

/// The settings of a destination. The default ones are those of a destination without any.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DestinationSettings {
    /// The pause, or the last one: it is kept when deliveries have begun again.
    pub pause: Option<Pause>,
    /// Of the timers that wait the most urgent class always goes first, however long others wait.
    /// Else each class has its share of the turns.
    pub strict_priority: bool,
    /// How many deliveries may run, and start, at the same time.
    pub limits: DeliveryLimits,
}

impl DestinationSettings {
    /// Whether no delivery may start at this time.
    pub fn is_paused(&self, now: Time) -> bool {
        self.pause.as_ref().is_some_and(|pause| !pause.is_over(now))
    }

    /// Checks them.
    ///
    /// # Errors
    ///
    /// [`InvalidSettings`].
    pub fn check(&self, now: Time) -> Result<(), InvalidSettings> {
        self.pause.as_ref().map_or(Ok(()), |pause| pause.check(now))?;
        self.limits.check()
    }

    /// Bytes of their texts.
    pub fn bytes(&self) -> usize {
        self.pause.as_ref().map_or(0, |pause| pause.by.len() + pause.reason.len())
    }
}

/// Limits on the deliveries of a destination, by all brokers together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeliveryLimits {
    /// Most deliveries that are sent and not settled, 1 to 1,000,000; `None`: any number.
    pub concurrency: Option<u32>,
    /// Most deliveries that start in a time; `None`: any number.
    pub rate: Option<DeliveryRate>,
}

impl DeliveryLimits {
    /// Whether there are none.
    pub const fn is_none(&self) -> bool {
        self.concurrency.is_none() && self.rate.is_none()
    }

    fn check(&self) -> Result<(), InvalidSettings> {
        if let Some(concurrency) = self.concurrency.filter(|n| !(1..=MAX_CONCURRENCY).contains(n)) {
            return Err(InvalidSettings::Concurrency { concurrency, limit: MAX_CONCURRENCY });
        }
        let Some(rate) = self.rate else { return Ok(()) };
        for (what, value, least, most) in [
            ("starts", rate.starts, 1, MAX_RATE_STARTS),
            ("burst", rate.burst, 1, MAX_RATE_BURST),
            ("milliseconds", rate.per_ms, MIN_RATE_PER_MS, MAX_RATE_PER_MS),
        ] {
            if !(least..=most).contains(&value) {
                return Err(InvalidSettings::Rate { what, value, least, most });
            }
        }
        Ok(())
    }
}

/// A rate of deliveries: in any time *t* at most `starts · t / per_ms + burst` start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeliveryRate {
    /// So many in `per_ms`, 1 to 1,000,000.
    pub starts: u32,
    /// In ms: 1,000 (a second) to 86,400,000 (a day).
    pub per_ms: u32,
    /// So many at once after a while without any, 1 to 1,000,000.
    pub burst: u32,
}

/// A time in which nothing of a destination is delivered.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Pause {
    /// When it began.
    pub since: Time,
    /// When deliveries begin again; `None`: when somebody resumes them.
    pub until: Option<Time>,
    /// In how many ms the timers that have waited are then let go, evenly. 0: at once.
    pub over_ms: u64,
    /// Who has paused, for people.
    pub by: String,
    /// Why, for people.
    pub reason: String,
}

impl Pause {
    /// Whether deliveries may begin again.
    pub fn is_over(&self, now: Time) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    fn check(&self, now: Time) -> Result<(), InvalidSettings> {
        for (what, text) in [("name", &self.by), ("reason", &self.reason)] {
            let (bytes, limit) = (text.len(), MAX_PAUSE_TEXT_BYTES);
            if bytes > limit {
                return Err(InvalidSettings::PauseText { what, bytes, limit });
            }
        }
        if let Some(until) = self.until.filter(|until| until.ms_since(now) > MAX_AHEAD_MS) {
            return Err(InvalidSettings::PauseTooLong { until, max_days: MAX_AHEAD_MS / 86_400_000 });
        }
        if self.over_ms > MAX_RELEASE_MS {
            return Err(InvalidSettings::ReleaseTooLong { ms: self.over_ms, limit: MAX_RELEASE_MS });
        }
        Ok(())
    }
}

/// The settings of a destination, as they are stored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StoredSettings {
    /// Which destination.
    pub dest: Destination,
    /// Rises with every change of any destination's settings; 0: there are none.
    pub version: u64,
    /// The settings.
    pub settings: DestinationSettings,
}

/// Which version settings get that are to be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SettingsVersion {
    /// A new one, if the present one is this; 0: the destination has no settings yet. Only
    /// partition 0 gives versions.
    After(u64),
    /// This one, as partition 0 has given it.
    Given(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_ms(1_700_000_000_000);

    fn paused(pause: Pause) -> DestinationSettings {
        DestinationSettings { pause: Some(pause), ..DestinationSettings::default() }
    }

    #[test]
    fn a_pause_lasts_until_its_end() {
        let until = |until| paused(Pause { since: NOW, until, ..Pause::default() });
        let lasts = |settings: DestinationSettings| [0, 9, 10, 11].map(|ms| settings.is_paused(NOW + ms));
        assert_eq!(lasts(DestinationSettings::default()), [false; 4]);
        assert_eq!(lasts(until(None)), [true; 4]);
        assert_eq!(lasts(until(Some(NOW + 10))), [true, true, false, false]);
    }

    #[test]
    fn limits_out_of_range_are_refused_with_value_and_range() {
        let rate = DeliveryRate { starts: 10, per_ms: 1_000, burst: 1 };
        let refused = |limits| {
            let settings = DestinationSettings { limits, ..DestinationSettings::default() };
            settings.check(NOW).map_err(|error| error.to_string())
        };
        let of = |concurrency, rate| DeliveryLimits { concurrency, rate };
        assert_eq!(refused(of(Some(1), Some(rate))), Ok(()));
        assert_eq!(refused(of(Some(MAX_CONCURRENCY), None)), Ok(()));
        let none = refused(of(Some(0), None)).unwrap_err();
        assert!(none.contains("concurrency is 0") && none.contains("1 to 1000000"), "{none}");
        for (bad, text) in [
            (DeliveryRate { starts: 0, ..rate }, "0 starts"),
            (DeliveryRate { burst: MAX_RATE_BURST + 1, ..rate }, "1000001 burst"),
            (DeliveryRate { per_ms: 999, ..rate }, "999 milliseconds"),
        ] {
            let told = refused(of(None, Some(bad))).unwrap_err();
            assert!(told.contains(text), "{told}");
        }
    }

    #[test]
    fn settings_beyond_a_limit_are_refused_with_value_and_limit() {
        let refused = |pause| paused(pause).check(NOW).map_err(|error| error.to_string());
        let most = Pause {
            since: NOW,
            until: Some(NOW + MAX_AHEAD_MS),
            over_ms: MAX_RELEASE_MS,
            by: "x".repeat(MAX_PAUSE_TEXT_BYTES),
            reason: "x".repeat(MAX_PAUSE_TEXT_BYTES),
        };
        assert_eq!(refused(most.clone()), Ok(()));
        assert_eq!(paused(most.clone()).bytes(), 2 * MAX_PAUSE_TEXT_BYTES);
        let text = |pause| refused(pause).unwrap_err();
        let long = "x".repeat(MAX_PAUSE_TEXT_BYTES + 1);
        let by = text(Pause { by: long.clone(), ..most.clone() });
        assert!(by.contains("the name of who pauses has 257 bytes, the limit is 256"), "{by}");
        let reason = text(Pause { reason: long, ..most.clone() });
        assert!(reason.contains("the reason"), "{reason}");
        let until = text(Pause { until: Some(NOW + MAX_AHEAD_MS + 1), ..most.clone() });
        assert!(until.contains("3653 days"), "{until}");
        let over = text(Pause { over_ms: MAX_RELEASE_MS + 1, ..most });
        assert!(over.contains("604800001 ms, the limit is 604800000"), "{over}");
    }
}
