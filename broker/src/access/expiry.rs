//! When the credentials of a broker expire, and when that is logged: decisions without any I/O.

use mtimer_access::{Token, Tokens};
use mtimer_types::Time;

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// So long before an expiry it is worth a warning: time for a person to act.
pub(super) const SOON_MS: u64 = 14 * DAY_MS;
/// How often it is repeated.
const REPEAT_MS: u64 = DAY_MS;

/// When what is in use expires; `None`: never, or there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expiries {
    /// This broker's certificate, or one of its chain if that is earlier.
    pub(crate) certificate: Option<Time>,
    /// This broker's own token.
    pub(crate) peer_token: Option<Time>,
    /// The first of all other tokens that are still valid.
    pub(crate) tokens: Option<Time>,
}

impl Expiries {
    /// Finds those of tokens.
    pub(super) fn of_tokens(tokens: &Tokens, own: Option<&Token>, now: Time) -> Self {
        let is_own = |id: &str| own.is_some_and(|token| token.id() == id);
        let of = |own: bool| {
            let entries = tokens.entries().iter().filter(move |entry| is_own(&entry.id) == own);
            entries.filter_map(|entry| entry.expires())
        };
        Self { certificate: None, peer_token: of(true).min(), tokens: of(false).filter(|at| *at > now).min() }
    }

    fn all(self) -> [Option<Time>; 3] {
        [self.certificate, self.peer_token, self.tokens]
    }

    /// Counts what this broker cannot do without and that expires soon, or has expired.
    pub(super) fn own_soon(self, now: Time) -> usize {
        [self.certificate, self.peer_token].into_iter().flatten().filter(|at| is_soon(*at, now)).count()
    }

    /// Logs what the reminder says is due.
    pub(super) fn say(self, reminder: &mut Reminder, now: Time) {
        let [certificate, peer_token, tokens] = reminder.due(self, now);
        let days = |at: Time| at.ms_since(now) / DAY_MS;
        if let Some(at) = certificate {
            tracing::warn!(days_left = days(at), "this broker's certificate expires soon, or has: renew it");
        }
        if let Some(at) = peer_token {
            tracing::warn!(days_left = days(at), "this broker's own token expires soon, or has: replace it");
        }
        if let Some(at) = tokens {
            tracing::warn!(
                days_left = days(at),
                "a token expires soon: see `mtimer token list`, and replace it if it is in use"
            );
        }
    }
}

/// Remembers what was logged.
#[derive(Debug, Default)]
pub(super) struct Reminder {
    /// In the order of [`Expiries::all`]: which expiry, and when it was logged.
    said: [Option<(Time, Time)>; 3],
}

impl Reminder {
    /// Returns what is to be logged now: each expiry once when it is soon, and once a day.
    fn due(&mut self, expiries: Expiries, now: Time) -> [Option<Time>; 3] {
        let mut due = expiries.all();
        for (expiry, said) in due.iter_mut().zip(&mut self.said) {
            let was_said =
                |at: Time| said.is_some_and(|(of, when)| of == at && now.ms_since(when) < REPEAT_MS);
            *expiry = expiry.filter(|at| is_soon(*at, now) && !was_said(*at));
            if let Some(at) = *expiry {
                *said = Some((at, now));
            }
        }
        due
    }
}

fn is_soon(at: Time, now: Time) -> bool {
    at.ms_since(now) <= SOON_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_ms(1_800_000_000_000);

    fn later(ms: u64) -> Time {
        Time::from_ms(NOW.as_ms() + ms)
    }

    #[test]
    fn an_expiry_is_logged_when_it_is_soon_and_then_once_a_day() {
        let mut reminder = Reminder::default();
        let certificate = Some(later(SOON_MS + DAY_MS));
        let expiries = Expiries { certificate, ..Expiries::default() };
        let mut due_after = |ms: u64| reminder.due(expiries, later(ms))[0].is_some();
        assert!(!due_after(0) && !due_after(DAY_MS - 1));
        assert!(due_after(DAY_MS) && !due_after(DAY_MS) && !due_after(2 * DAY_MS - 1));
        assert!(due_after(2 * DAY_MS) && !due_after(2 * DAY_MS + 1));
        // It goes on once it has expired.
        assert!(due_after(SOON_MS + 2 * DAY_MS));
        // Another one is another thing.
        let expiries = Expiries { certificate: Some(later(3)), tokens: Some(later(9)), ..expiries };
        assert_eq!(reminder.due(expiries, later(1)), [Some(later(3)), None, Some(later(9))]);
        assert_eq!(reminder.due(expiries, later(2)), [None; 3]);
    }

    #[test]
    fn what_the_broker_needs_itself_is_counted() {
        let of = |certificate, peer_token, tokens| Expiries { certificate, peer_token, tokens };
        assert_eq!(of(None, None, Some(later(1))).own_soon(NOW), 0);
        assert_eq!(of(Some(later(SOON_MS + 1)), Some(later(SOON_MS)), None).own_soon(NOW), 1);
        assert_eq!(of(Some(Time::from_ms(1)), Some(NOW), None).own_soon(NOW), 2);
    }
}
