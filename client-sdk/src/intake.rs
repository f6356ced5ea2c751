//! The inbox of one registration, behind a lock of its own, so that beginning a handler does not
//! wait for the machine.

use std::sync::{Arc, Mutex};

use mtimer_types::Destination;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::RegisterError;
use crate::machine::caller::Callbacks;
use crate::machine::inbox::{Inbox, NextStep};
use crate::sync::Locked;

#[derive(Debug)]
pub(crate) struct Intake {
    pub(crate) dest: Destination,
    /// Cancelled once the last handler has ended.
    pub(crate) done: CancellationToken,
    inbox: Mutex<Inbox>,
    /// For the dispatcher: something has arrived, or a place is free.
    changed: Notify,
    /// Why a broker sends nothing, as said last.
    refused: watch::Sender<Option<RegisterError>>,
}

impl Callbacks for Arc<Intake> {
    fn with<R>(&self, work: impl FnOnce(&mut Inbox) -> R) -> R {
        self.work(work)
    }
}

impl Intake {
    pub(crate) fn new(dest: Destination, credit: u32) -> Self {
        Self {
            inbox: Mutex::new(Inbox::new(dest.clone(), credit)),
            dest,
            done: CancellationToken::new(),
            changed: Notify::new(),
            refused: watch::Sender::new(None),
        }
    }

    fn work<R>(&self, work: impl FnOnce(&mut Inbox) -> R) -> R {
        let mut inbox = self.inbox.locked();
        let result = work(&mut inbox);
        let changed = inbox.take_changed();
        drop(inbox);
        if changed {
            self.changed.notify_one();
        }
        result
    }

    /// See [`Inbox::next`].
    pub(crate) fn next(&self) -> (NextStep, bool) {
        self.work(Inbox::next)
    }

    /// See [`Inbox::keep`].
    pub(crate) fn keep(&self) -> (u64, bool) {
        self.work(Inbox::keep)
    }

    /// See [`Inbox::vacate`].
    pub(crate) fn vacate(&self, number: u64) -> bool {
        self.work(|inbox| inbox.vacate(number))
    }

    /// Completes when [`Intake::next`] may have another answer.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Completes once no handler runs in a task of its own.
    pub(crate) async fn idle(&self) {
        while !self.work(|inbox| inbox.is_idle()) {
            self.changed.notified().await;
        }
    }

    /// A broker refuses to send anything.
    pub(crate) fn refuse(&self, why: RegisterError) {
        self.refused.send_replace(Some(why));
    }

    /// Completes once a broker has refused to send anything.
    pub(crate) async fn refused(&self) -> RegisterError {
        let mut refused = self.refused.subscribe();
        loop {
            if let Some(why) = refused.borrow_and_update().clone() {
                return why;
            }
            // The sender is this intake's own: it outlives the call.
            let _ = refused.changed().await;
        }
    }
}
