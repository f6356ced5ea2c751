//! About how many bytes a message takes while it waits.

use mtimer_protocol::{
    BrokerEntry, BulkView, ClientView, DestinationCounts, MemberView, OpReply, PeerAnswer, QueryAnswer,
    ServerMessage, Topology,
};
use mtimer_types::{StoredSettings, Timer, limits};

/// Fixed part of a message's weight: it covers the memory of the queue and of the message itself.
pub(super) const MESSAGE_BYTES: usize = 256;
/// Fixed part of the weight of a delivery or a row.
const ROW_BYTES: usize = 320;
/// Bytes of a span of a forecast, at most: three numbers.
const SPAN_BYTES: usize = 3 * 9;

/// About how many bytes a message holds.
pub(super) fn weight(message: &ServerMessage) -> usize {
    MESSAGE_BYTES
        + match message {
            ServerMessage::Deliver { deliveries, .. } => deliveries
                .iter()
                .map(|d| ROW_BYTES + d.content_bytes() + d.key.as_ref().map_or(0, |k| k.as_str().len()))
                .sum(),
            ServerMessage::Reply { replies, .. } => replies.iter().map(reply_weight).sum(),
            ServerMessage::Answer { answer, .. } => answer_weight(answer),
            ServerMessage::Settled { refused, .. } => std::mem::size_of_val(refused.as_slice()),
            ServerMessage::Topology(topology) => topology_weight(topology),
            ServerMessage::RegisterRefused { message, .. } => message.len(),
            ServerMessage::Peer(PeerAnswer::Heard { topology: Some(topology), .. }) => {
                topology_weight(topology)
            }
            ServerMessage::Peer(PeerAnswer::Shares(shares)) => {
                let names = shares.iter().map(|s| s.dest.group().len() + s.dest.app().len());
                size_of_val(shares.as_slice()) + names.sum::<usize>()
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
        QueryAnswer::Timer(Some(view)) => timer_weight(&view.timer),
        QueryAnswer::Story(Some(story)) => {
            let texts = story.attempts.iter().map(|failed| failed.error.len()).sum::<usize>();
            timer_weight(&story.view.timer) + size_of_val(story.attempts.as_slice()) + texts
        }
        QueryAnswer::Dead { rows, .. } => rows.iter().map(|r| timer_weight(&r.timer)).sum(),
        QueryAnswer::Unconfirmed { rows, .. } => rows.iter().map(|r| timer_weight(&r.timer)).sum(),
        QueryAnswer::Pending { rows, .. } => rows.iter().map(|r| timer_weight(&r.view.timer)).sum(),
        QueryAnswer::Counts { rows, .. } => {
            let names = |row: &DestinationCounts| row.dest.group().len() + row.dest.app().len();
            size_of_val(rows.as_slice()) + rows.iter().map(names).sum::<usize>()
        }
        QueryAnswer::Bulks(jobs) => {
            let of = |job: &BulkView| job.bulk.filter.bytes() + size_of_val(job.failures.as_slice());
            size_of_val(jobs.as_slice()) + jobs.iter().map(of).sum::<usize>()
        }
        QueryAnswer::Settings(rows) => {
            let of =
                |row: &StoredSettings| row.dest.group().len() + row.dest.app().len() + row.settings.bytes();
            size_of_val(rows.as_slice()) + rows.iter().map(of).sum::<usize>()
        }
        QueryAnswer::Timers { rows, .. } => rows.iter().map(|r| timer_weight(&r.timer)).sum(),
        QueryAnswer::Forecast { spans, .. } => spans.len() * SPAN_BYTES,
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
        QueryAnswer::Ready(why) => why.iter().map(|why| size_of::<String>() + why.len()).sum(),
        _ => 0,
    }
}

fn timer_weight(timer: &Timer) -> usize {
    // An error text and a key go with it.
    ROW_BYTES + limits::MAX_ERROR_BYTES + timer.content_bytes()
}

#[cfg(test)]
mod tests {
    use mtimer_protocol::{BrokerView, BulkState, ClusterView, TimerState, TimerStory, TimerView, sample};
    use mtimer_types::limits::{MAX_BULK_FAILURES, MAX_BULK_JOBS, MAX_EPOCH};
    use mtimer_types::story::{MAX_STORY_ATTEMPTS, MAX_STORY_ERROR_BYTES};
    use mtimer_types::{
        Attempt, AttemptEnd, BulkFailure, BulkObstacle, DueSpan, FailedAttempt, LateCause, Term, Time,
    };

    use super::*;

    /// A story of as many and as long attempts as there can be.
    fn longest_story() -> TimerStory {
        let attempt = Attempt {
            number: u32::MAX,
            epoch: MAX_EPOCH,
            client: u64::MAX,
            sent: Some(Time::MAX),
            late_ms: u32::MAX,
            late_by: Some(LateCause::Broker),
        };
        let error = "x".repeat(MAX_STORY_ERROR_BYTES).into();
        let failed = FailedAttempt { attempt, ended: Time::MAX, end: AttemptEnd::Retry, error };
        let view = TimerView {
            state: TimerState::InFlight { epoch: MAX_EPOCH, attempt: u32::MAX },
            failed: u32::MAX,
            stopped: true,
            last_error: Some("x".repeat(limits::MAX_ERROR_BYTES)),
            ..TimerView::new(sample::full_timer(), TimerState::Parked)
        };
        TimerStory {
            view,
            attempts: vec![failed; MAX_STORY_ATTEMPTS],
            tried: u32::MAX,
            under_way: Some(attempt),
            settling: Some(u32::MAX),
            waits_for: Some(LateCause::Broker),
            told: Time::MAX,
        }
    }

    #[test]
    fn answers_with_many_rows_weigh_as_much_as_they_take() {
        let topology = Topology { owners: vec![Some(0); 1_024], ..Topology::default() };
        let views = vec![Default::default(); 1_024];
        let broker = BrokerView { partitions: views, ..BrokerView::default() };
        let cluster = ClusterView { topology: topology.clone(), ..ClusterView::default() };
        let failure = BulkFailure { id: sample::id(), why: BulkObstacle::KeyTaken };
        let job = BulkView {
            id: sample::bulk_id(),
            bulk: sample::bulks().remove(0),
            state: BulkState::Done,
            begun: sample::time(0),
            ended: Some(sample::time(1)),
            done: u64::MAX,
            not_done: u64::MAX,
            failures: vec![failure; MAX_BULK_FAILURES],
        };
        let settings =
            StoredSettings { dest: sample::dest(), version: u64::MAX, settings: sample::settings() };
        let span = DueSpan { begin: Time::MAX, end: Time::MAX, timers: u64::MAX };
        let answer = |answer| ServerMessage::Answer { corr: 1, answer };
        for message in [
            ServerMessage::Topology(topology.clone()),
            ServerMessage::Peer(PeerAnswer::Heard {
                seq: 1,
                term: Term(1),
                topology: Some(topology),
                epoch: MAX_EPOCH,
            }),
            answer(QueryAnswer::Cluster(cluster)),
            answer(QueryAnswer::Broker(broker)),
            answer(QueryAnswer::Bulks(vec![job; MAX_BULK_JOBS])),
            answer(QueryAnswer::Settings(vec![settings; 1_000])),
            answer(QueryAnswer::Forecast { spans: vec![span; 1_000], next: None, uncounted: 0 }),
            answer(QueryAnswer::Story(Some(longest_story().into()))),
        ] {
            let encoded = mtimer_protocol::encode(&message).unwrap().len();
            assert!(weight(&message) >= encoded, "{} of {encoded} bytes", weight(&message));
        }
    }
}
