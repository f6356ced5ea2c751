//! Destinations and their numbers within a partition: a record holds a number instead of two names.
//!
//! The owner gives the numbers, from 1 without gaps, and stores each with the first timer of its
//! destination.

use std::collections::HashMap;

use mtimer_types::{Destination, Filter};

use crate::keyspace::slot_counts::Wanted;

/// The numbers that stand for destinations in the store.
#[derive(Debug, Default)]
pub(crate) struct DestinationNumbers {
    names: Vec<Destination>,
    numbers: HashMap<Destination, u32>,
    /// So many of them are stored, the first ones.
    stored: usize,
    /// All numbers in the order of the names, unless one has come or gone since it was made.
    in_order: Vec<u32>,
}

impl DestinationNumbers {
    /// The destination of a number.
    pub(crate) fn name(&self, number: u32) -> Option<Destination> {
        self.names.get(number.checked_sub(1)? as usize).cloned()
    }

    /// The number of a destination, if it has one.
    pub(crate) fn number(&self, dest: &Destination) -> Option<u32> {
        self.numbers.get(dest).copied()
    }

    /// The number of a destination; the next one if it has none.
    pub(crate) fn intern(&mut self, dest: &Destination) -> u32 {
        self.number(dest).unwrap_or_else(|| {
            self.names.push(dest.clone());
            let number = self.names.len() as u32;
            self.numbers.insert(dest.clone(), number);
            number
        })
    }

    /// The destinations behind one, in order, with their numbers. Costs little if none has come since
    /// this was last asked for.
    pub(crate) fn behind(
        &mut self,
        after: Option<&Destination>,
    ) -> impl Iterator<Item = (u32, &Destination)> {
        let name = |number: u32| &self.names[number as usize - 1];
        if self.in_order.len() != self.names.len() {
            self.in_order = (1..=self.names.len() as u32).collect();
            self.in_order.sort_unstable_by_key(|number| name(*number));
        }
        let first = after.map_or(0, |after| self.in_order.partition_point(|number| name(*number) <= after));
        self.in_order[first..].iter().map(move |number| (*number, name(*number)))
    }

    /// The numbers of the destinations that a filter accepts.
    pub(crate) fn wanted(&self, filter: &Filter) -> Wanted {
        match (&filter.group, &filter.app) {
            (None, None) => Wanted::Any,
            (Some(group), Some(app)) => {
                let one = Destination::new(group, app).ok().and_then(|dest| self.number(&dest));
                Wanted::Only(one.into_iter().collect())
            }
            (Some(_), None) | (None, Some(_)) => {
                let accepted = (1..).zip(&self.names).filter(|(_, dest)| filter.accepts_destination(dest));
                Wanted::Only(accepted.map(|(number, _)| number).collect())
            }
        }
    }

    /// The destinations that are not stored, with their numbers.
    pub(crate) fn unstored(&self) -> impl Iterator<Item = (u32, &Destination)> {
        let numbers = self.stored as u32 + 1..;
        numbers.zip(&self.names[self.stored..])
    }

    /// How many are stored.
    pub(crate) const fn stored(&self) -> usize {
        self.stored
    }

    /// All of them are stored now.
    pub(crate) const fn set_stored(&mut self) {
        self.stored = self.names.len();
    }

    /// Those that are not stored lose their numbers: the write that was to store them was refused.
    pub(crate) fn forget_unstored(&mut self) {
        self.in_order.clear();
        for dest in self.names.drain(self.stored..) {
            self.numbers.remove(&dest);
        }
    }
}
