//! Memory that the frames of all connections share.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Memory for frames that are being received, of many connections together.
#[derive(Debug)]
pub(crate) struct ReceiveBudget {
    limit: usize,
    bytes: Arc<Semaphore>,
    /// Held by the one frame that goes on beyond the budget.
    overdraft: Arc<Semaphore>,
    /// Frames that wait for memory.
    waiting: watch::Sender<usize>,
}

/// The charge of a frame. Dropping it gives the bytes back.
#[derive(Debug, Default)]
pub(super) struct Charge {
    bytes: Option<OwnedSemaphorePermit>,
    overdraft: Option<OwnedSemaphorePermit>,
}

impl ReceiveBudget {
    /// A budget of so many bytes; one frame may exceed it.
    pub(crate) fn new(bytes: usize) -> Self {
        let (waiting, _) = watch::channel(0);
        let (limit, overdraft) = (bytes, Arc::new(Semaphore::new(1)));
        Self { limit, bytes: Arc::new(Semaphore::new(bytes)), overdraft, waiting }
    }

    /// Bytes of frames that are being received, and their limit.
    pub(crate) fn used(&self) -> (u64, u64) {
        let used = self.limit.saturating_sub(self.bytes.available_permits());
        (used as u64, self.limit as u64)
    }

    /// Bytes that are not charged to any frame.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.bytes.available_permits()
    }

    /// Charges more bytes; says whether there was a wait for them.
    ///
    /// # Cancel safety
    ///
    /// Nothing is charged unless this returns.
    pub(super) async fn charge(&self, charge: &mut Charge, bytes: usize) -> bool {
        if charge.overdraft.is_some() {
            return false;
        }
        // A frame is below 4 GiB.
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if let Ok(permit) = self.bytes.clone().try_acquire_many_owned(bytes) {
            charge.add(permit);
            return false;
        }
        let _waiting = Waiting::begin(&self.waiting);
        // The semaphores are never closed, so that an error cannot be.
        tokio::select! {
            biased;
            Ok(permit) = self.bytes.clone().acquire_many_owned(bytes) => charge.add(permit),
            Ok(permit) = self.overdraft.clone().acquire_owned() => charge.overdraft = Some(permit),
            else => {}
        }
        true
    }

    /// Completes when a frame waits for memory.
    pub(super) async fn pressed(&self) {
        // The sender lives as long as this.
        let _ = self.waiting.subscribe().wait_for(|waiting| *waiting > 0).await;
    }
}

impl Charge {
    pub(super) fn is_some(&self) -> bool {
        self.bytes.is_some() || self.overdraft.is_some()
    }

    fn add(&mut self, permit: OwnedSemaphorePermit) {
        match &mut self.bytes {
            Some(bytes) => bytes.merge(permit),
            none => *none = Some(permit),
        }
    }
}

/// One frame that waits for memory, as long as this lives.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl<'a> Waiting<'a> {
    fn begin(waiting: &'a watch::Sender<usize>) -> Self {
        waiting.send_modify(|n| *n += 1);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}
