//! Configure: a person gives a destination other settings.

use mtimer_protocol::ops::{self as asked, ConfigureReply};
use mtimer_types::{Destination, DestinationSettings, SettingsVersion, StoredSettings, Time};

use super::asked::{Applied, Asked, Memory, MemoryEffect};
use super::operation::{Operation, Origin, Properties};
use super::subject::Subject;
use crate::place::Retained;
use crate::settings::Stored;
use crate::table::{Context, Table};

/// Stores settings of a destination ([`crate::settings`]), unless the partition has newer ones.
#[derive(Clone, PartialEq, Debug)]
pub struct Configure {
    /// Which destination.
    pub dest: Destination,
    /// All of its settings.
    pub settings: Box<DestinationSettings>,
    /// Which version they are.
    pub version: SettingsVersion,
}

/// To a [`Configure`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConfigureAnswer {
    /// These settings of the destination hold now: the new ones, or newer ones.
    Done(Box<StoredSettings>),
    /// The destination has this version; nothing changed.
    Changed(u64),
    /// So many destinations have settings, as many as may; nothing changed.
    TooMany(u32),
}

impl Operation for Configure {
    type Answer = ConfigureAnswer;

    const IS: Properties = Properties {
        origin: Origin::Person,
        // A full store takes it: whoever pauses a destination has a reason.
        adds: false,
        waits: true,
        reads_content: false,
        takes_key_back: false,
    };

    fn subject(&self) -> Subject<'_> {
        Subject::Controls
    }

    fn removes(&self) -> [usize; Retained::COUNT] {
        [0, 0]
    }

    fn decide<T: Table>(&self, table: &mut T, _: &Context) -> Result<ConfigureAnswer, T::Error> {
        let mut settings = table.controls().settings.clone();
        let stored = settings.store(&self.dest, &self.settings, self.version);
        if settings != table.controls().settings {
            table.controls_mut().settings = settings;
        }
        Ok(match stored {
            Stored::Done(row) => ConfigureAnswer::Done(row.into()),
            Stored::Changed(version) => ConfigureAnswer::Changed(version),
            Stored::TooMany(limit) => ConfigureAnswer::TooMany(limit),
        })
    }
}

impl Asked for asked::Configure {
    type Op = Configure;

    const CHANGES_UNHELD: bool = false;

    fn holds(&self, _: &impl Memory) -> bool {
        false
    }

    fn complete(&self, _: &impl Memory, _: Time) -> Configure {
        let (dest, settings) = (self.dest.clone(), self.settings.clone());
        Configure { dest, settings, version: self.version }
    }

    fn applied(&self, answer: ConfigureAnswer) -> Applied {
        match answer {
            ConfigureAnswer::Done(row) => {
                Applied::new(ConfigureReply::Done(row.version), MemoryEffect::Configured(row))
            }
            ConfigureAnswer::Changed(version) => {
                Applied::new(ConfigureReply::Changed(version), MemoryEffect::Nothing)
            }
            ConfigureAnswer::TooMany(limit) => {
                Applied::new(ConfigureReply::TooMany(limit), MemoryEffect::Nothing)
            }
        }
    }
}
