//! Which server has which hash slot.
//!
//! A standalone server and its replicas are the case of one master that has all hash slots.

use std::collections::HashMap;

use parking_lot::{Mutex, MutexGuard};
use redis::Value;

use super::fault::with_host;
use super::reply::Reply;

/// Hash slots of a Redis Cluster.
const HASH_SLOTS: usize = 16_384;

/// A range of hash slots and its master.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) master: String,
    /// Replicas of the master that count: see [`super::node::Network::replicas`]. `None`: only a
    /// redirection has named the master.
    pub(crate) replicas: Option<u32>,
    /// The configuration epoch with which the master has them: the claim with the highest one is
    /// right. Nodes of a cluster, and Sentinels, raise it with every change.
    pub(crate) epoch: u64,
}

/// The map of hash slots, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct SlotMap(Mutex<Vec<Range>>);

impl SlotMap {
    fn ranges(&self) -> MutexGuard<'_, Vec<Range>> {
        self.0.lock()
    }

    fn of<T>(&self, slot: u16, get: impl FnOnce(&Range) -> T) -> Option<T> {
        self.ranges().iter().find(|r| (r.from..=r.to).contains(&slot)).map(get)
    }

    /// The address of the master of a hash slot.
    pub(crate) fn master(&self, slot: u16) -> Option<String> {
        self.of(slot, |range| range.master.clone())
    }

    /// Whether the server at an address is the master of a hash slot.
    pub(crate) fn leads_to(&self, slot: u16, address: &str) -> bool {
        self.of(slot, |range| range.master == address).unwrap_or(false)
    }

    /// How many replicas the master of a hash slot has, if that is known.
    pub(crate) fn replicas(&self, slot: u16) -> Option<u32> {
        self.of(slot, |range| range.replicas).flatten()
    }

    /// The configuration epoch of the claim to a hash slot; 0 if it is not known.
    pub(crate) fn epoch(&self, slot: u16) -> u64 {
        self.of(slot, |range| range.epoch).unwrap_or(0)
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
        let one = Range { from: slot, to: slot, master: master.into(), replicas, epoch: 0 };
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

/// Reads the reply to `ROLE` of a server outside a cluster; if it is no master, the error names its
/// role or its refusal.
pub(crate) fn of_standalone(role: &Value, asked: &str) -> Result<Vec<Range>, String> {
    let items = role.items();
    match items.first().and_then(Reply::text) {
        Some("master") => {
            let replicas = Some(connected(role).unwrap_or(0));
            Ok(vec![Range { from: 0, to: u16::MAX, master: asked.into(), replicas, epoch: 0 }])
        }
        Some("sentinel") => Err(format!("{asked} is a Sentinel")),
        Some(role) => Err(format!("{asked} is a {role}, not a master: give the master's address as well")),
        None => {
            Err(format!("{asked}: {}", role.refusal().unwrap_or_else(|| "ROLE is not understood".into())))
        }
    }
}

/// How many replicas a master has that are connected, by its reply to `ROLE`.
fn connected(role: &Value) -> Option<u32> {
    Some(role.items().get(2)?.items().len() as u32)
}

/// Reads the replies to `CLUSTER SLOTS`, which names the masters as clients reach them, and to
/// `CLUSTER NODES`.
pub(crate) fn of_cluster(slots: &Value, nodes: &Value, asked: &str) -> Result<Vec<Range>, String> {
    if let Some(refusal) = slots.refusal().or_else(|| nodes.refusal()) {
        return Err(format!("{asked}: {refusal}"));
    }
    let nodes = masters_of(nodes.text().unwrap_or_default());
    let ranges: Vec<_> = slots.items().iter().filter_map(|row| range(row, &nodes, asked)).collect();
    if ranges.is_empty() {
        return Err(format!("{asked}: the cluster has no hash slots assigned"));
    }
    Ok(ranges)
}

/// One row of `CLUSTER SLOTS`: first hash slot, last hash slot, master (host, port, node id, ...).
fn range(row: &Value, nodes: &HashMap<&str, Node>, asked: &str) -> Option<Range> {
    let [from, to, master, ..] = row.items() else { return None };
    let [host, port, id, ..] = master.items() else { return None };
    let node = nodes.get(id.text()?).copied().unwrap_or_default();
    Some(Range {
        from: u16::try_from(from.number()?).ok()?,
        to: u16::try_from(to.number()?).ok()?,
        master: with_host(&format!("{}:{}", host.text().unwrap_or_default(), port.number()?), asked),
        replicas: Some(node.replicas),
        epoch: node.epoch,
    })
}

/// A master as `CLUSTER NODES` lists it.
#[derive(Clone, Copy, Default, Debug)]
struct Node {
    /// Its replicas that have not failed by the vote of the masters.
    replicas: u32,
    epoch: u64,
}

/// Reads `CLUSTER NODES`: by node id.
///
/// `CLUSTER SLOTS` leaves out a replica that waits for a whole copy of the data. Such a replica may
/// be promoted all the same, with the old data that it still has, so it counts here.
fn masters_of(nodes: &str) -> HashMap<&str, Node> {
    let mut masters: HashMap<&str, Node> = HashMap::new();
    for line in nodes.lines() {
        // Node id, address, flags, id of its master, ping, pong, epoch, ...
        let [id, _, flags, master, _, _, epoch] = std::array::from_fn({
            let mut fields = line.split(' ');
            move |_| fields.next().unwrap_or_default()
        });
        let has = |flag| flags.split(',').any(|f| f == flag);
        if has("master") {
            masters.entry(id).or_default().epoch = epoch.parse().unwrap_or(0);
        } else if has("slave") && !has("fail") {
            masters.entry(master).or_default().replicas += 1;
        }
    }
    masters
}

/// One map of several: of each hash slot the claim with the highest epoch. A master that is cut off
/// from its cluster goes on to claim its former hash slots, with the former epoch.
pub(crate) fn merge(maps: &[Vec<Range>]) -> Vec<Range> {
    let mut claims: Vec<Option<&Range>> = vec![None; HASH_SLOTS];
    for range in maps.iter().flatten() {
        let slots = claims.get_mut(usize::from(range.from)..=usize::from(range.to));
        for claim in slots.unwrap_or_default() {
            if claim.is_none_or(|claim| (claim.epoch, claim.replicas) < (range.epoch, range.replicas)) {
                *claim = Some(range);
            }
        }
    }
    let mut merged: Vec<Range> = Vec::new();
    for (slot, claim) in (0..).zip(claims) {
        let Some(claim) = claim else { continue };
        let one = Range { from: slot, to: slot, ..claim.clone() };
        match merged.last_mut() {
            Some(last) if is_continued(last, &one) => last.to = slot,
            _ => merged.push(one),
        }
    }
    merged
}

fn is_continued(last: &Range, next: &Range) -> bool {
    last.to + 1 == next.from && *last == Range { from: last.from, to: last.to, ..next.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(from: u16, to: u16, master: &str, replicas: u32, epoch: u64) -> Range {
        Range { from, to, master: master.into(), replicas: Some(replicas), epoch }
    }

    #[test]
    fn of_several_claims_the_one_with_the_highest_epoch_counts() {
        let stale = vec![range(0, 99, "a:1", 1, 1), range(100, 299, "b:1", 0, 2)];
        let fresh =
            vec![range(0, 89, "c:1", 0, 4), range(100, 199, "b:1", 1, 2), range(200, 300, "d:1", 0, 3)];
        let expected = [
            range(0, 89, "c:1", 0, 4),
            range(90, 99, "a:1", 1, 1),
            range(100, 199, "b:1", 1, 2),
            range(200, 300, "d:1", 0, 3),
        ];
        assert_eq!(merge(&[stale.clone(), fresh.clone()]), expected);
        assert_eq!(merge(&[fresh.clone(), stale]), expected);
        assert_eq!(merge(&[vec![range(16_000, 20_000, "no:1", 0, 9)], fresh.clone()]), fresh);
    }

    #[test]
    fn a_redirection_changes_one_hash_slot() {
        let map = SlotMap::default();
        map.put(vec![Range { from: 0, to: 16_383, master: "a:1".into(), replicas: Some(2), epoch: 3 }]);
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
        let slots = parse("*2 *3 :0 :99 *3 $1 h :7000 $2 aa *3 :100 :16383 *3 $0  :7001 $2 bb ");
        let nodes = |text: &str| Value::BulkString(text.into());
        let of = |slots: &Value, nodes: &Value| of_cluster(slots, nodes, "asked:7000");
        let listed = nodes(
            "aa h:7000@17000,name myself,master - 0 0 1 connected 0-99\n\
             bb :7001@17001 master - 0 0 2 connected 100-16383\n\
             cc h:7002@17002 slave aa 0 0 1 disconnected\n\
             dd h:7003@17003 slave,fail? aa 0 0 1 connected\n\
             ee h:7004@17004 slave,fail aa 0 0 1 disconnected\n\
             ff h:7005@17005 slave,fail,nofailover bb 0 0 2 connected\n\n",
        );
        let expected = [range(0, 99, "h:7000", 2, 1), range(100, 16_383, "asked:7001", 0, 2)];
        assert_eq!(of(&slots, &listed).unwrap(), expected);
        assert_eq!(of(&slots, &nodes("")).unwrap()[0].replicas, Some(0));
        assert!(of(&parse("*0 "), &listed).unwrap_err().contains("no hash slots"));
        assert!(of(&parse("-NOPERM "), &listed).unwrap_err().contains("NOPERM"));
        assert!(of(&slots, &parse("-NOPERM ")).unwrap_err().contains("NOPERM"));
        let master = parse("*3 $6 master :0 *1 *3 $1 r $4 7000 $1 0 ");
        let expected = [range(0, u16::MAX, "asked:7000", 1, 0)];
        assert_eq!(of_standalone(&master, "asked:7000").unwrap(), expected);
        assert!(of_standalone(&parse("*1 $5 slave "), "asked:7000").unwrap_err().contains("is a slave"));
    }
}
