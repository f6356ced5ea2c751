//! Who is at the other end of a connection on this machine.
//!
//! A broker is found by its process: the kernel knows which process has the socket. Clients live in
//! the test's own process and are told apart by the software name in their hello.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// What clients' software names begin with: `client-3`.
const CLIENT: &[u8] = b"client-";

/// Names a connection by where it comes from, where it arrives, and its first bytes.
pub type Label = Arc<dyn Fn(SocketAddr, SocketAddr, &[u8]) -> String + Send + Sync>;

/// Brokers by process id.
#[derive(Clone, Debug, Default)]
pub struct Parties(Arc<Mutex<BTreeMap<u32, String>>>);

impl Parties {
    /// This process is the broker of this name.
    pub fn add(&self, pid: u32, name: &str) {
        self.0.lock().unwrap().insert(pid, name.to_owned());
    }

    /// Names connections: a broker's name, a client's software name, or nothing.
    pub fn label(&self) -> Label {
        let parties = self.clone();
        Arc::new(move |from, to, first| client_in(first).unwrap_or_else(|| parties.broker_at(from, to)))
    }

    fn broker_at(&self, from: SocketAddr, to: SocketAddr) -> String {
        let Some(socket) = inode(from, to).map(|inode| format!("socket:[{inode}]")) else {
            return String::new();
        };
        let known = self.0.lock().unwrap().clone();
        let has = |pid: &u32| {
            let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
            let is_it =
                |entry: fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|l| l.as_os_str() == &*socket);
            entries.flatten().any(is_it)
        };
        known.into_iter().find(|(pid, _)| has(pid)).map(|(_, name)| name).unwrap_or_default()
    }
}

/// `client-<number>` in a hello.
fn client_in(first: &[u8]) -> Option<String> {
    let at = first.windows(CLIENT.len()).position(|w| w == CLIENT)?;
    let digits = first[at + CLIENT.len()..].iter().take_while(|b| b.is_ascii_digit());
    let digits: String = digits.map(|b| char::from(*b)).collect();
    (!digits.is_empty()).then(|| format!("client-{digits}"))
}

/// The inode of the socket that is connected from here to there. The same port may lead to several
/// places.
fn inode(from: SocketAddr, to: SocketAddr) -> Option<u64> {
    let (from, to) = (in_hex(from)?, in_hex(to)?);
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    // sl local rem st queues timer retransmits uid timeout inode
    let field = |line: &str, n: usize| line.split_whitespace().nth(n).map(str::to_owned);
    let is_it = |line: &&str| field(line, 1).as_ref() == Some(&from) && field(line, 2).as_ref() == Some(&to);
    let line = table.lines().find(is_it)?;
    field(line, 9)?.parse().ok()
}

/// An address as the kernel's table shows it.
fn in_hex(address: SocketAddr) -> Option<String> {
    let SocketAddr::V4(address) = address else { return None };
    Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port()))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn parties_are_told_apart() {
        let parties = Parties::default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        let socket = TcpStream::connect(there).unwrap();
        let here = socket.local_addr().unwrap();
        let label = parties.label();
        assert_eq!(label(here, there, b"hello"), "");
        parties.add(std::process::id(), "broker-0");
        assert_eq!(label(here, there, b"hello"), "broker-0");
        assert_eq!(label(here, there, b"\x01client-12/"), "client-12");
    }
}
