//! Settings of destinations: pause and resume, limits, the order of priorities. Partition 0 gives a
//! change its version, and then every other partition gets it with that version.
//!
//! Not in here: what the settings do, which is up to the owners of the partitions, whether a client
//! is there or not.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use mtimer_protocol::ops::{self, ConfigureReply};
use mtimer_protocol::{Query, QueryAnswer};
use mtimer_types::{
    Destination, DestinationSettings, PartitionId, Pause, SettingsVersion, StoredSettings, Time,
};

use crate::bulk::Failed;
use crate::{Client, ConfigureError, RequestError};

/// How often a change is decided anew because others have changed the settings meanwhile.
const TRIES: u32 = 10;

/// A destination's settings, and how many partitions have them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfiguredDestination {
    /// The destination.
    pub dest: Destination,
    /// Of the newest settings that a partition has; 0: there are none.
    pub version: u64,
    /// Those settings.
    pub settings: DestinationSettings,
    /// Partitions that have them. If it is less than all, a change has not come to its end: repeat
    /// it.
    pub partitions: u16,
    /// Partitions of the cluster.
    pub of: u16,
}

impl ConfiguredDestination {
    /// Says whether every partition has these settings.
    pub const fn is_everywhere(&self) -> bool {
        self.partitions == self.of
    }
}

/// What is to become of a destination while it is paused, and afterwards.
///
/// ```
/// # use std::time::Duration;
/// # use mtimer_client::PauseRequest;
/// let maintenance = PauseRequest::new("ann", "the database moves")
///     .ends_after(Duration::from_secs(3_600))
///     .over(Duration::from_secs(300));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PauseRequest {
    by: String,
    reason: String,
    end: Option<PauseEnd>,
    over: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PauseEnd {
    At(Time),
    After(Duration),
}

impl PauseRequest {
    /// A pause that lasts until somebody resumes the destination. `by` and `reason` are for people,
    /// at most 256 bytes each.
    pub fn new(by: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { by: by.into(), reason: reason.into(), ..Self::default() }
    }

    /// It ends by itself then.
    #[must_use]
    pub fn ends_at(mut self, end: Time) -> Self {
        self.end = Some(PauseEnd::At(end));
        self
    }

    /// It ends by itself after this time.
    #[must_use]
    pub fn ends_after(mut self, after: Duration) -> Self {
        self.end = Some(PauseEnd::After(after));
        self
    }

    /// If it ends by itself, the timers that have waited are let go over this time, evenly; at most
    /// a week.
    #[must_use]
    pub fn over(mut self, over: Duration) -> Self {
        self.over = over;
        self
    }

    /// The settings of a destination that is paused so at `now`. A pause that is under way keeps
    /// its beginning.
    fn apply(&self, now: Time, settings: &DestinationSettings) -> DestinationSettings {
        let under_way = settings.pause.as_ref().filter(|pause| !pause.is_over(now));
        let until = self.end.map(|end| match end {
            PauseEnd::At(at) => at,
            PauseEnd::After(after) => now + ms(after),
        });
        let pause = Pause {
            since: under_way.map_or(now, |pause| pause.since),
            until,
            over_ms: ms(self.over),
            by: self.by.clone(),
            reason: self.reason.clone(),
        };
        let mut paused = settings.clone();
        paused.pause = Some(pause);
        paused
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Client {
    /// Returns the settings of a destination, and whether every partition has them. One without
    /// settings has the default ones, of version 0.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if a partition could not be asked. It changes nothing, and can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the questions back.
    pub async fn destination_settings(
        &self,
        dest: &Destination,
    ) -> Result<ConfiguredDestination, RequestError> {
        let found = self.all_destination_settings().await?.into_iter().find(|found| found.dest == *dest);
        let (partitions, of) = (self.info().partitions, self.info().partitions);
        Ok(found.unwrap_or_else(|| ConfiguredDestination {
            dest: dest.clone(),
            version: 0,
            settings: DestinationSettings::default(),
            partitions,
            of,
        }))
    }

    /// Returns the destinations that have settings, in order, as far as the token may read them.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if a partition could not be asked. It changes nothing, and can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the questions back.
    pub async fn all_destination_settings(&self) -> Result<Vec<ConfiguredDestination>, RequestError> {
        let of = self.info().partitions;
        let mut answers = self.ask_partitions(|partition| self.settings_of_partition(partition));
        let mut all = BTreeMap::<Destination, ConfiguredDestination>::new();
        while let Some(rows) = answers.next().await {
            for StoredSettings { dest, version, settings } in rows? {
                let row = ConfiguredDestination { dest: dest.clone(), version, settings, partitions: 1, of };
                match all.get_mut(&dest) {
                    Some(known) if known.version == version => known.partitions += 1,
                    Some(known) if known.version > version => {}
                    Some(known) => *known = row,
                    None => _ = all.insert(dest, row),
                }
            }
        }
        Ok(all.into_values().collect())
    }

    /// Pauses a destination: when this returns, no delivery to it starts any more, by any broker.
    ///
    /// What is being delivered is finished and settled. Timers can be scheduled, cancelled and
    /// moved as before; those that come due wait, use no attempts, and their deadlines run. Another
    /// pause of a paused destination replaces the first one and keeps its beginning. Returns the
    /// version of the settings.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use mtimer_client::{Client, ConfigureError, Destination, PauseRequest};
    /// # async fn example(client: &Client, orders: &Destination) -> Result<(), ConfigureError> {
    /// client.pause(orders, PauseRequest::new("ann", "the database moves")).await?;
    /// // ...
    /// client.resume(orders, Duration::from_secs(60)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigureError`]. Unless [`ConfigureError::has_no_side_effects`], the destination may be
    /// paused in some partitions or all: pause it again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future breaks nothing; the destination may be paused in some partitions.
    pub async fn pause(&self, dest: &Destination, pause: PauseRequest) -> Result<u64, ConfigureError> {
        self.change_settings(dest, |now, settings| Some(pause.apply(now, settings))).await
    }

    /// Ends the pause of a destination. The timers that have waited are let go over this time,
    /// evenly; with [`Duration::ZERO`] as fast as they are taken. Returns the version of the
    /// settings. If the destination is not paused, nothing changes.
    ///
    /// # Errors
    ///
    /// [`ConfigureError`]. Unless [`ConfigureError::has_no_side_effects`], deliveries may have
    /// begun again in some partitions or all: resume it again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future breaks nothing; some partitions may be resumed.
    pub async fn resume(&self, dest: &Destination, over: Duration) -> Result<u64, ConfigureError> {
        self.change_settings(dest, |now, settings| {
            let pause = settings.pause.as_ref().filter(|pause| !pause.is_over(now))?;
            let pause = Pause { until: Some(now), over_ms: ms(over), ..pause.clone() };
            let mut resumed = settings.clone();
            resumed.pause = Some(pause);
            Some(resumed)
        })
        .await
    }

    /// Changes settings of a destination: its limits, or the order in which its timers go that
    /// wait. `change` is called anew if others have changed the settings meanwhile. Returns the
    /// version of the settings; 0 if the destination has none, and none are needed.
    ///
    /// ```no_run
    /// # use mtimer_client::{Client, ConfigureError, DeliveryRate, Destination};
    /// # async fn example(client: &Client, orders: &Destination) -> Result<(), ConfigureError> {
    /// client
    ///     .update_settings(orders, |settings| {
    ///         settings.limits.concurrency = Some(50);
    ///         settings.limits.rate = Some(DeliveryRate { starts: 1_000, per_ms: 1_000, burst: 100 });
    ///         settings.strict_priority = true;
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigureError`]. Unless [`ConfigureError::has_no_side_effects`], some partitions have the
    /// new settings: repeat it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future breaks nothing; some partitions may have the new settings.
    pub async fn update_settings(
        &self,
        dest: &Destination,
        change: impl Fn(&mut DestinationSettings),
    ) -> Result<u64, ConfigureError> {
        self.change_settings(dest, |_, settings| {
            let mut changed = settings.clone();
            change(&mut changed);
            Some(changed)
        })
        .await
    }

    /// Gives a destination these settings if the present ones have this version; 0: there are none.
    /// Returns their version. When this returns, all partitions have them.
    ///
    /// # Errors
    ///
    /// [`ConfigureError`]. Unless [`ConfigureError::has_no_side_effects`], some partitions have the
    /// settings: repeat it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future breaks nothing; some partitions may have the settings.
    pub async fn configure(
        &self,
        dest: &Destination,
        expected: u64,
        settings: DestinationSettings,
    ) -> Result<u64, ConfigureError> {
        settings.check(self.now())?;
        let first = ops::Configure {
            partition: PartitionId(0),
            dest: dest.clone(),
            settings: Box::new(settings.clone()),
            version: SettingsVersion::After(expected),
        };
        let version = match self.state().request(first).await {
            Ok(ConfigureReply::Done(version)) => version,
            Ok(ConfigureReply::Changed(version)) => {
                return Err(ConfigureError::Changed { expected, version });
            }
            Ok(ConfigureReply::TooMany(limit)) => return Err(ConfigureError::TooMany { limit }),
            Err(error) => return Err(ConfigureError::Request { stored: 0, error }),
        };
        self.spread(dest, version, settings).await
    }

    /// Changes the settings by what they are; `None`: nothing is to change. Also then every
    /// partition gets them, so that a repeat completes a change that was broken off.
    async fn change_settings(
        &self,
        dest: &Destination,
        change: impl Fn(Time, &DestinationSettings) -> Option<DestinationSettings>,
    ) -> Result<u64, ConfigureError> {
        let mut left = TRIES;
        loop {
            let rows = self.settings_of_partition(0).await;
            let rows = rows.map_err(|error| ConfigureError::Request { stored: 0, error })?;
            let found = rows.into_iter().find(|row| row.dest == *dest);
            let (version, settings) = found.map_or_else(Default::default, |row| (row.version, row.settings));
            let changed = match change(self.now(), &settings) {
                Some(changed) if changed != settings => changed,
                _ if version == 0 => return Ok(0),
                _ => return self.spread(dest, version, settings).await,
            };
            left -= 1;
            match self.configure(dest, version, changed).await {
                Err(ConfigureError::Changed { .. }) if left > 0 => {}
                done => return done,
            }
        }
    }

    /// Gives all partitions the settings that partition 0 has.
    async fn spread(
        &self,
        dest: &Destination,
        version: u64,
        settings: DestinationSettings,
    ) -> Result<u64, ConfigureError> {
        let copy = |partition| ops::Configure {
            partition: PartitionId(partition),
            dest: dest.clone(),
            settings: Box::new(settings.clone()),
            version: SettingsVersion::Given(version),
        };
        // Partition 0 is asked, too: what it has lost since it gets back.
        let (mut stored, mut failed) = (0, Failed::default());
        for reply in self.state().request_all((0..self.info().partitions).map(copy)).await {
            match reply {
                Ok(ConfigureReply::Done(_)) => stored += 1,
                Ok(ConfigureReply::TooMany(limit)) => return Err(ConfigureError::TooMany { limit }),
                Ok(ConfigureReply::Changed(_)) => failed.add(RequestError::Mismatched),
                Err(error) => failed.add(error),
            }
        }
        match failed.into_error() {
            Some(error) => Err(ConfigureError::Request { stored: stored.max(1), error }),
            None => Ok(version),
        }
    }

    async fn settings_of_partition(&self, partition: u16) -> Result<Vec<StoredSettings>, RequestError> {
        match self.query(Query::Settings { partition }).await? {
            QueryAnswer::Settings(rows) => Ok(rows),
            _ => Err(RequestError::Mismatched),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_ms(1_000_000);

    #[test]
    fn a_second_pause_keeps_the_beginning_of_the_first_one_and_not_of_one_that_is_over() {
        let first = PauseRequest::new("ann", "a").ends_after(Duration::from_secs(60));
        let paused = first.apply(NOW, &DestinationSettings::default());
        let Some(pause) = &paused.pause else { panic!("{paused:?}") };
        assert_eq!((pause.since, pause.until, pause.over_ms), (NOW, Some(NOW + 60_000), 0));
        let again = PauseRequest::new("bob", "b").ends_at(NOW + 9).over(Duration::from_secs(2));
        let since =
            |now| again.apply(now, &paused).pause.map(|pause| (pause.since, pause.until, pause.over_ms));
        assert_eq!(since(NOW + 1_000), Some((NOW, Some(NOW + 9), 2_000)));
        assert_eq!(since(NOW + 60_000), Some((NOW + 60_000, Some(NOW + 9), 2_000)));
    }
}
