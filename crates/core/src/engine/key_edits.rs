//! Operations on keys: one of each key is under way, the others wait for it.
//!
//! Invariant: `waiting` is the number of operations that wait; a key is here while one of its
//! operations is under way.

use std::collections::VecDeque;

use super::hash::{Map, Seeded};
use super::pending::{Asked, KeyName};

/// Operations that wait for an earlier one on the same key, at most: they go to the store one by
/// one.
pub(super) const KEY_OPS: usize = 1_000;

/// Whether a new operation on a key goes to the store, waits, or is one too many.
#[derive(Debug)]
pub(super) enum Admission {
    /// Nothing else is under way: it goes now, and counts as under way.
    Go(Asked),
    /// It waits.
    Waits,
    /// [`KEY_OPS`] wait already.
    TooMany(Asked),
}

/// The operations on one key.
#[derive(Debug, Default)]
struct OpsOnKey {
    waiting: VecDeque<Asked>,
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

    /// Takes in a new operation. One that is on no key waits for none.
    pub(super) fn admit(&mut self, asked: Asked) -> Admission {
        let Some(name) = &asked.key else { return Admission::Go(asked) };
        let Some(edits) = self.by_key.get_mut(name) else {
            self.by_key.insert(name.clone(), OpsOnKey::default());
            return Admission::Go(asked);
        };
        if edits.waiting.len() >= KEY_OPS {
            return Admission::TooMany(asked);
        }
        edits.waiting.push_back(asked);
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
    pub(super) fn end(&mut self, name: &KeyName) -> Option<Asked> {
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
    pub(super) fn into_waiting(self) -> impl Iterator<Item = Asked> {
        self.by_key.into_values().flat_map(|edits| edits.waiting)
    }
}

#[cfg(test)]
mod tests {
    use mtimer_protocol::RequestOp;
    use mtimer_protocol::ops::{Cancel, Purge};
    use mtimer_types::{Destination, Key, Target, TimerId};

    use super::*;
    use crate::engine::pending::ReplyRef;

    fn name(key: &str) -> KeyName {
        (Destination::new("test", "a").unwrap(), Key::new(key).unwrap())
    }

    fn edit(key: &str, n: usize) -> Asked {
        let (dest, key) = name(key);
        let op = RequestOp::Cancel(Cancel { target: Target::Key(dest, key), request: 1 });
        Asked::new(op, ReplyRef { request: n, index: 0 })
    }

    #[test]
    fn operations_on_one_key_go_one_after_the_other_and_other_keys_do_not_wait() {
        let mut keys = KeyQueue::new(Seeded(1));
        assert!(matches!(keys.admit(edit("a", 0)), Admission::Go(_)));
        assert!(matches!(keys.admit(edit("a", 1)), Admission::Waits));
        assert!(matches!(keys.admit(edit("b", 2)), Admission::Go(_)));
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
        keys.admit(edit("a", 0));
        keys.admit(edit("a", 1));
        keys.hold(&name("a"));
        assert!(keys.holds(&name("a")) && !keys.holds(&name("b")));
        keys.end(&name("a"));
        assert!(!keys.holds(&name("a")), "the next has not left");
    }

    #[test]
    fn so_many_wait_at_most() {
        let mut keys = KeyQueue::new(Seeded(1));
        (0..=KEY_OPS).for_each(|n| _ = keys.admit(edit("a", n)));
        assert!(matches!(keys.admit(edit("a", 9)), Admission::TooMany(_)));
        assert_eq!(keys.into_waiting().count(), KEY_OPS);
    }

    #[test]
    fn what_is_on_no_key_waits_for_nothing() {
        let mut keys = KeyQueue::new(Seeded(1));
        let op = || RequestOp::Purge(Purge { id: TimerId::from_u128(1) });
        for request in 0..2 {
            let asked = Asked::new(op(), ReplyRef { request, index: 0 });
            assert!(matches!(keys.admit(asked), Admission::Go(_)));
        }
        assert!(keys.is_empty());
    }
}
