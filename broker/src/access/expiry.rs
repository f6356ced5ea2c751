//! When the credentials of a broker expire, and when that is logged: decisions without any I/O.

use mtimer_access::{Token, Tokens};
use mtimer_types::Time;

use super::certificates::{CERTIFICATE_FILES, FileExpiries};

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// So long before an expiry it is worth a warning: time for a person to act.
pub(super) const SOON_MS: u64 = 14 * DAY_MS;
/// How often it is repeated.
const REPEAT_MS: u64 = DAY_MS;

/// When the credentials in use expire; `None`: never, or there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expiries {
    /// The certificates in the files of [`CERTIFICATE_FILES`].
    pub(crate) certificates: FileExpiries,
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
        let (peer_token, tokens) = (of(true).min(), of(false).filter(|at| *at > now).min());
        Self { peer_token, tokens, ..Self::default() }
    }

    /// Counts the credentials that this broker depends on and that expire soon, or have expired.
    pub(super) fn own_soon(self, now: Time) -> usize {
        let own = self.certificates.into_iter().chain([self.peer_token]).flatten();
        own.filter(|at| is_soon(*at, now)).count()
    }

    /// Logs the expiries that are due by the reminder.
    pub(super) fn say(self, reminder: &mut Reminder, now: Time) {
        let Self { certificates, peer_token, tokens } = reminder.due(self, now);
        let days = |at: Time| at.ms_since(now) / DAY_MS;
        let [own, others @ ..] = certificates;
        if let Some(at) = own {
            tracing::warn!(days_left = days(at), "this broker's certificate expires soon, or has: renew it");
        }
        for (file, at) in CERTIFICATE_FILES.into_iter().skip(1).zip(others) {
            if let Some(at) = at {
                tracing::warn!(
                    file,
                    days_left = days(at),
                    "a certificate in a file of this broker expires soon, or has: replace it"
                );
            }
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

/// Remembers the logged expiries.
#[derive(Debug, Default)]
pub(super) struct Reminder {
    certificates: LoggedExpiries<CERTIFICATES>,
    tokens: LoggedExpiries<2>,
}

const CERTIFICATES: usize = CERTIFICATE_FILES.len();

/// Which expiry of each credential was logged last, and when.
#[derive(Debug)]
struct LoggedExpiries<const N: usize>([Option<(Time, Time)>; N]);

impl Reminder {
    /// Returns the expiries to log now: each once when it is soon, and once a day.
    fn due(&mut self, expiries: Expiries, now: Time) -> Expiries {
        let Expiries { certificates, peer_token, tokens } = expiries;
        let [peer_token, tokens] = self.tokens.due([peer_token, tokens], now);
        Expiries { certificates: self.certificates.due(certificates, now), peer_token, tokens }
    }
}

impl<const N: usize> LoggedExpiries<N> {
    fn due(&mut self, mut expiries: [Option<Time>; N], now: Time) -> [Option<Time>; N] {
        for (expiry, logged) in expiries.iter_mut().zip(&mut self.0) {
            let was_logged =
                |at: Time| logged.is_some_and(|(of, when)| of == at && now.ms_since(when) < REPEAT_MS);
            *expiry = expiry.filter(|at| is_soon(*at, now) && !was_logged(*at));
            if let Some(at) = *expiry {
                *logged = Some((at, now));
            }
        }
        expiries
    }
}

impl<const N: usize> Default for LoggedExpiries<N> {
    fn default() -> Self {
        Self([None; N])
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

    /// With these in the first and in the fourth file.
    fn certificates(own: Option<Time>, redis: Option<Time>) -> Expiries {
        Expiries { certificates: [own, None, None, redis, None], ..Expiries::default() }
    }

    #[test]
    fn an_expiry_is_logged_when_it_is_soon_and_then_once_a_day() {
        let mut reminder = Reminder::default();
        let expiries = certificates(None, Some(later(SOON_MS + DAY_MS)));
        let mut due_after = |ms: u64| reminder.due(expiries, later(ms)).certificates[3].is_some();
        assert!(!due_after(0) && !due_after(DAY_MS - 1));
        assert!(due_after(DAY_MS) && !due_after(DAY_MS) && !due_after(2 * DAY_MS - 1));
        assert!(due_after(2 * DAY_MS) && !due_after(2 * DAY_MS + 1));
        // It goes on once it has expired.
        assert!(due_after(SOON_MS + 2 * DAY_MS));
        // Another one is another thing.
        let more = Expiries { tokens: Some(later(9)), ..certificates(Some(later(4)), Some(later(3))) };
        assert_eq!(reminder.due(more, later(1)), more);
        assert_eq!(reminder.due(more, later(2)), Expiries::default());
    }

    #[test]
    fn what_the_broker_needs_itself_is_counted() {
        let tokens = |peer_token, tokens| Expiries { peer_token, tokens, ..Expiries::default() };
        assert_eq!(tokens(None, Some(later(1))).own_soon(NOW), 0);
        assert_eq!(tokens(Some(later(SOON_MS)), None).own_soon(NOW), 1);
        assert_eq!(certificates(Some(later(SOON_MS + 1)), Some(NOW)).own_soon(NOW), 1);
        assert_eq!(certificates(Some(Time::from_ms(1)), Some(NOW)).own_soon(NOW), 2);
    }
}
