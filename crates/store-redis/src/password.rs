//! User and password of the servers: how they are written in addresses, and that they can change.
//!
//! Every new connection takes them from a [`LoginSource`]. They are read again when a server
//! refuses them, and when an operator says so. Connections that exist stay as they are: Redis does
//! not ask them again.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

/// How to write the characters that end a user, a password or an address: a literal, for `concat!`.
macro_rules! encoding {
    () => {
        "write @ / ? # , % in a user or password as %40 %2F %3F %23 %2C %25"
    };
}
pub(crate) use encoding;

/// User and password.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Reads them again; an error says why that fails, without showing them.
pub(crate) type ReadLogin = Box<dyn Fn() -> Result<Login, String> + Send + Sync>;

/// The user and the password in use. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct LoginSource(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    /// `None`: they never change.
    read: Option<ReadLogin>,
}

#[derive(Default)]
struct State {
    login: Login,
    /// Why they were not read when that was last tried.
    failure: Option<String>,
}

impl fmt::Debug for LoginSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.current().fmt(f)
    }
}

impl LoginSource {
    pub(crate) fn new(login: Login, read: Option<ReadLogin>) -> Self {
        Self(Arc::new(Inner { state: Mutex::new(State { login, failure: None }), read }))
    }

    pub(crate) fn current(&self) -> Login {
        self.0.state.lock().login.clone()
    }

    /// Reads them again; whether they are others now. Logs a failure once.
    ///
    /// # Errors
    ///
    /// Why they cannot be read: those in use stay.
    pub(crate) fn read_again(&self) -> Result<bool, String> {
        let Some(read) = &self.0.read else { return Ok(false) };
        let read = read();
        let mut state = self.0.state.lock();
        let login = match read {
            Ok(login) => login,
            Err(why) => {
                if state.failure.as_ref() != Some(&why) {
                    tracing::warn!(why, "the password of Redis was not read again, the one in use stays");
                    state.failure = Some(why.clone());
                }
                return Err(why);
            }
        };
        state.failure = None;
        let is_new = login != state.login;
        if is_new {
            state.login = login;
            tracing::info!("user and password of Redis were read again; new connections use them");
        }
        Ok(is_new)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use mtimer_store::without_password;
    use redis::IntoConnectionInfo;

    use super::*;

    #[test]
    fn what_redis_takes_for_no_address_is_not_shown() {
        let texts = [
            "redis://h:1",
            "redis://h",
            "redis://h/2",
            "redis://[::1]:1",
            "rediss://h:1/#insecure",
            "valkeys://h:1?protocol=resp3",
            "unix:///run/r.sock",
            "redis+unix:///run/r.sock",
            "redis://u:s3",
            "redis://u:3/s3",
            "redis://u:70000",
            "redis://",
            "redis:s3",
            "http://h:1",
            "cret@h:1",
            "s3",
            "",
        ];
        for text in texts {
            let is_address = text.into_connection_info().is_ok();
            assert_eq!(without_password(text), if is_address { text } else { "***" });
        }
    }

    #[test]
    fn a_password_that_cannot_be_read_leaves_the_one_in_use() {
        let with = |password: &str| Login { user: None, password: Some(password.into()) };
        let reads = AtomicU32::new(0);
        let read = move || match reads.fetch_add(1, Ordering::Relaxed) {
            0 => Err("no such file".to_owned()),
            1 => Ok(with("one")),
            _ => Ok(with("two")),
        };
        let source = LoginSource::new(with("one"), Some(Box::new(read)));
        assert_eq!(source.read_again(), Err("no such file".to_owned()));
        assert_eq!((source.read_again(), source.current()), (Ok(false), with("one")));
        let shared = source.clone();
        assert_eq!((source.read_again(), shared.current()), (Ok(true), with("two")));
        assert!(!format!("{source:?}").contains("two"));
        assert_eq!(LoginSource::new(with("one"), None).read_again(), Ok(false));
    }
}
