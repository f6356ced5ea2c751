//! The permission that each message needs: the one table of them.
//!
//! Every `match` here is exhaustive, so a new message, operation, query or role does not compile
//! until its permission is decided.

use mtimer_protocol::ops::Subject;
use mtimer_protocol::{ClientMessage, CountsQuery, ForecastQuery, Query, RequestOp, Role};
use mtimer_types::{Destination, Filter, Target, TimerId, Verb};

use crate::grant::Pattern;
use crate::principal::{Denied, Principal};

/// The permission that a message needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Requirement<'a> {
    /// A valid token is enough.
    Nothing,
    /// This verb on this destination.
    On(Verb, &'a Destination),
    /// This verb on every destination of this group and this app; `None`: of any.
    OnMatching(Verb, Option<&'a str>, Option<&'a str>),
    /// This verb on `*`: the message names no destination, or a timer by its id alone.
    Everywhere(Verb),
    /// This verb on any destination; the rest is checked elsewhere.
    Somewhere(Verb),
    /// The operations are looked at one by one.
    EachOperation,
}

impl Requirement<'_> {
    /// Checks it.
    ///
    /// # Errors
    ///
    /// [`Denied`] with the verb that is missing.
    pub fn check(self, who: &Principal) -> Result<(), Denied> {
        let (allowed, verb) = match self {
            Self::Nothing | Self::EachOperation => return Ok(()),
            Self::On(verb, dest) => (who.allows(verb, dest), verb),
            Self::OnMatching(verb, group, app) => (who.allows_all(verb, &pattern_of(group, app)), verb),
            Self::Everywhere(verb) => (who.allows_everywhere(verb), verb),
            Self::Somewhere(verb) => (who.allows_somewhere(verb), verb),
        };
        if allowed {
            return Ok(());
        }
        let on = match self {
            Self::On(_, dest) => dest.to_string(),
            Self::OnMatching(_, group, app) => pattern_of(group, app).to_string(),
            Self::Somewhere(_) => "any destination".to_owned(),
            _ => "*".to_owned(),
        };
        Err(Denied { token: who.id().into(), verb, on })
    }
}

/// Returns a pattern that covers every destination of this group and this app.
pub(crate) fn pattern_of(group: Option<&str>, app: Option<&str>) -> Pattern {
    let Some(group) = group else { return Pattern::All };
    match app {
        Some(app) => Destination::new(group, app).map_or(Pattern::All, Pattern::One),
        None if Destination::new(group, "*").is_ok() => Pattern::Group(group.into()),
        // No destination has this group.
        None => Pattern::All,
    }
}

/// Returns the permission that a hello needs.
pub fn of_role(role: Role) -> Requirement<'static> {
    match role {
        Role::Client | Role::Observer => Requirement::Nothing,
        Role::Broker => Requirement::Everywhere(Verb::Broker),
    }
}

/// Returns the permission that a message after the hello needs.
pub fn of_message(message: &ClientMessage) -> Requirement<'_> {
    match message {
        // A second hello is refused by the protocol.
        ClientMessage::Hello(_)
        | ClientMessage::Ping(_)
        | ClientMessage::Pong(_)
        | ClientMessage::Goodbye
        | ClientMessage::Unregister { .. } => Requirement::Nothing,
        ClientMessage::Register { dest, .. } => Requirement::On(Verb::Register, dest),
        ClientMessage::Request(_) => Requirement::EachOperation,
        // The engine takes outcomes only of deliveries that went out, and names no destination.
        ClientMessage::Settle(_) | ClientMessage::Extend { .. } => Requirement::Somewhere(Verb::Register),
        ClientMessage::Query { query, .. } => of_query(query),
        ClientMessage::Peer(_) => Requirement::Everywhere(Verb::Broker),
    }
}

/// Returns the permission that an operation needs.
pub fn of_op(op: &RequestOp) -> Requirement<'_> {
    let (verb, subject) = (op.verb(), op.subject());
    match (subject, subject.dest()) {
        (Subject::Partition { group, app, .. }, _) => Requirement::OnMatching(verb, group, app),
        (_, Some(dest)) => Requirement::On(verb, dest),
        // Which destination it is, only the store knows.
        (_, None) => Requirement::Everywhere(verb),
    }
}

/// Returns the permission that a query needs. Answers with timers in them are looked at again:
/// [`screen`](crate::screen).
pub fn of_query(query: &Query) -> Requirement<'_> {
    match query {
        Query::Get(Target::Key(dest, _)) | Query::Story(Target::Key(dest, _)) => {
            Requirement::On(Verb::Read, dest)
        }
        // A barrier: the answer tells a client that its earlier messages were taken in.
        Query::Get(Target::Id(TimerId::NOBODYS)) => Requirement::Nothing,
        Query::Parked { dest, .. } => Requirement::On(Verb::Read, dest),
        Query::Get(Target::Id(_))
        | Query::Story(Target::Id(_))
        | Query::Dead { .. }
        | Query::Unconfirmed { .. }
        | Query::Taken { .. }
        | Query::Bulks { .. }
        | Query::Settings { .. } => Requirement::Somewhere(Verb::Read),
        // To leave out the rows of other destinations is not enough: by where a page ends it tells
        // whether they have a timer with such a key or such a header.
        Query::Pending(pending) => {
            let Filter { group, app, .. } = &pending.filter;
            Requirement::OnMatching(Verb::Read, group.as_deref(), app.as_deref())
        }
        // The same: a page ends at the name of a destination, or at a position.
        Query::Counts(CountsQuery { group, app, .. }) | Query::Forecast(ForecastQuery { group, app, .. }) => {
            Requirement::OnMatching(Verb::Read, group.as_deref(), app.as_deref())
        }
        Query::Status | Query::Cluster | Query::Broker | Query::Ready => Requirement::Everywhere(Verb::Read),
        Query::Drain { .. } => Requirement::Everywhere(Verb::Operate),
    }
}
