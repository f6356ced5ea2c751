//! Connections: in order, delayed, held up while the way is cut.

use std::collections::VecDeque;

use mtimer_core::cluster::{NodeInput, PeerId};
use mtimer_protocol::{PeerAnswer, PeerRequest};

use super::{Event, World};

pub(crate) type ConnId = u64;

pub(crate) enum Frame {
    Open,
    Opened,
    Request(PeerRequest),
    Answer(PeerAnswer),
    Close,
}

pub(crate) struct Conn {
    /// The opener and its peer: (broker, incarnation).
    ends: [(usize, u64); 2],
    peer: Option<PeerId>,
    /// Towards each end: the frames on their way, and when they arrive.
    ways: [VecDeque<(u64, Frame)>; 2],
}

impl World {
    pub(super) fn connect(&mut self, i: usize, inc: u64, to: Option<usize>) {
        self.disconnect(i, inc);
        let to = to.filter(|to| !self.unreached.contains(to));
        let there = to.and_then(|to| self.procs.get(to)?.as_ref().map(|p| (to, p.inc)));
        let Some(end) = there else {
            let cut = to.is_some_and(|to| self.cuts.contains(&(i, to)) || self.cuts.contains(&(to, i)));
            if !cut {
                self.at(5, Event::Input(i, inc, NodeInput::LinkDown("refused".into())));
            }
            return;
        };
        self.seq += 1;
        let id = self.seq;
        let conn = Conn { ends: [(i, inc), end], peer: None, ways: [VecDeque::new(), VecDeque::new()] };
        self.conns.insert(id, conn);
        if let Some(p) = self.alive(i, inc) {
            p.link = Some(id);
        }
        self.send(id, 1, Frame::Open);
    }

    pub(super) fn disconnect(&mut self, i: usize, inc: u64) {
        if let Some(id) = self.alive(i, inc).and_then(|p| p.link.take()) {
            self.send(id, 1, Frame::Close);
        }
    }

    pub(super) fn towards_leader(&mut self, i: usize, inc: u64, frame: PeerRequest) {
        if let Some(id) = self.alive(i, inc).and_then(|p| p.link) {
            self.send(id, 1, Frame::Request(frame));
        }
    }

    pub(super) fn towards_peer(&mut self, i: usize, inc: u64, peer: PeerId, frame: PeerAnswer) {
        if let Some(id) = self.alive(i, inc).and_then(|p| p.peers.get(&peer).copied()) {
            self.send(id, 0, Frame::Answer(frame));
        }
    }

    /// A process is gone.
    pub(super) fn hang_up(&mut self, i: usize, inc: u64, loud: bool) {
        let mine: Vec<(ConnId, usize)> = self
            .conns
            .iter()
            .filter_map(|(id, c)| c.ends.iter().position(|e| *e == (i, inc)).map(|at| (*id, 1 - at)))
            .collect();
        for (id, other) in mine.into_iter().filter(|_| loud) {
            self.send(id, other, Frame::Close);
        }
    }

    fn send(&mut self, id: ConnId, to: usize, frame: Frame) {
        let delay = self.rng.between(1, 15);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let at = (self.now + delay).max(conn.ways[to].back().map_or(0, |(at, _)| *at));
        conn.ways[to].push_back((at, frame));
        self.at(at - self.now, Event::Pump(id, to));
    }

    /// Everything that is there and whose way is not cut.
    pub(super) fn pump(&mut self, id: ConnId, to: usize) {
        loop {
            let Some(conn) = self.conns.get_mut(&id) else { return };
            let way = (conn.ends[1 - to].0, conn.ends[to].0);
            if self.cuts.contains(&way) || conn.ways[to].front().is_none_or(|(at, _)| *at > self.now) {
                return;
            }
            let Some((_, frame)) = conn.ways[to].pop_front() else { return };
            self.arrive(id, to, frame);
        }
    }

    /// A way is open again.
    pub(super) fn pump_all(&mut self) {
        let ids: Vec<ConnId> = self.conns.keys().copied().collect();
        for id in ids {
            self.at(1, Event::Pump(id, 0));
            self.at(1, Event::Pump(id, 1));
        }
    }

    fn arrive(&mut self, id: ConnId, to: usize, frame: Frame) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (i, inc) = conn.ends[to];
        if self.procs[i].as_ref().is_none_or(|p| p.inc != inc) {
            if !matches!(frame, Frame::Close) {
                self.send(id, 1 - to, Frame::Close);
            }
            return;
        }
        match frame {
            Frame::Open => {
                let peer = PeerId(id);
                conn.peer = Some(peer);
                if let Some(p) = self.alive(i, inc) {
                    p.peers.insert(peer, id);
                }
                self.send(id, 0, Frame::Opened);
            }
            Frame::Request(request) => {
                if let Some(peer) =
                    conn.peer.filter(|p| self.procs[i].as_ref().is_some_and(|o| o.peers.contains_key(p)))
                {
                    self.feed(i, inc, NodeInput::FromPeer(peer, request));
                }
            }
            Frame::Close if to == 1 => {
                let Some(peer) = conn.peer else { return };
                if self.alive(i, inc).is_some_and(|p| p.peers.remove(&peer).is_some()) {
                    self.feed(i, inc, NodeInput::PeerGone(peer));
                }
            }
            frame => {
                // A shell drops frames from a connection that is not the present one.
                if self.alive(i, inc).is_none_or(|p| p.link != Some(id)) {
                    return;
                }
                match frame {
                    Frame::Opened => self.feed(i, inc, NodeInput::LinkUp),
                    Frame::Answer(answer) => self.feed(i, inc, NodeInput::FromLeader(answer)),
                    _ => {
                        if let Some(p) = self.alive(i, inc) {
                            p.link = None;
                        }
                        self.feed(i, inc, NodeInput::LinkDown("closed".into()));
                    }
                }
            }
        }
    }
}
