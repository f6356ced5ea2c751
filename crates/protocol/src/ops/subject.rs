//! The subject of an operation: a new timer, a live one, a retained one, a key, or many timers of a
//! partition.

use std::sync::Arc;

use mtimer_types::{Destination, Key, PartitionId, Target, Timer, TimerId};

/// What an operation is about: by this it is routed, ordered and permitted.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// A timer that it brings along.
    New(&'a Arc<Timer>),
    /// A live timer.
    Named(&'a Target),
    /// A dead or unconfirmed timer.
    Retained(TimerId),
    /// The timers of a partition that a bulk job, or a destination's settings, are about.
    Partition {
        /// Where.
        partition: PartitionId,
        /// Only of this group.
        group: Option<&'a str>,
        /// Only of this app.
        app: Option<&'a str>,
        /// Bytes of its texts.
        bytes: usize,
    },
}

impl<'a> Subject<'a> {
    /// The partition whose owner decides.
    pub fn partition(self, partitions: u16) -> PartitionId {
        match self {
            Self::New(timer) => timer.id.partition(),
            Self::Named(target) => target.partition(partitions),
            Self::Retained(id) => id.partition(),
            Self::Partition { partition, .. } => partition,
        }
    }

    /// The key that it names or brings along. Operations on a key go one after the other.
    pub fn key(self) -> Option<(&'a Destination, &'a Key)> {
        match self {
            Self::New(timer) => timer.key.as_ref().map(|key| (&timer.dest, key)),
            Self::Named(Target::Key(dest, key)) => Some((dest, key)),
            Self::Named(Target::Id(_)) | Self::Retained(_) | Self::Partition { .. } => None,
        }
    }

    /// The destination, as far as it says.
    pub fn dest(self) -> Option<&'a Destination> {
        match self {
            Self::New(timer) => Some(&timer.dest),
            Self::Named(Target::Key(dest, _)) => Some(dest),
            Self::Named(Target::Id(_)) | Self::Retained(_) | Self::Partition { .. } => None,
        }
    }

    /// The timer that it brings along.
    pub const fn brings(self) -> Option<&'a Arc<Timer>> {
        match self {
            Self::New(timer) => Some(timer),
            Self::Named(_) | Self::Retained(_) | Self::Partition { .. } => None,
        }
    }

    /// Most bytes that it takes on the wire, beside numbers.
    pub fn bytes(self) -> usize {
        let names = |dest: &Destination, key: Option<&Key>| {
            dest.group().len() + dest.app().len() + key.map_or(0, |key| key.as_str().len())
        };
        match self {
            Self::New(timer) => {
                let tiers = timer.retry.as_ref().map_or(0, |retry| retry.0.len() * 5);
                let content = timer.content_bytes() + 2 * timer.headers.len();
                names(&timer.dest, timer.key.as_ref()) + tiers + content
            }
            Self::Named(Target::Key(dest, key)) => names(dest, Some(key)),
            Self::Named(Target::Id(_)) | Self::Retained(_) => 0,
            Self::Partition { bytes, .. } => bytes,
        }
    }
}
