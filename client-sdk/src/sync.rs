//! Locks that do not pass a panic on.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) trait Locked<T> {
    /// Locks; a panic of an earlier holder is its own affair, as every change behind these locks is
    /// complete on its own.
    fn locked(&self) -> MutexGuard<'_, T>;
}

impl<T> Locked<T> for Mutex<T> {
    fn locked(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
