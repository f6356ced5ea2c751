//! Values as they were read, and as they were written since.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// Values by key. A value may be written that was not read.
///
/// The hash function has no secret, so the order is the same in every run.
#[derive(Debug)]
pub(super) struct Cells<K, V> {
    cells: FxHashMap<K, Cell<V>>,
    /// Keys of written cells, in the order of [`Self::into_written`]. A key that has moved is in it
    /// more than once; its last place counts.
    order: Vec<K>,
}

#[derive(Debug)]
struct Cell<V> {
    read: Option<V>,
    /// With the index in `order`.
    written: Option<(usize, V)>,
}

impl<K, V> Default for Cells<K, V> {
    fn default() -> Self {
        Self { cells: FxHashMap::default(), order: Vec::new() }
    }
}

impl<V> Default for Cell<V> {
    fn default() -> Self {
        Self { read: None, written: None }
    }
}

impl<K: Clone + Eq + Hash, V> Cells<K, V> {
    /// Makes space for so many more.
    pub(super) fn reserve(&mut self, additional: usize) {
        self.cells.reserve(additional);
    }

    /// Takes in a value that was read, unless there is one already.
    pub(super) fn learn(&mut self, key: K, value: V) {
        self.cells.entry(key).or_default().read.get_or_insert(value);
    }

    /// The value as it is now.
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        let cell = self.cells.get(key)?;
        cell.written.as_ref().map(|(_, value)| value).or(cell.read.as_ref())
    }

    /// The value as it was read.
    pub(super) fn read(&self, key: &K) -> Option<&V> {
        self.cells.get(key)?.read.as_ref()
    }

    /// Writes a value. It keeps its place in the order of writes if it has one, unless it `moves`
    /// to the end.
    pub(super) fn write(&mut self, key: K, value: V, moves: bool) {
        let end = self.order.len();
        let cell = self.cells.entry(key.clone()).or_default();
        let place = cell.written.as_ref().map(|(place, _)| *place).filter(|_| !moves).unwrap_or(end);
        cell.written = Some((place, value));
        if place == end {
            self.order.push(key);
        }
    }

    /// The written values, in order: as read, and as they are now.
    pub(super) fn written(&self) -> impl Iterator<Item = (Option<&V>, &V)> {
        self.order.iter().enumerate().filter_map(|(i, key)| {
            let cell = self.cells.get(key)?;
            let (place, value) = cell.written.as_ref()?;
            (*place == i).then_some((cell.read.as_ref(), value))
        })
    }

    /// Forgets the written values.
    pub(super) fn undo(&mut self) {
        for key in self.order.drain(..) {
            if let Some(cell) = self.cells.get_mut(&key) {
                cell.written = None;
            }
        }
    }

    /// The written values, in order: key, value as read, value.
    pub(super) fn into_written(self) -> impl Iterator<Item = (K, Option<V>, V)> {
        let mut cells = self.cells;
        self.order.into_iter().enumerate().filter_map(move |(i, key)| {
            let cell = cells.get_mut(&key)?;
            let (_, value) = cell.written.take_if(|(place, _)| *place == i)?;
            Some((key, cell.read.take(), value))
        })
    }
}
