//! Types that the user of a machine supplies: tokens that come back with answers, the places where
//! callbacks wait, and random numbers.

use std::fmt::Debug;

use crate::machine::inbox::Inbox;
use crate::machine::random::Random;

/// The types of a machine's user.
pub(crate) trait Caller: Sized + 'static {
    /// Waits for the answer to an operation.
    type Call: Waiting;
    /// Waits for the answer to a question.
    type Question: Waiting;
    /// Takes the callbacks of a registration.
    type Callbacks: Callbacks;
    /// Makes random numbers.
    type Random: Random;
}

/// A token that comes back with an answer.
pub(crate) trait Waiting: Debug {
    /// Whether nobody waits for the answer any more. A request that has not been sent then is not
    /// sent.
    fn is_abandoned(&self) -> bool;
}

/// Where the callbacks of one registration are: an [`Inbox`], which has a lock of its own if
/// handlers begin in parallel with the machine.
pub(crate) trait Callbacks: Clone + Debug {
    /// Works with the inbox.
    fn with<R>(&self, work: impl FnOnce(&mut Inbox) -> R) -> R;
}
