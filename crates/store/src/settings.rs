//! The settings of destinations that one partition has.
//!
//! ## How all partitions come to the same settings
//!
//! Partition 0 gives each change a *version*, above all that were before; whoever asks for a change
//! names the version that it follows, so of two at the same time one is told of the other. The
//! change then goes to the other partitions with its version, and each keeps the settings with the
//! higher one. So it does not matter in which order changes arrive, or how often.
//!
//! A destination whose settings are the default ones again keeps its row, by which an older change
//! that comes late is recognised. If there are too many rows, the oldest of those goes.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use mtimer_protocol::{DecodeError, decode, encode};
use mtimer_types::limits::MAX_CONFIGURED_DESTINATIONS;
use mtimer_types::{Destination, DestinationSettings, SettingsVersion, StoredSettings};

/// The settings of a partition, in the order of destinations, and which of them have changed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    rows: BTreeMap<Destination, StoredSettings>,
    changed: BTreeSet<Destination>,
}

/// What became of settings that were to be stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stored {
    /// These hold now: the new ones, or newer ones.
    Done(StoredSettings),
    /// The destination has this version, not the one that they were to follow.
    Changed(u64),
    /// So many destinations have settings, as many as may.
    TooMany(u32),
}

impl Settings {
    /// Those that were stored, in any order.
    pub fn stored(rows: impl IntoIterator<Item = StoredSettings>) -> Self {
        let rows = rows.into_iter().map(|row| (row.dest.clone(), row)).collect();
        Self { rows, changed: BTreeSet::new() }
    }

    /// All of them.
    pub fn all(&self) -> impl ExactSizeIterator<Item = &StoredSettings> {
        self.rows.values()
    }

    /// The settings of a destination, if it has any.
    pub fn get(&self, dest: &Destination) -> Option<&StoredSettings> {
        self.rows.get(dest)
    }

    /// Adds settings that were read from the store.
    pub fn restore(&mut self, row: StoredSettings) {
        self.rows.insert(row.dest.clone(), row);
    }

    /// Stores settings, unless there are newer ones.
    pub fn store(
        &mut self,
        dest: &Destination,
        settings: &DestinationSettings,
        version: SettingsVersion,
    ) -> Stored {
        let old = self.rows.get(dest);
        let present = old.map_or(0, |row| row.version);
        let (version, limit) = match version {
            SettingsVersion::After(expected) => {
                // A repeat: its answer was lost.
                if let Some(row) = old.filter(|row| row.version > expected && row.settings == *settings) {
                    return Stored::Done(row.clone());
                }
                if present != expected {
                    return Stored::Changed(present);
                }
                (self.newest() + 1, MAX_CONFIGURED_DESTINATIONS)
            }
            SettingsVersion::Given(version) => {
                if let Some(row) = old.filter(|row| row.version >= version) {
                    return Stored::Done(row.clone());
                }
                // Partition 0 has kept the limit; it may have forgotten rows that are here still.
                (version, 2 * MAX_CONFIGURED_DESTINATIONS)
            }
        };
        while self.rows.len() + usize::from(!self.rows.contains_key(dest)) > limit {
            let Some(idle) = self.oldest_idle() else {
                return Stored::TooMany(self.rows.len() as u32);
            };
            self.rows.remove(&idle);
            self.changed.insert(idle);
        }
        let row = StoredSettings { dest: dest.clone(), version, settings: settings.clone() };
        self.rows.insert(dest.clone(), row.clone());
        self.changed.insert(dest.clone());
        Stored::Done(row)
    }

    fn newest(&self) -> u64 {
        self.rows.values().map(|row| row.version).max().unwrap_or(0)
    }

    /// The row with default settings that was changed the longest time ago. The newest row of all
    /// stays: its version must not be given again.
    fn oldest_idle(&self) -> Option<Destination> {
        let newest = self.newest();
        let is_idle =
            |row: &&StoredSettings| row.settings == DestinationSettings::default() && row.version < newest;
        self.rows.values().filter(is_idle).min_by_key(|row| row.version).map(|row| row.dest.clone())
    }

    /// The settings that have changed since this was last asked, by destination; `None`: gone.
    pub fn take_changes(&mut self) -> Vec<(Destination, Option<StoredSettings>)> {
        let changed = std::mem::take(&mut self.changed);
        changed
            .into_iter()
            .map(|dest| {
                let row = self.rows.get(&dest).cloned();
                (dest, row)
            })
            .collect()
    }
}

/// The bytes of settings in a store.
pub fn settings_to_bytes(row: &StoredSettings) -> Bytes {
    let bytes = encode(row);
    debug_assert!(bytes.is_ok(), "every part of it is bounded, far below a frame");
    bytes.unwrap_or_default()
}

/// Reads them.
///
/// # Errors
///
/// [`DecodeError`] if the bytes are no settings of this version.
pub fn settings_from_bytes(bytes: &[u8]) -> Result<StoredSettings, DecodeError> {
    decode(&BytesMut::from(bytes))
}

#[cfg(test)]
mod tests {
    use mtimer_types::limits::MAX_PAUSE_TEXT_BYTES;
    use mtimer_types::{DeliveryLimits, DeliveryRate, Pause, Time};

    use super::*;

    fn dest(n: usize) -> Destination {
        Destination::new("test", &format!("app-{n}")).unwrap()
    }

    fn paused(reason: &str) -> DestinationSettings {
        let pause = Pause { reason: reason.into(), ..Pause::default() };
        DestinationSettings { pause: Some(pause), ..DestinationSettings::default() }
    }

    fn version(stored: Stored) -> u64 {
        let Stored::Done(row) = stored else { panic!("{stored:?}") };
        row.version
    }

    #[test]
    fn the_largest_settings_are_read_as_they_were_written() {
        let name = "x".repeat(128);
        let text = || "x".repeat(MAX_PAUSE_TEXT_BYTES);
        let (since, until) = (Time::MAX, Some(Time::MAX));
        let pause = Pause { since, until, over_ms: u64::MAX, by: text(), reason: text() };
        let dest = Destination::new(&name, &name).unwrap();
        let rate = DeliveryRate { starts: u32::MAX, per_ms: u32::MAX, burst: u32::MAX };
        let limits = DeliveryLimits { concurrency: Some(u32::MAX), rate: Some(rate) };
        let settings = DestinationSettings { pause: Some(pause), strict_priority: true, limits };
        let row = StoredSettings { dest, version: u64::MAX, settings };
        let bytes = settings_to_bytes(&row);
        assert!(bytes.len() < 1_024, "it has {} bytes", bytes.len());
        assert_eq!(settings_from_bytes(&bytes), Ok(row));
        assert!(settings_from_bytes(&bytes[1..]).is_err() && settings_from_bytes(b"").is_err());
    }

    #[test]
    fn versions_rise_over_all_destinations_and_whoever_knows_an_old_one_is_told() {
        let mut all = Settings::default();
        let mut store =
            |n, text: &str, after| all.store(&dest(n), &paused(text), SettingsVersion::After(after));
        assert_eq!(version(store(1, "a", 0)), 1);
        assert_eq!(version(store(2, "b", 0)), 2);
        assert_eq!(store(1, "c", 0), Stored::Changed(1));
        assert_eq!(version(store(1, "a", 0)), 1, "a repeat");
        assert_eq!(version(store(1, "c", 1)), 3);
        assert_eq!(store(1, "a", 2), Stored::Changed(3));
        assert_eq!(store(9, "a", 2), Stored::Changed(0));
    }

    #[test]
    fn a_given_version_holds_unless_there_is_a_newer_one() {
        let mut all = Settings::default();
        let mut store = |text: &str, given| all.store(&dest(1), &paused(text), SettingsVersion::Given(given));
        assert_eq!(version(store("b", 7)), 7);
        assert_eq!(version(store("a", 6)), 7);
        assert_eq!(version(store("x", 7)), 7);
        assert_eq!(version(store("c", 8)), 8);
        assert_eq!(all.get(&dest(1)).map(|row| &row.settings), Some(&paused("c")));
        let changes = all.take_changes();
        assert_eq!(changes, [(dest(1), all.get(&dest(1)).cloned())]);
        assert_eq!(all.take_changes(), []);
    }

    #[test]
    fn the_oldest_default_settings_go_if_there_are_too_many_rows_and_others_are_refused() {
        let mut all = Settings::default();
        let after = SettingsVersion::After;
        for n in 0..MAX_CONFIGURED_DESTINATIONS {
            all.store(&dest(n), &paused("x"), after(0));
        }
        let limit = MAX_CONFIGURED_DESTINATIONS;
        assert_eq!(all.store(&dest(limit), &paused("x"), after(0)), Stored::TooMany(limit as u32));
        assert_eq!(version(all.store(&dest(5), &paused("y"), after(6))), limit as u64 + 1);
        all.store(&dest(7), &DestinationSettings::default(), after(8));
        // It has the highest version: that must not be given again.
        assert_eq!(all.store(&dest(limit), &paused("x"), after(0)), Stored::TooMany(limit as u32));
        all.store(&dest(5), &paused("z"), after(limit as u64 + 1));
        all.take_changes();
        assert_eq!(version(all.store(&dest(limit), &paused("x"), after(0))), limit as u64 + 4);
        let changes = all.take_changes();
        assert_eq!(changes.len(), 2);
        assert_eq!(changes.iter().find(|(_, row)| row.is_none()), Some(&(dest(7), None)));
        assert_eq!(all.all().len(), limit);
    }
}
