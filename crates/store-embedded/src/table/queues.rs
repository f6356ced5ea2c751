//! Rows of queues: parked, taken, unconfirmed and dead timers, in the order in which they came.

use std::ops::Bound;

use bytes::Bytes;
use mtimer_store::table::Row;
use mtimer_store::{Record, Retained};
use mtimer_types::TimerId;

use super::PartitionTable;
use crate::fault::Fault;
use crate::layout::{Queue, RecordPosition, Space, parse_queue_order, queue_key, take_queue_head};

/// Rows of a queue with their orders.
pub(crate) type QueueRows = Vec<(u64, Row)>;

impl PartitionTable<'_> {
    /// Rows of a queue from an order on, and the order that comes next.
    pub(crate) fn queue(
        &mut self,
        queue: Queue,
        from: u64,
        limit: usize,
    ) -> Result<(QueueRows, Option<u64>), Fault> {
        self.tree.write()?;
        let p = self.partition.id;
        let (from, to) = (queue_key(p, queue, from), queue_key(p, queue, u64::MAX));
        let mut rows = Vec::new();
        for row in self.tree.scan(Space::Queues, Bound::Included(&from), Bound::Included(&to)) {
            let (key, mut value) = row?;
            let order = parse_queue_order(&key).ok_or(Fault::Damaged("a queue's key is unreadable"))?;
            if rows.len() >= limit.max(1) {
                return Ok((rows, Some(order)));
            }
            let head = take_queue_head(queue, &mut value);
            let (id, at) = head.ok_or(Fault::Damaged("a timer in a queue is unreadable"))?;
            rows.push((order, Row { record: self.decode(id, &value)?, at }));
        }
        Ok((rows, None))
    }

    /// The oldest retained timers of one kind, for an operation that is going to remove them.
    pub(crate) fn first_retained(&mut self, of: Retained, limit: usize) -> Result<Vec<Row>, Fault> {
        let queue = match of {
            Retained::Dead => Queue::Dead,
            Retained::Unconfirmed => Queue::Unconfirmed,
        };
        let floor = self.partition.queue_floor(queue).copied().unwrap_or_default();
        let (rows, _) = self.queue(queue, floor, limit)?;
        self.raise_queue_floor(queue, &rows);
        for &(order, ref row) in &rows {
            let location = match of {
                Retained::Dead => RecordPosition::Dead { order },
                Retained::Unconfirmed => RecordPosition::Unconfirmed { order },
            };
            self.remember(row.id(), location);
        }
        Ok(rows.into_iter().map(|(_, row)| row).collect())
    }

    /// Notes that these are the first rows of a queue: none has a lower order.
    pub(crate) fn raise_queue_floor(&mut self, queue: Queue, rows: &[(u64, Row)]) {
        let first = rows.first().map_or(self.partition.counters.order + 1, |(order, _)| *order);
        if let Some(floor) = self.partition.queue_floor(queue) {
            *floor = first;
        }
    }

    /// Remembers where rows of a listing stand, for the operation under way.
    fn remember(&mut self, id: TimerId, location: RecordPosition) {
        self.memo.insert(id, location);
    }

    /// Reads a record under which stands nothing but it.
    fn decode(&self, id: TimerId, value: &Bytes) -> Result<Record, Fault> {
        Ok(Record::decode(id, value, |number| self.destinations.name(number))?)
    }
}
