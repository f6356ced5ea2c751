//! Ports for servers that are stopped and started again.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};

/// A port of one's own: below the range from which outgoing connections take theirs, so that a
/// server which was stopped gets it again.
#[derive(Debug)]
pub struct Port {
    /// Its number.
    pub number: u16,
    /// Nobody binds these for themselves: a process that does has the port, also while nobody
    /// listens.
    _mark: UdpSocket,
    _bus: Option<UdpSocket>,
}

impl Port {
    /// For a broker.
    pub fn of_a_broker() -> Self {
        Self::among(10_000..20_000, false)
    }

    /// For a Redis. In cluster mode its neighbour 10,000 above (the cluster bus) is its own, too.
    pub fn of_a_redis(cluster: bool) -> Self {
        // The buses are between 30,000 and 32,760.
        Self::among(if cluster { 20_000..22_760 } else { 22_760..30_000 }, cluster)
    }

    fn among(range: Range<u16>, with_bus: bool) -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let count = range.end - range.start;
        let base = (std::process::id() % 1_000) as u16 * 16;
        let free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        let mark = |port: u16| UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).ok().filter(|_| free(port));
        loop {
            let number = range.start + (base + NEXT.fetch_add(1, Ordering::Relaxed) % count) % count;
            let Some(own) = mark(number) else { continue };
            let bus = with_bus.then(|| mark(number + 10_000));
            match bus {
                None => return Self { number, _mark: own, _bus: None },
                Some(Some(bus)) => return Self { number, _mark: own, _bus: Some(bus) },
                Some(None) => {}
            }
        }
    }
}
