//! Which server has which hash slot.
//!
//! A standalone server and its replicas are the case of one master that has all hash slots.

use std::sync::{Mutex, MutexGuard, PoisonError};

use redis::Value;

use super::fault::with_host;
use super::reply::Reply;

/// A range of hash slots and its master.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) master: String,
    /// Replicas of the master that count: see `Servers::replicas`. `None`: only a redirection has named the master.
    pub(crate) replicas: Option<u32>,
}

/// The map of hash slots, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct Topology(Mutex<Vec<Range>>);

impl Topology {
    fn ranges(&self) -> MutexGuard<'_, Vec<Range>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of<T>(&self, slot: u16, get: impl FnOnce(&Range) -> T) -> Option<T> {
        self.ranges().iter().find(|r| (r.from..=r.to).contains(&slot)).map(get)
    }

    /// The address of the master of a hash slot.
    pub(crate) fn master(&self, slot: u16) -> Option<String> {
        self.of(slot, |range| range.master.clone())
    }

    /// How many replicas the master of a hash slot has, if that is known.
    pub(crate) fn replicas(&self, slot: u16) -> Option<u32> {
        self.of(slot, |range| range.replicas).flatten()
    }

    /// The addresses of all masters.
    pub(crate) fn masters(&self) -> Vec<String> {
        let mut all: Vec<_> = self.ranges().iter().map(|r| r.master.clone()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Takes in a redirection.
    pub(crate) fn moved(&self, slot: u16, master: &str) {
        let mut ranges = self.ranges();
        let replicas = ranges.iter().find(|r| r.master == master).and_then(|r| r.replicas);
        let one = Range { from: slot, to: slot, master: master.into(), replicas };
        if let Some(at) = ranges.iter().position(|r| (r.from..=r.to).contains(&slot)) {
            let old = ranges.swap_remove(at);
            if slot > old.from {
                ranges.push(Range { to: slot - 1, ..old.clone() });
            }
            if slot < old.to {
                ranges.push(Range { from: slot + 1, ..old });
            }
        }
        ranges.push(one);
    }

    /// Takes in a new map.
    pub(crate) fn put(&self, ranges: Vec<Range>) {
        *self.ranges() = ranges;
    }
}

/// Reads the reply to `ROLE` of a server outside a cluster; an error says what it is if it is no master.
pub(crate) fn of_standalone(role: &Value, asked: &str) -> Result<Vec<Range>, String> {
    let items = role.items().unwrap_or_default();
    match items.first().and_then(Reply::text) {
        Some("master") => {
            let replicas = items.get(2).and_then(Reply::items).map_or(0, <[Value]>::len) as u32;
            Ok(vec![Range { from: 0, to: u16::MAX, master: asked.into(), replicas: Some(replicas) }])
        }
        Some(role) => Err(format!("{asked} is a {role}, not a master: give the master's address as well")),
        None => {
            Err(format!("{asked}: {}", role.refusal().unwrap_or_else(|| "ROLE is not understood".into())))
        }
    }
}

/// Reads the reply to `CLUSTER SLOTS`.
pub(crate) fn of_cluster(slots: &Value, asked: &str) -> Result<Vec<Range>, String> {
    if let Some(refusal) = slots.refusal() {
        return Err(format!("{asked}: {refusal}"));
    }
    let ranges: Vec<_> =
        slots.items().unwrap_or_default().iter().filter_map(|row| range(row, asked)).collect();
    if ranges.is_empty() {
        return Err(format!("{asked}: the cluster has no hash slots assigned"));
    }
    Ok(ranges)
}

/// One row: first hash slot, last hash slot, master (host, port, ...), replicas.
fn range(row: &Value, asked: &str) -> Option<Range> {
    let [from, to, master, replicas @ ..] = row.items()? else { return None };
    let [host, port, ..] = master.items()? else { return None };
    Some(Range {
        from: u16::try_from(from.number()?).ok()?,
        to: u16::try_from(to.number()?).ok()?,
        master: with_host(&format!("{}:{}", host.text().unwrap_or_default(), port.number()?), asked),
        replicas: Some(replicas.len() as u32),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirection_changes_one_hash_slot() {
        let map = Topology::default();
        map.put(vec![Range { from: 0, to: 16_383, master: "a:1".into(), replicas: Some(2) }]);
        map.moved(5, "b:1");
        map.moved(5, "c:1");
        let of = |slot| map.master(slot).unwrap();
        assert_eq!((of(4).as_str(), of(5).as_str(), of(6).as_str()), ("a:1", "c:1", "a:1"));
        assert_eq!(map.masters(), ["a:1", "c:1"]);
        assert_eq!((map.replicas(4), map.replicas(5)), (Some(2), None));
        map.moved(5, "a:1");
        assert_eq!((map.replicas(5), map.replicas(20_000)), (Some(2), None));
    }

    #[test]
    fn replies_are_read() {
        let parse = |text: &str| redis::parse_redis_value(text.replace(' ', "\r\n").as_bytes()).unwrap();
        let two = "*2 *4 :0 :99 *2 $1 h :7000 *2 $1 r :7000 *3 :100 :16383 *2 $0  :7001 ";
        let expected = [
            Range { from: 0, to: 99, master: "h:7000".into(), replicas: Some(1) },
            Range { from: 100, to: 16_383, master: "asked:7001".into(), replicas: Some(0) },
        ];
        assert_eq!(of_cluster(&parse(two), "asked:7000").unwrap(), expected);
        assert!(of_cluster(&parse("*0 "), "asked:7000").unwrap_err().contains("no hash slots"));
        assert!(of_cluster(&parse("-NOPERM "), "asked:7000").unwrap_err().contains("NOPERM"));
        let master = parse("*3 $6 master :0 *1 *3 $1 r $4 7000 $1 0 ");
        let expected = [Range { from: 0, to: u16::MAX, master: "asked:7000".into(), replicas: Some(1) }];
        assert_eq!(of_standalone(&master, "asked:7000").unwrap(), expected);
        assert!(of_standalone(&parse("*1 $5 slave "), "asked:7000").unwrap_err().contains("is a slave"));
    }
}
