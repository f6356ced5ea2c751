//! The calls of an owner to its partition, and the answers.

use mtimer_types::{Destination, Target, Time, TimerId};

use crate::census::Census;
use crate::controls::Controls;
use crate::counts::{CountsPage, CountsRange};
use crate::forecast::{Forecast, ForecastRange};
use crate::listing::{ListPage, Listing};
use crate::ops::{Answer, Batch};
use crate::pending::{PendingPage, PendingRange};
use crate::place::Place;
use crate::record::Record;

#[cfg(doc)]
use crate::error::LaneError;
#[cfg(doc)]
use crate::refusal::Refusal;

/// A call on a [`Lane`](crate::Lane).
#[derive(Clone, Debug)]
pub enum Call {
    /// Applies a batch. One answer for each operation. If the batch has a claim that is stored and
    /// not confirmed ([`Refusal::NotReplicated`]) that refusal follows as one more: the claim must
    /// not be relied on. Such an answer takes 100 ms at least, since the claim is asked for again
    /// at once.
    Apply(Batch),
    /// Loads pending timers in the order of time, as a basis for the wheel. See [`Loaded`].
    Load(Load),
    /// The owner has forgotten every pending timer with a fire time after this: they must be
    /// loaded again in time.
    Unload(Time),
    /// Finds a timer, live or dead.
    Get(Target),
    /// Destinations with parked timers, and how many they have.
    ParkedDestinations,
    /// A page of a listing.
    List(Listing),
    /// A page of the pending timers, in the order of their fire times.
    Pending(PendingRange),
    /// A page of the counts of each destination.
    Counts(CountsRange),
    /// How many pending timers fire when.
    Forecast(ForecastRange),
    /// Bulk jobs, and destinations' settings.
    Controls,
    /// Counts, cheap enough for a status page.
    Census,
    /// Gives the partition up gracefully, with all that this owner has sent and not settled. The
    /// other timers within its claims were not sent, so claimed-until falls back to where it was
    /// when the partition was acquired. Every later call answers [`LaneError::Closed`].
    Release(Vec<InFlight>),
}

impl Call {
    /// Returns the name of the call, for people.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Apply(_) => "apply",
            Self::Load(_) => "load",
            Self::Unload(_) => "unload",
            Self::Get(_) => "get",
            Self::ParkedDestinations => "parked destinations",
            Self::List(_) => "list",
            Self::Pending(_) => "list pending",
            Self::Counts(_) => "counts",
            Self::Forecast(_) => "forecast",
            Self::Controls => "controls",
            Self::Census => "census",
            Self::Release(_) => "release",
        }
    }
}

/// The answer to the [`Call`] of the same name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CallAnswer {
    /// One for each operation, and perhaps one for the claim.
    Apply(Vec<Answer>),
    /// The result of a load.
    Load(Loaded),
    /// It is noted.
    Unload,
    /// The timer and its place, if there is one.
    Get(Option<(Record, Place)>),
    /// Each destination once.
    ParkedDestinations(Vec<(Destination, u64)>),
    /// A page of the kind that was asked for.
    List(ListPage),
    /// A page of the pending timers.
    Pending(PendingPage),
    /// A page of the counts of each destination.
    Counts(CountsPage),
    /// A part of it.
    Forecast(Forecast),
    /// All of them.
    Controls(Box<Controls>),
    /// The counts.
    Census(Census),
    /// The partition is given up.
    Release,
}

/// A request to load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Load timers that fire up to and including this time.
    pub until: Time,
    /// Stop after about this many timers; at least one step is made.
    pub max_timers: usize,
    /// Stop after about this many bytes of payloads and headers; at least one step is made.
    pub max_bytes: usize,
    /// If set, `claimed-until` becomes at least this.
    pub claim: Option<Time>,
}

/// The result of a load.
///
/// `horizon`: every timer that was pending at this point of the lane with a fire time at or below
/// it has been returned by this or an earlier load since the last [`Call::Unload`] below it. A
/// timer that is filed at or below the horizon by an operation that comes after this load in the
/// lane is the owner's own to remember. A load may return timers beyond the horizon, and timers
/// that the owner has already.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// In no particular order.
    pub timers: Vec<LoadedTimer>,
    /// Up to where everything is loaded; at least as high as after the last load (or unload).
    pub horizon: Time,
    /// The load's claim is stored, but not confirmed: it must not be relied on.
    pub is_claim_unconfirmed: bool,
}

/// One loaded timer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadedTimer {
    /// The timer.
    pub record: Record,
    /// When it is to be delivered.
    pub fire: Time,
    /// Its tier.
    pub tier: u8,
    /// A predecessor may have sent it: see [`crate::ops`].
    pub covered: bool,
}

/// A delivery under way at a planned handover.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InFlight {
    /// Which timer.
    pub id: TimerId,
    /// Which attempt.
    pub attempt: u32,
    /// The client session that has it, by the session's own durable name.
    pub session: u128,
    /// Until when that session may settle it.
    pub until: Time,
}
