//! The rules of [`crate::settings`], once more. Their number is not limited here: suites of random
//! operations have few destinations.

use mtimer_types::{SettingsVersion, StoredSettings};

use super::Model;
use crate::ops::{Configure, ConfigureAnswer};

impl Model {
    /// The settings, in the order of destinations.
    pub fn settings(&self) -> Vec<StoredSettings> {
        let row = |(dest, (version, settings)): (&_, &(u64, _))| {
            let (dest, version, settings) = (Clone::clone(dest), *version, Clone::clone(settings));
            StoredSettings { dest, version, settings }
        };
        self.settings.iter().map(row).collect()
    }

    pub(super) fn configure(&mut self, op: &Configure) -> ConfigureAnswer {
        let highest = self.settings.values().map(|(version, _)| *version).max().unwrap_or(0);
        let has = self.settings.get(&op.dest).cloned();
        let has_version = has.as_ref().map_or(0, |(version, _)| *version);
        let gets = match op.version {
            SettingsVersion::After(expected) => {
                let is_repeat =
                    has.as_ref().is_some_and(|(version, old)| *version > expected && *old == *op.settings);
                if !is_repeat && has_version != expected {
                    return ConfigureAnswer::Changed(has_version);
                }
                (!is_repeat).then_some(highest + 1)
            }
            SettingsVersion::Given(version) => (version > has_version).then_some(version),
        };
        if let Some(version) = gets {
            self.settings.insert(op.dest.clone(), (version, (*op.settings).clone()));
        }
        let (version, settings) = self.settings[&op.dest].clone();
        ConfigureAnswer::Done(StoredSettings { dest: op.dest.clone(), version, settings }.into())
    }
}
