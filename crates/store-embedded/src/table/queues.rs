//! Rows of queues: parked, taken, unconfirmed and dead timers, in the order in which they came,
//! parked ones by class.

use std::ops::Bound;

use bytes::Bytes;
use mtimer_store::table::Row;
use mtimer_store::{Record, Retained};
use mtimer_types::{Priority, TimerId};

use super::PartitionTable;
use crate::fault::Fault;
use crate::layout::{QueuePart, RecordPosition, Space, parse_queue_order, queue_key, take_queue_head};

/// Rows of a queue with their orders.
pub(crate) type QueueRows = Vec<(u64, Row)>;

impl PartitionTable<'_> {
    /// Rows of a part of a queue from an order on, and the order that comes next.
    pub(crate) fn queue(
        &mut self,
        part: QueuePart,
        from: u64,
        limit: usize,
    ) -> Result<(QueueRows, Option<u64>), Fault> {
        self.tree.write()?;
        let (p, queue) = (self.partition.id, part.queue());
        let (from, to) = (queue_key(p, queue, from), queue_key(p, queue, part.end()));
        let mut rows = Vec::new();
        for row in self.tree.scan(Space::Queues, Bound::Included(&from), Bound::Excluded(&to)) {
            let (key, mut value) = row?;
            let order = parse_queue_order(&key).ok_or(Fault::Damaged("a queue's key is unreadable"))?;
            if rows.len() >= limit {
                return Ok((rows, Some(order)));
            }
            let head = take_queue_head(queue, &mut value);
            let (id, at) = head.ok_or(Fault::Damaged("a timer in a queue is unreadable"))?;
            rows.push((order, Row { record: self.decode(id, &value)?, at }));
        }
        Ok((rows, None))
    }

    /// Rows of a destination's park from an order on, class by class, and the order that comes
    /// next.
    pub(crate) fn park(
        &mut self,
        dest: u32,
        from: u64,
        limit: usize,
    ) -> Result<(QueueRows, Option<u64>), Fault> {
        let mut rows = Vec::new();
        for priority in Priority::ALL {
            let part = QueuePart::Class { dest, priority };
            let Some(floor) = self.partition.queue_floor(part).copied() else { break };
            // A partition that was just opened knows no floors.
            let floor = floor.max(part.order(0));
            if part.end() <= from {
                continue;
            }
            let (more, next) = self.queue(part, from.max(floor), limit - rows.len())?;
            if from <= floor {
                self.raise_queue_floor(part, more.first().map(|(order, _)| *order).or(next));
            }
            rows.extend(more);
            if next.is_some() {
                return Ok((rows, next));
            }
        }
        Ok((rows, None))
    }

    /// The oldest retained timers of one kind, for an operation that is going to remove them.
    pub(crate) fn first_retained(&mut self, of: Retained, limit: usize) -> Result<Vec<Row>, Fault> {
        let part = match of {
            Retained::Dead => QueuePart::Dead,
            Retained::Unconfirmed => QueuePart::Unconfirmed,
        };
        let floor = self.partition.queue_floor(part).copied().unwrap_or_default();
        let (rows, _) = self.queue(part, floor, limit.max(1))?;
        self.raise_queue_floor(part, rows.first().map(|(order, _)| *order));
        for &(order, ref row) in &rows {
            let location = match of {
                Retained::Dead => RecordPosition::Dead { order },
                Retained::Unconfirmed => RecordPosition::Unconfirmed { order },
            };
            self.remember(row.id(), location);
        }
        Ok(rows.into_iter().map(|(_, row)| row).collect())
    }

    /// Notes the first order of a part of a queue: no row has a lower one. `None`: it has no rows.
    pub(crate) fn raise_queue_floor(&mut self, part: QueuePart, first: Option<u64>) {
        let next = part.order(self.partition.counters.order + 1);
        if let Some(floor) = self.partition.queue_floor(part) {
            *floor = first.unwrap_or(next);
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
