//! How to enter the servers: the same for all of them.
//!
//! Invariant: nothing in here is ever shown: neither a password nor a key is part of a message or
//! of `Debug`.

use std::fmt;

use mtimer_tls::ClientPem;
use redis::{
    Client, Cmd, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisResult, TlsCertificates, cmd,
};

use crate::password::{Login, LoginSource};
use crate::tls_files::RedisTls;

/// How to log in to a server.
#[derive(Clone, Default)]
pub(crate) struct ServerAccess {
    pub(crate) login: LoginSource,
    pub(crate) db: i64,
    /// Speak RESP3 instead of RESP2.
    pub(crate) resp3: bool,
    pub(crate) tls: Option<RedisTls>,
}

impl fmt::Debug for ServerAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { login, db, resp3, tls } = self;
        let mut shown = f.debug_struct("ServerAccess");
        shown.field("login", login).field("db", db).field("resp3", resp3).field("tls", &tls.is_some());
        shown.finish_non_exhaustive()
    }
}

impl ServerAccess {
    /// A client of the server at an address: `host:port`, or the path of a Unix socket. Connects to
    /// nothing. Reads the files for TLS again.
    pub(crate) fn client(&self, address: &str) -> RedisResult<Client> {
        let (host, port) = match split(address) {
            Some((host, port)) => (host.to_owned(), port),
            None => return Client::open(redis_info(ConnectionAddr::Unix(address.into()))?),
        };
        let Some(tls) = &self.tls else { return Client::open(redis_info(ConnectionAddr::Tcp(host, port))?) };
        let info = redis_info(ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None })?;
        let ClientPem { authorities: root_cert, identity } = tls.current();
        let client_tls =
            identity.map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key });
        Client::build_with_tls(info, TlsCertificates { client_tls, root_cert })
    }

    /// The commands that a new connection begins with. The crate's own would hide the server's
    /// answers to them.
    pub(crate) fn login(&self) -> Vec<Cmd> {
        let mut login = Vec::new();
        let Login { user, password } = self.login.current();
        if let Some(password) = password {
            login.push(cmd("AUTH").arg(user).arg(password).to_owned());
        }
        if self.resp3 {
            login.push(cmd("HELLO").arg(3).to_owned());
        }
        if self.db != 0 {
            login.push(cmd("SELECT").arg(self.db).to_owned());
        }
        login
    }
}

/// Whether a server has refused the user or the password, or wants one.
pub(super) fn is_refused_login(why: &str) -> bool {
    ["NOAUTH", "WRONGPASS", "without any password configured"].iter().any(|code| why.contains(code))
}

fn redis_info(address: ConnectionAddr) -> RedisResult<redis::ConnectionInfo> {
    let info = address.into_connection_info()?;
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    Ok(info.set_tcp_settings(tcp).set_redis_settings(RedisConnectionInfo::default().set_skip_set_lib_name()))
}

/// Host and port; `None`: it is the path of a Unix socket.
pub(crate) fn split(address: &str) -> Option<(&str, u16)> {
    if address.starts_with('/') {
        return None;
    }
    let (host, port) = address.rsplit_once(':')?;
    Some((host.trim_start_matches('[').trim_end_matches(']'), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_apart() {
        assert_eq!(split("10.0.0.1:7000"), Some(("10.0.0.1", 7000)));
        assert_eq!(split("[::1]:7000"), Some(("::1", 7000)));
        // As CLUSTER SLOTS names it.
        assert_eq!(split("::1:7000"), Some(("::1", 7000)));
        assert_eq!(split("/run/redis:1.sock"), None);
    }

    #[test]
    fn nothing_secret_is_shown() {
        let login = Login { user: None, password: Some("hush".into()) };
        let access = ServerAccess { login: LoginSource::new(login, None), ..ServerAccess::default() };
        assert!(!format!("{access:?}").contains("hush"), "{access:?}");
    }
}
