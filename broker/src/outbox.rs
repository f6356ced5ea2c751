//! What waits to be sent to one session, bounded in bytes.
//!
//! Purpose: the engine's task puts messages in without ever waiting; the session's writer takes them out.
//! Invariant: a session that does not read costs at most its bound, and all sessions together at most theirs: whoever
//! is over is refused further messages, which closes the session. Bytes count until they have left for the socket.
//! Not in here: encoding (the writer's), what to do with a session that is over.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mtimer_protocol::{
    BrokerEntry, ClientView, MemberView, OpReply, PeerAnswer, QueryAnswer, ServerMessage, TimerView, Topology,
};
use mtimer_types::{Timer, limits};
use tokio::sync::Notify;

/// Fixed part of a message's weight: it covers what the queue and the message itself take.
const MESSAGE_BYTES: usize = 256;
/// Fixed part of the weight of a delivery or a row.
const ROW_BYTES: usize = 320;
/// A session with less than this is not closed for what all sessions together have.
const SMALL_SHARE: usize = 256 * 1024;

/// Bytes in all outboxes of the broker.
#[derive(Debug, Default)]
pub(crate) struct TotalBytes(AtomicUsize);

/// The session lets too much pile up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{queued} bytes wait to be read, the limit is {limit}: read faster, or ask for less at once")]
pub(crate) struct Overflow {
    pub(crate) queued: usize,
    pub(crate) limit: usize,
}

/// The queue between the engine's task and a session's writer.
#[derive(Debug)]
pub(crate) struct Outbox {
    limit: usize,
    total: Arc<TotalBytes>,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    messages: VecDeque<(ServerMessage, usize)>,
    /// Weight of everything put in and not sent yet.
    bytes: usize,
    /// No more messages are taken; the writer ends when it has sent what is there.
    closed: bool,
}

impl Outbox {
    pub(crate) fn new(limit: usize, total: Arc<TotalBytes>) -> Self {
        Self { limit, total, state: Mutex::default(), changed: Notify::new() }
    }

    /// Puts a message in. After [`Outbox::close`] messages vanish: the session is ending.
    pub(crate) fn push(&self, message: ServerMessage) -> Result<(), Overflow> {
        let bytes = weight(&message);
        {
            let mut state = self.state();
            if state.closed {
                return Ok(());
            }
            // One message always fits, so that a limit below the largest frame does not shut a session out.
            if !state.messages.is_empty() && state.bytes + bytes > self.limit {
                return Err(Overflow { queued: state.bytes + bytes, limit: self.limit });
            }
            let total = self.total.0.load(Ordering::Relaxed);
            if state.bytes > SMALL_SHARE && total + bytes > limits::MAX_OUTBOX {
                return Err(Overflow { queued: state.bytes + bytes, limit: SMALL_SHARE });
            }
            state.bytes += bytes;
            self.total.0.fetch_add(bytes, Ordering::Relaxed);
            state.messages.push_back((message, bytes));
        }
        self.changed.notify_one();
        Ok(())
    }

    /// Takes no more messages after this last one.
    pub(crate) fn close(&self, last: Option<ServerMessage>) {
        {
            let mut state = self.state();
            if let Some(message) = last.filter(|_| !state.closed) {
                let bytes = weight(&message);
                state.bytes += bytes;
                self.total.0.fetch_add(bytes, Ordering::Relaxed);
                state.messages.push_back((message, bytes));
            }
            state.closed = true;
        }
        self.changed.notify_one();
    }

    /// Throws away what waits, and takes no more messages after this last one.
    pub(crate) fn clear_and_close(&self, last: ServerMessage) {
        let thrown: VecDeque<_> = std::mem::take(&mut self.state().messages);
        self.sent(thrown.iter().map(|(_, bytes)| bytes).sum());
        self.close(Some(last));
    }

    /// Everything that waits, with the weight to give back with [`Outbox::sent`]. `None`: closed and empty.
    ///
    /// # Cancel safety
    ///
    /// Nothing is taken out unless it is returned.
    pub(crate) async fn take(&self) -> Option<(VecDeque<ServerMessage>, usize)> {
        loop {
            let (taken, closed) = {
                let mut state = self.state();
                (std::mem::take(&mut state.messages), state.closed)
            };
            if !taken.is_empty() {
                let bytes = taken.iter().map(|(_, bytes)| bytes).sum();
                return Some((taken.into_iter().map(|(message, _)| message).collect(), bytes));
            }
            if closed {
                return None;
            }
            self.changed.notified().await;
        }
    }

    /// So many bytes have left.
    pub(crate) fn sent(&self, bytes: usize) {
        self.state().bytes -= bytes;
        self.total.0.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code in here panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        let left = self.state().bytes;
        self.total.0.fetch_sub(left, Ordering::Relaxed);
    }
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

    fn total(outbox: &Outbox) -> usize {
        outbox.total.0.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn bytes_count_until_they_are_sent() {
        let outbox = Outbox::new(3 * MESSAGE_BYTES, Arc::default());
        for n in 0..3 {
            outbox.push(ServerMessage::Ping(n)).unwrap();
        }
        let over = outbox.push(ServerMessage::Ping(3)).unwrap_err();
        assert_eq!(over, Overflow { queued: 4 * MESSAGE_BYTES, limit: 3 * MESSAGE_BYTES });
        let (messages, bytes) = outbox.take().await.unwrap();
        assert_eq!((messages.len(), bytes), (3, 3 * MESSAGE_BYTES));
        outbox.push(ServerMessage::Ping(4)).expect("an empty queue takes one");
        assert!(outbox.push(ServerMessage::Ping(5)).is_err(), "the first three are still on their way");
        outbox.sent(bytes);
        outbox.push(ServerMessage::Ping(5)).unwrap();
        assert_eq!(total(&outbox), 2 * MESSAGE_BYTES);
    }

    #[tokio::test]
    async fn closed_is_empty_after_the_last_message() {
        let outbox = Outbox::new(1 << 20, Arc::default());
        outbox.push(ServerMessage::Ping(1)).unwrap();
        outbox.clear_and_close(ServerMessage::Closing);
        outbox.push(ServerMessage::Ping(2)).unwrap();
        let (messages, bytes) = outbox.take().await.unwrap();
        assert_eq!(messages, [ServerMessage::Closing]);
        outbox.sent(bytes);
        assert!(outbox.take().await.is_none());
        assert_eq!(total(&outbox), 0);
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

    #[test]
    fn a_dropped_outbox_gives_its_bytes_back() {
        let total = Arc::new(TotalBytes::default());
        let outbox = Outbox::new(1 << 20, total.clone());
        outbox.push(ServerMessage::Closing).unwrap();
        drop(outbox);
        assert_eq!(total.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn all_together_are_bounded_but_small_ones_go_on() {
        let total = Arc::new(TotalBytes(AtomicUsize::new(limits::MAX_OUTBOX)));
        let outbox = Outbox::new(limits::MAX_SESSION_OUTBOX, total);
        let mut queued = 0;
        while outbox.push(ServerMessage::Ping(queued)).is_ok() {
            queued += 1;
        }
        let bytes = queued as usize * MESSAGE_BYTES;
        assert!((SMALL_SHARE..=SMALL_SHARE + 2 * MESSAGE_BYTES).contains(&bytes), "{bytes}");
    }
}
