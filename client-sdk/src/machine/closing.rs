//! The end of a client: no more callbacks, then the outstanding answers, then nothing.

use crate::machine::moment::Moment;

/// How far a client is on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Closing {
    /// At work.
    #[default]
    Open,
    /// Takes no more callbacks; those that were on their way come in until then.
    Draining { by: Moment },
    /// Everything has come in; handlers run, and may still make requests.
    Drained,
    /// Handlers have ended; answers are waited for until then.
    Flushing { by: Moment },
    /// There is nothing more to wait for.
    Flushed,
    /// Nothing is sent or taken any more.
    Closed,
}

impl Closing {
    /// Whether callbacks are taken.
    pub(crate) fn is_open(self) -> bool {
        self == Self::Open
    }

    /// Whether the client is closed.
    pub(crate) fn is_closed(self) -> bool {
        self == Self::Closed
    }

    /// When the time of the stage is over.
    pub(crate) const fn next_timeout(self) -> Option<Moment> {
        match self {
            Self::Draining { by } | Self::Flushing { by } => Some(by),
            Self::Open | Self::Drained | Self::Flushed | Self::Closed => None,
        }
    }
}
