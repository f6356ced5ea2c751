//! Operations on keys: one of each key is under way, the others wait for it.
//!
//! Invariant: `waiting` is the number of operations that wait; a key is here while one of its
//! operations is under way.

use std::collections::VecDeque;

use mtimer_protocol::RequestOp;

use super::hash::{Map, Seeded};
use super::purpose::{KeyName, ReplyRef};

/// Operations that wait for an earlier one on the same key, at most: they go to the store one by
/// one.
pub(super) const KEY_OPS: usize = 1_000;

/// An operation of a client that waits for an earlier one on the same key.
#[derive(Debug)]
pub(super) struct KeyedOp {
    pub(super) op: RequestOp,
    pub(super) reply: ReplyRef,
}

/// What becomes of a new operation on a key.
#[derive(Debug)]
pub(super) enum Admission {
    /// Nothing else is under way: it goes now, and counts as under way.
    Go(KeyedOp),
    /// It waits.
    Waits,
    /// [`KEY_OPS`] wait already.
    TooMany(KeyedOp),
}

/// The operations on one key.
#[derive(Debug, Default)]
struct OpsOnKey {
    waiting: VecDeque<KeyedOp>,
    /// The timer that has the key is not sent until the operation under way is answered.
    holds: bool,
}

/// The operations on keys of one partition.
#[derive(Debug)]
pub(super) struct KeyQueue {
    by_key: Map<KeyName, OpsOnKey>,
    waiting: usize,
}

impl KeyQueue {
    pub(super) fn new(seed: Seeded) -> Self {
        Self { by_key: Map::with_hasher(seed), waiting: 0 }
    }

    /// Whether no operation on a key is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// How many operations wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Takes in a new operation on a key.
    pub(super) fn admit(&mut self, name: &KeyName, edit: KeyedOp) -> Admission {
        let Some(edits) = self.by_key.get_mut(name) else {
            self.by_key.insert(name.clone(), OpsOnKey::default());
            return Admission::Go(edit);
        };
        if edits.waiting.len() >= KEY_OPS {
            return Admission::TooMany(edit);
        }
        edits.waiting.push_back(edit);
        self.waiting += 1;
        Admission::Waits
    }

    /// Holds the timer that has a key, if an operation on it is under way.
    pub(super) fn hold(&mut self, name: &KeyName) {
        if let Some(edits) = self.by_key.get_mut(name) {
            edits.holds = true;
        }
    }

    /// Whether the timer that has this key is held.
    pub(super) fn holds(&self, name: &KeyName) -> bool {
        self.by_key.get(name).is_some_and(|edits| edits.holds)
    }

    /// The operation under way on a key was answered. Returns the next, which is under way now.
    pub(super) fn end(&mut self, name: &KeyName) -> Option<KeyedOp> {
        let edits = self.by_key.get_mut(name)?;
        edits.holds = false;
        let next = edits.waiting.pop_front();
        match next {
            Some(_) => self.waiting -= 1,
            None => _ = self.by_key.remove(name),
        }
        next
    }

    /// The operations that wait, which will not be done.
    pub(super) fn into_waiting(self) -> impl Iterator<Item = KeyedOp> {
        self.by_key.into_values().flat_map(|edits| edits.waiting)
    }
}

#[cfg(test)]
mod tests {
    use mtimer_protocol::ops::Purge;
    use mtimer_types::{Destination, Key, TimerId};

    use super::*;

    fn name(key: &str) -> KeyName {
        (Destination::new("test", "a").unwrap(), Key::new(key).unwrap())
    }

    fn edit(n: usize) -> KeyedOp {
        let op = RequestOp::Purge(Purge { id: TimerId::from_u128(1) });
        KeyedOp { op, reply: ReplyRef { request: n, index: 0 } }
    }

    #[test]
    fn operations_on_one_key_go_one_after_the_other_and_other_keys_do_not_wait() {
        let mut keys = KeyQueue::new(Seeded(1));
        assert!(matches!(keys.admit(&name("a"), edit(0)), Admission::Go(_)));
        assert!(matches!(keys.admit(&name("a"), edit(1)), Admission::Waits));
        assert!(matches!(keys.admit(&name("b"), edit(2)), Admission::Go(_)));
        assert_eq!(keys.waiting(), 1);
        assert_eq!(keys.end(&name("a")).map(|edit| edit.reply.request), Some(1));
        assert!(keys.end(&name("a")).is_none() && keys.end(&name("b")).is_none());
        assert!(keys.is_empty() && keys.waiting() == 0);
    }

    #[test]
    fn a_key_holds_its_timer_until_the_operation_under_way_is_answered() {
        let mut keys = KeyQueue::new(Seeded(1));
        keys.hold(&name("a"));
        assert!(!keys.holds(&name("a")), "nothing is under way");
        keys.admit(&name("a"), edit(0));
        keys.admit(&name("a"), edit(1));
        keys.hold(&name("a"));
        assert!(keys.holds(&name("a")) && !keys.holds(&name("b")));
        keys.end(&name("a"));
        assert!(!keys.holds(&name("a")), "the next has not left");
    }

    #[test]
    fn so_many_wait_at_most() {
        let mut keys = KeyQueue::new(Seeded(1));
        (0..=KEY_OPS).for_each(|n| _ = keys.admit(&name("a"), edit(n)));
        assert!(matches!(keys.admit(&name("a"), edit(9)), Admission::TooMany(_)));
        assert_eq!(keys.into_waiting().count(), KEY_OPS);
    }
}
