//! Configure: a person gives a destination other settings.

use mtimer_types::{
    Destination, DestinationSettings, InvalidSettings, InvalidTimer, PartitionId, SettingsVersion, Time, Verb,
};
use serde::{Deserialize, Serialize};

use super::operation::{NotDone, Operation, Reply};
use super::subject::Subject;
use crate::sample::{self, Source};

/// Store a destination's settings in one partition. They hold for its timers there. Partition 0
/// gives them their version; the others get them with it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Configure {
    /// Where.
    pub partition: PartitionId,
    /// Which destination.
    pub dest: Destination,
    /// All of its settings.
    pub settings: Box<DestinationSettings>,
    /// Which version they are.
    pub version: SettingsVersion,
}

/// Answers a configure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ConfigureReply {
    /// They hold there with this version; or newer ones, with this higher version.
    Done(u64),
    /// The destination has this version there, not the one that it was to follow. Nothing changed.
    Changed(u64),
    /// So many destinations have settings, as many as may. Nothing changed.
    TooMany(u32),
}

impl Operation for Configure {
    type Reply = ConfigureReply;

    const VERB: Verb = Verb::Operate;

    fn subject(&self) -> Subject<'_> {
        let (group, app) = (self.dest.group(), self.dest.app());
        Subject::Partition {
            partition: self.partition,
            group: Some(group),
            app: Some(app),
            bytes: group.len() + app.len() + self.settings.bytes(),
        }
    }

    fn check(&self, now: Time) -> Result<(), InvalidTimer> {
        match self.version {
            SettingsVersion::After(_) if self.partition.0 != 0 => {
                return Err(InvalidSettings::NotNumbering { partition: self.partition.0 }.into());
            }
            SettingsVersion::Given(0) => return Err(InvalidSettings::NoVersion.into()),
            SettingsVersion::After(_) | SettingsVersion::Given(_) => {}
        }
        Ok(self.settings.check(now)?)
    }

    fn samples() -> Vec<Self> {
        let of = |partition, settings, version| Self {
            partition: PartitionId(partition),
            dest: sample::dest(),
            settings: Box::new(settings),
            version,
        };
        vec![
            of(0, sample::settings(), SettingsVersion::After(3)),
            of(9, DestinationSettings::default(), SettingsVersion::Given(4)),
        ]
    }

    fn arbitrary(from: &mut impl Source) -> Self {
        let (partition, dest, settings, version) = from.settings();
        Self { partition, dest, settings: Box::new(settings), version }
    }
}

impl Reply for ConfigureReply {
    fn not_done(&self) -> Option<NotDone> {
        None
    }

    fn samples() -> Vec<Self> {
        vec![Self::Done(4), Self::Changed(5), Self::TooMany(1_000)]
    }
}
