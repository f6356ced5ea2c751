//! Reads a master's replicas from `INFO replication`.

use mtimer_store::FirstLine;
use redis::{InfoDict, Value};
use tokio::time::Instant;

use super::node::Lost;
use super::reply::Reply;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Replication {
    /// How far the stream of writes has got.
    offset: Option<u64>,
    connected: u32,
    /// Those that are listed.
    listed: u32,
    /// Up to where those have confirmed the stream that follow it.
    online: Vec<u64>,
}

impl Replication {
    /// Reads the reply of the server at an address.
    ///
    /// # Errors
    ///
    /// [`Lost`] if it does not say how many replicas there are.
    pub(super) fn read(address: &str, info: &Value) -> Result<Self, Lost> {
        let unsaid = || Lost(format!("{address}: INFO does not say how many replicas there are"));
        let info = InfoDict::new(info.text().ok_or_else(unsaid)?);
        let lines = (0..).map_while(|n| info.get::<String>(&format!("slave{n}")));
        let lines: Vec<String> = lines.collect();
        Ok(Self {
            offset: info.get("master_repl_offset"),
            connected: info.get("connected_slaves").ok_or_else(unsaid)?,
            listed: lines.len() as u32,
            online: lines.iter().filter_map(|line| online_offset(line)).collect(),
        })
    }

    /// How far the stream of writes has got. `None`: it is not said.
    pub(super) const fn offset(&self) -> Option<u64> {
        self.offset
    }

    /// How many replicas are connected, also those that do not have all their data yet.
    pub(super) const fn connected(&self) -> u32 {
        self.connected
    }

    /// How many of them have everything up to an offset, if `WAIT` counts so many: never more than
    /// their own offsets say. A server that does not list them is believed. `line`: whether it is
    /// logged that the two differ.
    pub(super) fn having(&self, offset: Option<u64>, waited: u32, line: &FirstLine) -> u32 {
        let Some(offset) = offset.filter(|_| self.listed >= self.connected) else { return waited };
        let having = self.online.iter().filter(|at| **at >= offset).count() as u32;
        if waited > having && self.online.len() as u32 >= waited && line.is_due(Instant::now().into_std()) {
            tracing::warn!(
                waited,
                having,
                "WAIT counts replicas that lack writes, as the server itself says: they do not count (is there a \
                 proxy in between?)"
            );
        }
        waited.min(having)
    }
}

/// Up to where a replica has confirmed the stream, from its line
/// `ip=127.0.0.1,port=6380,state=online,offset=42,lag=0`. `None`: it does not follow yet.
fn online_offset(line: &str) -> Option<u64> {
    let field = |name: &str| line.split(',').find_map(|field| field.strip_prefix(name));
    field("state=").filter(|state| *state == "online")?;
    field("offset=")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Replication {
        Replication::read("a:1", &Value::BulkString(text.replace(' ', "\r\n").into_bytes())).unwrap()
    }

    #[test]
    fn a_replica_counts_if_wait_and_its_own_offset_say_so() {
        let two = "connected_slaves:2 slave0:ip=a,port=1,state=online,offset=41,lag=0 \
                   slave1:ip=b,port=1,state=online,offset=42,lag=1,type=replica master_repl_offset:50 ";
        let of = |text: &str, offset, waited| read(text).having(offset, waited, &FirstLine::default());
        assert_eq!((read(two).offset(), read(two).connected()), (Some(50), 2));
        assert_eq!([40, 42, 43].map(|offset| of(two, Some(offset), 2)), [2, 1, 0]);
        assert_eq!(of(two, Some(40), 1), 1, "WAIT has seen one");
        let loading = two.replace("state=online,offset=42", "state=wait_bgsave,offset=0");
        assert_eq!((of(&loading, Some(40), 2), read(&loading).connected()), (1, 2));
        let unlisted = "connected_slaves:2 master_repl_offset:50 ";
        assert_eq!(of(unlisted, Some(50), 2), 2, "a server that lists none is believed");
        assert_eq!(of(two, None, 2), 2, "as is one that does not say how far it is");
        assert!(Replication::read("a:1", &Value::BulkString(b"role:master\r\n".to_vec())).is_err());
    }
}
