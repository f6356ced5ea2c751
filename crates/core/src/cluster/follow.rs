//! A follower's link to the leader: heartbeats, answers, silence.
//!
//! Purpose: to know whether a leader is there and hears this broker.
//! Invariant: only an answer to a heartbeat of this link shows that both directions work; a push
//! does not.
//! Not in here: the content of the answers, when to campaign.

use mtimer_types::Term;

/// An action that the link asks for as time passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    /// A heartbeat with this number, saying that this one was heard.
    Heartbeat { seq: u64, heard: u64 },
    /// Nobody answers.
    Silent,
}

/// This broker's link to the leader.
#[derive(Debug)]
pub(super) struct LeaderLink {
    heartbeat_ms: u64,
    silence_ms: u64,
    state: LinkState,
}

#[derive(Debug)]
enum LinkState {
    Down,
    Connecting { to: String, since: u64 },
    Up(Up),
}

#[derive(Debug)]
struct Up {
    to: String,
    /// Of the last answer; when there was none, of the connection.
    answered: u64,
    /// The term of the last answer.
    term: Option<Term>,
    seq: u64,
    heard: u64,
    sent: u64,
    next: u64,
}

impl LeaderLink {
    pub(super) fn new(heartbeat_ms: u64, silence_ms: u64) -> Self {
        Self { heartbeat_ms, silence_ms, state: LinkState::Down }
    }

    /// The address that it goes or is to go to.
    pub(super) fn to(&self) -> Option<&str> {
        match &self.state {
            LinkState::Down => None,
            LinkState::Connecting { to, .. } | LinkState::Up(Up { to, .. }) => Some(to),
        }
    }

    /// The leader at the other end and its term, if it has answered.
    pub(super) fn leader(&self) -> Option<(&str, Term)> {
        match &self.state {
            LinkState::Up(up) => up.term.map(|term| (up.to.as_str(), term)),
            _ => None,
        }
    }

    /// Whether the connection was asked for and is not there yet.
    pub(super) fn connecting(&self) -> bool {
        matches!(self.state, LinkState::Connecting { .. })
    }

    /// Whether the connection is there.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, LinkState::Up(_))
    }

    pub(super) fn connect(&mut self, now: u64, to: &str) {
        self.state = LinkState::Connecting { to: to.to_owned(), since: now };
    }

    /// The connection is there; `false`: nobody waits for one.
    pub(super) fn up(&mut self, now: u64) -> bool {
        let LinkState::Connecting { to, .. } = &mut self.state else { return false };
        let to = std::mem::take(to);
        self.state =
            LinkState::Up(Up { to, answered: now, term: None, seq: 0, heard: 0, sent: 0, next: now });
        true
    }

    /// No link any more; `false`: there was none.
    pub(super) fn down(&mut self) -> bool {
        let was = !matches!(self.state, LinkState::Down);
        self.state = LinkState::Down;
        was
    }

    /// An answer of the leader. `false`: it answers no heartbeat of this link.
    pub(super) fn heard(&mut self, now: u64, seq: u64, term: Term) -> bool {
        let LinkState::Up(up) = &mut self.state else { return false };
        if seq <= up.heard || seq > up.seq {
            return false;
        }
        (up.heard, up.answered, up.term) = (seq, now, Some(term));
        true
    }

    /// Heartbeat soon: not before `gap_ms` after the last one.
    pub(super) fn hurry(&mut self, now: u64, gap_ms: u64) {
        if let LinkState::Up(up) = &mut self.state {
            up.next = up.next.min(now.max(up.sent + gap_ms));
        }
    }

    /// This process stood still for so long: nobody else is to blame.
    pub(super) fn forgive(&mut self, ms: u64) {
        match &mut self.state {
            LinkState::Down => {}
            LinkState::Connecting { since, .. } => *since += ms,
            LinkState::Up(up) => up.answered += ms,
        }
    }

    pub(super) fn due(&mut self, now: u64) -> Option<Due> {
        if now >= self.time_limit() {
            return Some(Due::Silent);
        }
        match &mut self.state {
            LinkState::Up(up) if up.next <= now => {
                up.seq += 1;
                (up.sent, up.next) = (now, now + self.heartbeat_ms);
                Some(Due::Heartbeat { seq: up.seq, heard: up.heard })
            }
            _ => None,
        }
    }

    /// Until when it is waited for a connection or an answer.
    fn time_limit(&self) -> u64 {
        match &self.state {
            LinkState::Down => u64::MAX,
            LinkState::Connecting { since, .. } => since + self.silence_ms,
            LinkState::Up(up) => up.answered + self.silence_ms,
        }
    }

    pub(super) fn next(&self) -> u64 {
        match &self.state {
            LinkState::Up(up) => self.time_limit().min(up.next),
            _ => self.time_limit(),
        }
    }
}
