//! Random numbers. The machine is given them; it makes none.

use std::fmt::Debug;

/// Random numbers, a stream for each purpose.
pub(crate) trait Random: Debug {
    /// Names this client in its hellos; asked once.
    fn client(&mut self) -> u128;
    /// How much of a pause before a retry is left out: 0 is half of it, [`u64::MAX`] nothing.
    fn jitter(&mut self) -> u64;
}
