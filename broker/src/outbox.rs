//! What waits to be sent to one session, bounded in bytes.
//!
//! Purpose: the engine's task puts messages in without ever waiting; the session's writer takes
//! them out.
//! Invariant: a session that does not read costs at most its bound; one that is over is closed.
//! Bytes count until they have left for the socket.
//! Not in here: encoding (the writer's), the bound on all outboxes together ([`Outboxes`]).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mtimer_protocol::{
    BrokerEntry, ClientView, ErrorCode, MemberView, OpReply, PeerAnswer, QueryAnswer, ServerMessage,
    TimerView, Topology,
};
use mtimer_types::{Timer, limits};
use tokio::sync::Notify;

use crate::outboxes::Outboxes;

/// Fixed part of a message's weight: it covers what the queue and the message itself take.
const MESSAGE_BYTES: usize = 256;
/// Fixed part of the weight of a delivery or a row.
const ROW_BYTES: usize = 320;

/// Why a session that does not read is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Overflow {
    /// It lets too much pile up.
    #[error("{queued} bytes wait to be read, the limit is {limit}: read faster, or ask for less at once")]
    Session { queued: usize, limit: usize },
    /// All sessions together do.
    #[error("{waiting} bytes wait to be read, and all sessions together are near their limit of {limit}")]
    All { waiting: usize, limit: usize },
}

/// The queue between the engine's task and a session's writer.
#[derive(Debug)]
pub(crate) struct Outbox {
    limit: usize,
    all: Arc<Outboxes>,
    /// Its number among all of them.
    number: u64,
    state: Mutex<State>,
    /// There are messages, or no more will come.
    changed: Notify,
    overflowed: Notify,
}

#[derive(Debug, Default)]
struct State {
    messages: VecDeque<(ServerMessage, usize)>,
    /// Weight of everything put in and not sent yet.
    bytes: usize,
    /// No more messages are taken; the writer ends when it has sent what is there.
    closed: bool,
    overflow: Option<Overflow>,
}

impl Outbox {
    /// An outbox of so many bytes, which count among those of `all`.
    pub(crate) fn open(limit: usize, all: &Arc<Outboxes>) -> Arc<Self> {
        all.add(|number| Self {
            limit,
            all: all.clone(),
            number,
            state: Mutex::default(),
            changed: Notify::new(),
            overflowed: Notify::new(),
        })
    }

    /// Puts a message in; if it is full, ends the session instead ([`Outbox::overflowed`]).
    /// After [`Outbox::close`] messages vanish: the session is ending.
    pub(crate) fn push(&self, message: ServerMessage) {
        let bytes = weight(&message);
        let mut state = self.state();
        if state.closed {
            return;
        }
        let queued = state.bytes + bytes;
        // One message always fits, so that a limit below the largest frame does not shut a session
        // out.
        let over = if !state.messages.is_empty() && queued > self.limit {
            Some(Overflow::Session { queued, limit: self.limit })
        } else if !self.all.take(bytes) {
            Some(Overflow::All { waiting: state.bytes, limit: self.all.limit() })
        } else {
            state.bytes = queued;
            state.messages.push_back((message, bytes));
            None
        };
        drop(state);
        match over {
            Some(over) => self.overflow(over),
            None => {
                self.changed.notify_one();
                self.all.relieve();
            }
        }
    }

    /// Takes no more messages after this last one.
    pub(crate) fn close(&self, last: Option<ServerMessage>) {
        self.close_in(&mut self.state(), last);
    }

    fn close_in(&self, state: &mut State, last: Option<ServerMessage>) {
        if !std::mem::replace(&mut state.closed, true) {
            self.all.end(state.bytes);
            if let Some(message) = last {
                let bytes = weight(&message);
                state.bytes += bytes;
                self.all.take_anyway(bytes);
                state.messages.push_back((message, bytes));
            }
        }
        self.changed.notify_one();
    }

    /// Throws away what waits, and ends the session. It is told why, unless memory has run out.
    pub(crate) fn overflow(&self, over: Overflow) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        let thrown = std::mem::take(&mut state.messages);
        let bytes: usize = thrown.iter().map(|(_, bytes)| bytes).sum();
        state.bytes -= bytes;
        self.all.give_back(bytes, false);
        state.overflow = Some(over);
        let last = match over {
            Overflow::Session { .. } => {
                Some(ServerMessage::Refused { code: ErrorCode::Overloaded, message: over.to_string() })
            }
            Overflow::All { .. } => None,
        };
        self.close_in(&mut state, last);
        drop(state);
        self.overflowed.notify_one();
    }

    /// Completes when the session is to end because it does not read. For one caller.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again.
    pub(crate) async fn overflowed(&self) -> Overflow {
        loop {
            if let Some(over) = self.why_overflowed() {
                return over;
            }
            self.overflowed.notified().await;
        }
    }

    /// The next messages: as many as have `most` bytes, and one at least, with the weight to give
    /// back with [`Outbox::sent`]. `None`: closed and empty.
    ///
    /// # Cancel safety
    ///
    /// Nothing is taken out unless it is returned.
    pub(crate) async fn take(&self, most: usize) -> Option<(Vec<ServerMessage>, usize)> {
        loop {
            let (taken, closed) = {
                let mut state = self.state();
                (take_from(&mut state.messages, most), state.closed)
            };
            if !taken.0.is_empty() {
                return Some(taken);
            }
            if closed {
                return None;
            }
            self.changed.notified().await;
        }
    }

    /// So many bytes have left.
    pub(crate) fn sent(&self, bytes: usize) {
        let mut state = self.state();
        state.bytes -= bytes;
        self.all.give_back(bytes, state.closed);
    }

    /// Bytes that are neither sent nor thrown away.
    pub(crate) fn waiting(&self) -> usize {
        self.state().bytes
    }

    /// Why the session is to end because it does not read, if it is.
    pub(crate) fn why_overflowed(&self) -> Option<Overflow> {
        self.state().overflow
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code in here panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        let (bytes, closed) = {
            let state = self.state();
            (state.bytes, state.closed)
        };
        self.all.give_back(bytes, closed);
        self.all.remove(self.number);
    }
}

/// Takes messages out until they weigh `most`, and what they weigh.
fn take_from(messages: &mut VecDeque<(ServerMessage, usize)>, most: usize) -> (Vec<ServerMessage>, usize) {
    let (mut taken, mut sum) = (Vec::new(), 0);
    while sum < most
        && let Some((message, bytes)) = messages.pop_front()
    {
        taken.push(message);
        sum += bytes;
    }
    (taken, sum)
}

/// About how many bytes a message holds.
fn weight(message: &ServerMessage) -> usize {
    MESSAGE_BYTES
        + match message {
            ServerMessage::Deliver { deliveries, .. } => deliveries
                .iter()
                .map(|d| ROW_BYTES + d.payload.len() + d.key.as_ref().map_or(0, |k| k.as_str().len()))
                .sum(),
            ServerMessage::Reply { replies, .. } => replies.iter().map(reply_weight).sum(),
            ServerMessage::Answer { answer, .. } => answer_weight(answer),
            ServerMessage::Settled { refused, .. } => std::mem::size_of_val(refused.as_slice()),
            ServerMessage::Topology(topology) => topology_weight(topology),
            ServerMessage::Peer(PeerAnswer::Heard { topology: Some(topology), .. }) => {
                topology_weight(topology)
            }
            _ => 0,
        }
}

fn topology_weight(topology: &Topology) -> usize {
    let brokers: usize = topology.brokers.iter().map(|b| size_of::<BrokerEntry>() + b.address.len()).sum();
    brokers + size_of_val(topology.owners.as_slice())
}

fn reply_weight(reply: &OpReply) -> usize {
    let text = if let OpReply::Failed { message, .. } = reply { message.len() } else { 0 };
    size_of::<OpReply>() + text
}

fn answer_weight(answer: &QueryAnswer) -> usize {
    match answer {
        QueryAnswer::Timer(Some(TimerView { timer, .. })) => timer_weight(timer),
        QueryAnswer::Dead { rows, .. } => rows.iter().map(|r| timer_weight(&r.timer)).sum(),
        QueryAnswer::Unconfirmed { rows, .. } => rows.iter().map(|r| timer_weight(&r.timer)).sum(),
        QueryAnswer::Status(status) => status.counters.len() * 64,
        QueryAnswer::Cluster(view) => {
            let of = |m: &MemberView| size_of::<MemberView>() + m.address.len() + m.software.len();
            topology_weight(&view.topology) + view.members.iter().map(of).sum::<usize>()
        }
        QueryAnswer::Broker(view) => {
            let names = |c: &ClientView| c.dest.group().len() + c.dest.app().len();
            let of = |c: &ClientView| size_of::<ClientView>() + names(c);
            size_of_val(view.partitions.as_slice()) + view.clients.iter().map(of).sum::<usize>()
        }
        _ => 0,
    }
}

fn timer_weight(timer: &Timer) -> usize {
    // An error text and a key go with it.
    ROW_BYTES + limits::MAX_ERROR_BYTES + timer.payload.len()
}

#[cfg(test)]
mod tests {
    use mtimer_protocol::{BrokerView, ClusterView};
    use mtimer_types::Term;

    use super::*;

    fn outbox(limit: usize) -> Arc<Outbox> {
        Outbox::open(limit, &Arc::new(Outboxes::new(usize::MAX)))
    }

    #[tokio::test]
    async fn bytes_count_until_they_are_sent() {
        let outbox = outbox(3 * MESSAGE_BYTES);
        for n in 0..3 {
            outbox.push(ServerMessage::Ping(n));
        }
        let (messages, bytes) = outbox.take(usize::MAX).await.unwrap();
        assert_eq!((messages.len(), bytes), (3, 3 * MESSAGE_BYTES));
        // An empty queue takes one.
        outbox.push(ServerMessage::Ping(4));
        assert_eq!((outbox.waiting(), outbox.why_overflowed()), (4 * MESSAGE_BYTES, None));
        outbox.sent(bytes);
        outbox.push(ServerMessage::Ping(5));
        outbox.push(ServerMessage::Ping(6));
        assert_eq!((outbox.waiting(), outbox.why_overflowed()), (3 * MESSAGE_BYTES, None));
    }

    #[tokio::test]
    async fn a_session_that_is_over_its_limit_is_told_and_gets_nothing_else() {
        let outbox = outbox(3 * MESSAGE_BYTES);
        for n in 0..5 {
            outbox.push(ServerMessage::Ping(n));
        }
        let over = outbox.overflowed().await;
        assert_eq!(over, Overflow::Session { queued: 4 * MESSAGE_BYTES, limit: 3 * MESSAGE_BYTES });
        let (messages, bytes) = outbox.take(usize::MAX).await.unwrap();
        let (code, message) = (ErrorCode::Overloaded, over.to_string());
        assert_eq!(messages, [ServerMessage::Refused { code, message }]);
        outbox.sent(bytes);
        assert!(outbox.take(usize::MAX).await.is_none());
        assert_eq!(outbox.waiting(), 0);
    }

    #[tokio::test]
    async fn a_writer_takes_a_part_at_a_time() {
        let outbox = outbox(1 << 20);
        for n in 0..5 {
            outbox.push(ServerMessage::Ping(n));
        }
        let (messages, bytes) = outbox.take(MESSAGE_BYTES + 1).await.unwrap();
        assert_eq!((messages.len(), bytes), (2, 2 * MESSAGE_BYTES));
        let (messages, _) = outbox.take(1).await.unwrap();
        assert_eq!(messages, [ServerMessage::Ping(2)]);
        outbox.close(None);
        let (messages, _) = outbox.take(usize::MAX).await.unwrap();
        assert_eq!(messages.len(), 2);
        assert!(outbox.take(usize::MAX).await.is_none());
    }

    #[test]
    fn what_tells_of_a_whole_cluster_weighs_as_much() {
        let topology = Topology { owners: vec![Some(0); 1_024], ..Topology::default() };
        let views = vec![Default::default(); 1_024];
        let broker = BrokerView { partitions: views, ..BrokerView::default() };
        let cluster = ClusterView { topology: topology.clone(), ..ClusterView::default() };
        let answer = |answer| ServerMessage::Answer { corr: 1, answer };
        for message in [
            ServerMessage::Topology(topology.clone()),
            ServerMessage::Peer(PeerAnswer::Heard { seq: 1, term: Term(1), topology: Some(topology) }),
            answer(QueryAnswer::Cluster(cluster)),
            answer(QueryAnswer::Broker(broker)),
        ] {
            let encoded = mtimer_protocol::encode(&message).unwrap().len();
            assert!(weight(&message) >= encoded, "{} of {encoded} bytes", weight(&message));
        }
    }
}
