//! Redis Sentinel: which server is the master now.
//!
//! Sentinels watch a master and its replicas, and promote a replica when the master fails. A
//! Sentinel that is cut off from the others may still name the former master, so a named server
//! counts only if it says itself that it is a master ("Guidelines for Redis clients with support
//! for Redis Sentinel", redis.io).
//!
//! Each failover has a configuration epoch above that of the one before, and Sentinels that have
//! not heard of it yet name the former master with the former epoch: the highest one counts.
//!
//! They are asked again and again, once a second ([`super::watch`]). They also publish each change
//! (`+switch-master`), but that adds little: messages published while a subscription is down are
//! lost, so they would have to be asked all the same, and every Sentinel learns of a failover up to
//! two seconds after the one that has led it.
//!
//! Not in here: the use of the master ([`super::servers`]).

use redis::{Pipeline, Value};

use super::access::ServerAccess;
use super::connection::Use;
use super::node::{Lost, RedisNode};
use super::pool::ConnectionPool;
use super::reply::Reply;
use crate::password::LoginSource;

/// The error code of Redis for a command that is sent before the password.
const NO_PASSWORD: &str = "NOAUTH";

/// Connections to Sentinels.
#[derive(Debug)]
pub(crate) struct Sentinels {
    plain: ConnectionPool,
    /// With the user and the password of the Redis servers.
    logged_in: ConnectionPool,
}

impl Sentinels {
    /// Sentinels are entered like the servers of `pool`, but without a database, and with a
    /// password only if they ask for one.
    pub(crate) fn beside(pool: &ConnectionPool) -> Self {
        let access = ServerAccess { db: 0, resp3: false, ..pool.access().clone() };
        let nobody = ServerAccess { login: LoginSource::default(), ..access.clone() };
        let entering = |access| ConnectionPool::new(access, pool.tasks().clone());
        Self { plain: entering(nobody), logged_in: entering(access) }
    }

    /// The master with this name, as one Sentinel has it.
    ///
    /// # Errors
    ///
    /// [`Lost`] if the Sentinel does not answer, or knows no such master.
    pub(crate) async fn master_by(&self, address: &str, master: &str, how: Use) -> Result<Named, Lost> {
        let sentinel = match self.plain.get(address, how).await {
            Err(Lost(why)) if why.contains(NO_PASSWORD) => self.logged_in.get(address, how).await?,
            connection => connection?,
        };
        let mut questions = Pipeline::with_capacity(2);
        questions.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master);
        questions.cmd("SENTINEL").arg("MASTER").arg(master);
        let replies = sentinel.call(questions).await?;
        let [named_now, details] = replies.as_slice() else {
            return Err(Lost(format!("{address} does not tell the master")));
        };
        let named = named(named_now, master).map_err(|why| Lost(format!("{address} {why}")))?;
        Ok(Named { address: named, epoch: epoch(details) })
    }
}

/// A master as a Sentinel names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Named {
    pub(super) address: String,
    /// The configuration epoch; 0 if the Sentinel does not let this user ask for it.
    pub(super) epoch: u64,
}

/// Reads the configuration epoch from the reply to `SENTINEL MASTER`: names and values.
fn epoch(details: &Value) -> u64 {
    let mut fields = details.items().chunks_exact(2);
    let epoch = fields.find(|field| field[0].text() == Some("config-epoch"));
    epoch.and_then(|field| field[1].number()).unwrap_or(0)
}

/// Reads the reply to `SENTINEL GET-MASTER-ADDR-BY-NAME`: host and port, or nothing.
fn named(reply: &Value, master: &str) -> Result<String, String> {
    if *reply == Value::Nil {
        return Err(format!(
            "is a Sentinel that watches no master called {master:?}: give the name that it has"
        ));
    }
    if let Some(refusal) = reply.refusal() {
        return Err(format!("is no Sentinel: {refusal}"));
    }
    let address = match reply.items() {
        [host, port] => host.text().zip(port.number()),
        _ => None,
    };
    let (host, port) = address.ok_or("names the master in a malformed reply")?;
    Ok(format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read() {
        let of = |text: &str| named(&redis::parse_redis_value(text.as_bytes()).unwrap(), "shop");
        assert_eq!(of("*2\r\n$8\r\n10.0.0.1\r\n$4\r\n6379\r\n").as_deref(), Ok("10.0.0.1:6379"));
        assert!(of("*-1\r\n").unwrap_err().contains("no master called \"shop\""));
        assert!(of("-ERR unknown command 'SENTINEL'\r\n").unwrap_err().contains("is no Sentinel"));
        for malformed in ["*0\r\n", "+OK\r\n", "*2\r\n:1\r\n+x\r\n"] {
            assert!(of(malformed).unwrap_err().contains("malformed reply"), "{malformed}");
        }
        let epoch = |text: &str| epoch(&redis::parse_redis_value(text.as_bytes()).unwrap());
        assert_eq!(epoch("*4\r\n$4\r\nname\r\n$1\r\na\r\n$12\r\nconfig-epoch\r\n$1\r\n7\r\n"), 7);
        assert_eq!((epoch("-NOPERM no\r\n"), epoch("*-1\r\n")), (0, 0));
    }
}
