//! The subject of an operation: the timers and keys that it names.

use std::sync::Arc;

use mtimer_types::{Key, Target, Timer, TimerId};

use crate::place::Retained;
use crate::remembered::RequestId;

/// The subject of an operation, as far as its arguments tell.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// A timer that it brings along. A repeat has the same id.
    New(&'a Arc<Timer>),
    /// A timer that a client names. A repeat has the same number.
    Named {
        /// Which.
        target: &'a Target,
        /// For repeats.
        request: RequestId,
    },
    /// A timer. A repeat finds it where the first one has put it.
    Timer(TimerId),
    /// What the partition has as a whole: see [`crate::Controls`].
    Controls,
    /// The oldest retained timers of a kind.
    Retained {
        /// Which kind.
        of: Retained,
        /// At most so many.
        limit: u32,
    },
}

impl<'a> Subject<'a> {
    /// The timer, if it is named by its id.
    pub fn id(self) -> Option<TimerId> {
        match self {
            Self::New(timer) => Some(timer.id),
            Self::Named { target: Target::Id(id), .. } => Some(*id),
            Self::Timer(id) => Some(id),
            Self::Named { target: Target::Key(..), .. } | Self::Retained { .. } | Self::Controls => None,
        }
    }

    /// The key that is named, or that a timer brings along.
    pub fn key(self) -> Option<&'a Key> {
        match self {
            Self::New(timer) => timer.key.as_ref(),
            Self::Named { target: Target::Key(_, key), .. } => Some(key),
            Self::Named { target: Target::Id(_), .. }
            | Self::Timer(_)
            | Self::Retained { .. }
            | Self::Controls => None,
        }
    }

    /// The timer that it brings along.
    pub const fn brings(self) -> Option<&'a Arc<Timer>> {
        match self {
            Self::New(timer) => Some(timer),
            Self::Named { .. } | Self::Timer(_) | Self::Retained { .. } | Self::Controls => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use mtimer_types::{Destination, Time};

    use super::*;
    use crate::ops::{Cancel, Op, Park, Purge, Replay, Reschedule, Trim, Unpark, Verdict};

    #[test]
    fn an_operation_names_the_timer_that_its_request_names_by_id() {
        let id = TimerId::from_u128(7);
        let key = Destination::new("g", "a").unwrap().key("k").unwrap();
        let edits = |target: Target| {
            let (request, due) = (RequestId(1), Time::from_ms(5));
            let cancel = Op::Cancel(Cancel { target: target.clone(), sent_attempt: None, request });
            [cancel, Op::Reschedule(Reschedule { target, due, is_begun: false, request })].map(|op| op.id())
        };
        assert_eq!(edits(id.into()), [Some(id); 2]);
        assert_eq!(edits(key), [None; 2]);

        let fire = Time::from_ms(5);
        let settle = Op::settle(id, Verdict::Ack);
        let moves =
            [Op::take(id, 0), settle, Op::Park(Park { id, failed: 0 }), Op::Unpark(Unpark { id, fire })];
        let ends = [Op::Replay(Replay { id, fire }), Op::Purge(Purge { id })];
        assert!(moves.iter().chain(&ends).all(|op| op.id() == Some(id)));
        assert_eq!(Op::Trim(Trim { of: Retained::Dead, before: fire, keep: 0, limit: 1 }).id(), None);
    }
}
