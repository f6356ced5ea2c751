//! Destinations and their numbers within a partition.
//!
//! Purpose: a record holds a number instead of two names. The owner gives the numbers, from 1 without gaps, and stores a
//! new one before anything that uses it. A number is never given back.

use std::collections::HashMap;

use mtimer_types::Destination;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Destinations {
    names: Vec<Destination>,
    numbers: HashMap<Destination, u32>,
}

impl Destinations {
    /// The destination of a number.
    pub(crate) fn name(&self, number: u32) -> Option<Destination> {
        self.names.get(number.checked_sub(1)? as usize).cloned()
    }

    /// The number of a destination; 0 if it has none.
    pub(crate) fn number(&self, dest: &Destination) -> u32 {
        self.numbers.get(dest).copied().unwrap_or(0)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// Gives a destination the next number, if it has none; the number is then to be stored.
    pub(crate) fn intern(&mut self, dest: &Destination) -> Option<u32> {
        if self.numbers.contains_key(dest) {
            return None;
        }
        self.names.push(dest.clone());
        let number = self.names.len() as u32;
        self.numbers.insert(dest.clone(), number);
        Some(number)
    }
}

/// As it is stored.
pub(crate) fn encode(dest: &Destination) -> String {
    format!("{}\0{}", dest.group(), dest.app())
}

/// From what is stored.
pub(crate) fn decode(text: &str) -> Option<Destination> {
    let (group, app) = text.split_once('\0')?;
    Destination::new(group, app).ok()
}
