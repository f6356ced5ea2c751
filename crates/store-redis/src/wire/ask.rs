//! One command to the server that has a hash slot, and the meaning of its errors for an operator.
//!
//! Not in here: the turns of a partition, which know more about the meaning of a lost answer.

use std::time::Duration;

use mtimer_store::StoreError;
use redis::{Cmd, Pipeline, Value, cmd};
use tokio::time::Instant;

use super::backoff::RetryPauses;
use super::connection::{ANOTHER_CERTIFICATE, RedisConnection, ask_node};
use super::fault::{Remedy, remedy, shown};
use super::node::{Lost, Network, RedisNode};
use super::reply::Reply;
use super::script;
use super::settings::{NO_EVICTION, POLICY};
use crate::password::encoding;

/// How long a command is tried.
const TRY_FOR: Duration = Duration::from_secs(5);

/// Why an attempt has no answer.
#[derive(Debug)]
pub(crate) enum Failed {
    /// It passes: try again.
    Passing(String),
    /// The server is lost, or is no master (any more), or cannot serve as one for now: look at the
    /// map, without asking the server that says so, and try again.
    NoMaster { without: Option<String>, why: String },
    /// Trying again is of no use.
    Lasting(StoreError),
}

/// Asks the master of a hash slot; follows redirections and waits out passing errors, for some
/// seconds. The command may be carried out more than once.
///
/// # Errors
///
/// [`StoreError::Unavailable`]: try again later. [`StoreError::Unusable`] says what to change.
pub(crate) async fn ask(network: &dyn Network, hash_slot: u16, command: &Cmd) -> Result<Value, StoreError> {
    let mut backoff = RetryPauses::new(u64::from(hash_slot) << 16 | 1);
    let deadline = Instant::now() + TRY_FOR;
    loop {
        let why = match once(network, hash_slot, command).await {
            Ok(reply) => return Ok(reply),
            Err(Failed::Lasting(error)) => return Err(error),
            Err(Failed::Passing(why)) => why,
            Err(Failed::NoMaster { without, why }) => {
                // If nobody answers, the next attempt will tell.
                let _ = network.rediscover(without.as_deref()).await;
                why
            }
        };
        if Instant::now() >= deadline {
            return Err(StoreError::Unavailable(why));
        }
        backoff.wait().await;
    }
}

/// One attempt. Takes in redirections, and follows `ASK` for this command only.
///
/// # Errors
///
/// [`Failed`] says what to do next.
pub(crate) async fn once(network: &dyn Network, hash_slot: u16, command: &Cmd) -> Result<Value, Failed> {
    let lost = |Lost(why)| Failed::NoMaster { without: None, why };
    let server = network.master(hash_slot).await.map_err(lost)?;
    let reply = ask_node(&*server, command.clone()).await.map_err(lost)?;
    let Some(refusal) = reply.refusal() else { return Ok(reply) };
    match remedy(&refusal, server.address()) {
        Remedy::Follow(address) => network.moved(hash_slot, &address),
        Remedy::Ask(address) => {
            let reply = asking(network, &address, command).await.map_err(lost)?;
            return reply.refusal().map_or(Ok(reply), |refusal| Err(Failed::Passing(refusal)));
        }
        Remedy::LoadScripts => drop(server.call(script::load_all()).await.map_err(lost)?),
        Remedy::Broken => return Err(Failed::Lasting(refused(&refusal))),
        Remedy::Rediscover | Remedy::NoWrites => {
            let without = Some(server.address().to_owned());
            return Err(Failed::NoMaster { without, why: refusal });
        }
        Remedy::Wait | Remedy::OutOfMemory => {}
    }
    Err(Failed::Passing(refusal))
}

/// Asks the server that takes a hash slot over. It may not have the scripts yet: they go along.
pub(crate) async fn asking(network: &dyn Network, address: &str, command: &Cmd) -> Result<Value, Lost> {
    let server = network.at(address).await?;
    let mut commands = Pipeline::with_capacity(2);
    commands.cmd("ASKING").add_command(command.clone());
    let mut answers = server.call(commands.clone()).await?;
    if answers.last().and_then(Reply::refusal).is_some_and(|r| remedy(&r, address) == Remedy::LoadScripts) {
        server.call(script::load_all()).await?;
        answers = server.call(commands).await?;
    }
    Ok(answers.pop().unwrap_or(Value::Nil))
}

fn refused(why: &str) -> StoreError {
    match explain(Lost(shown(why))) {
        StoreError::Unavailable(why) => {
            StoreError::Unusable(format!("Redis refuses mtimer's commands: {why}"))
        }
        unusable => unusable,
    }
}

/// Advice for an operator by the error text of a server or a connection, for errors that waiting
/// does not mend.
const ADVICE: &[(&[&str], &str)] = &[
    (
        &["NOAUTH", "WRONGPASS"],
        concat!(
            "give user and password in the address, as in redis://user:pass@host:6379, in the settings file or \
             MTIMER_REDIS, not in a flag, which `ps` shows; ",
            encoding!()
        ),
    ),
    (&["without any password configured"], "this Redis has no password: leave it out of the address"),
    (
        &["invalid peer certificate"],
        "mtimer does not trust the server's certificate: give the file of the authority that signed it, and a host \
      name that it is made out to",
    ),
    (
        &[
            "CertificateRequired",
            "HandshakeFailure",
            "UnknownCA",
            "BadCertificate",
            "CertificateUnknown",
            ANOTHER_CERTIFICATE,
        ],
        "the server does not trust mtimer: give the client certificate, and its key, that it expects",
    ),
    (
        &["InvalidContentType", "corrupt message"],
        "the server does not speak TLS there: give its TLS port, or redis://",
    ),
    (&["NOPERM"], "allow this user mtimer's commands and keys (ACL SETUSER)"),
    (&["is a Sentinel that watches no master"], "see SENTINEL MASTERS there"),
    (
        &["is a Sentinel"],
        "give the name of the master that it watches, as in redis-sentinel://host:26379?master=name",
    ),
    (&["is no Sentinel"], "give the addresses of Sentinels, or begin those of servers with redis://"),
    (&["DENIED"], "allow connections from this host in Redis"),
    (&["DB index", "SELECT is not allowed"], "leave the database number out of the address"),
    (
        &["unknown command 'HELLO'", "unknown command `HELLO`", "NOPROTO"],
        "leave protocol=resp3 out of the address",
    ),
    (
        &["is not an array", "Parse", "parse error", "Unexpected"],
        "it is not Redis, or it expects TLS: give the address of a Redis port, or rediss://",
    ),
];

/// Distinguishes lasting errors, with advice, from those that may pass.
pub(crate) fn explain(lost: Lost) -> StoreError {
    let says = |words: &&(&[&str], &str)| words.0.iter().any(|word| lost.0.contains(word));
    match ADVICE.iter().find(says) {
        // A reply that was not understood fills several lines.
        Some((_, advice)) => {
            StoreError::Unusable(format!("{}: {advice}", lost.0.lines().next().unwrap_or_default()))
        }
        None => StoreError::Unavailable(lost.0),
    }
}

/// Refuses a server that does not let this user wait for replicas: no write would ever count as
/// safe.
///
/// # Errors
///
/// [`StoreError::Unusable`] says what to change; [`StoreError::Unavailable`]: try again.
pub(crate) async fn check_wait(server: &RedisConnection) -> Result<(), StoreError> {
    let reply = server.ask(cmd("WAIT").arg(&[0, 1]).to_owned()).await.map_err(explain)?;
    match reply.refusal() {
        Some(refusal) if remedy(&refusal, server.address()) == Remedy::Broken => Err(refused(&refusal)),
        _ => Ok(()),
    }
}

/// Refuses a server that mtimer cannot keep its promises on.
///
/// # Errors
///
/// [`StoreError::Unusable`] says what to change.
pub(crate) fn check_server(address: &str, server: &RedisConnection) -> Result<(), StoreError> {
    let info = server.info();
    let unusable = |text| Err(StoreError::Unusable(text));
    let version: String = info.get("redis_version").unwrap_or_else(|| "unknown".to_owned());
    let major: u32 = version.split('.').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    if major < 7 {
        return unusable(format!(
            "{address} runs Redis {version}: mtimer needs Redis 7.0 or later, upgrade it"
        ));
    }
    match info.get::<String>(POLICY).as_deref() {
        Some(NO_EVICTION) => Ok(()),
        Some(policy) => unusable(format!(
            "{address} may evict keys (maxmemory-policy {policy}), and timers would vanish: set maxmemory-policy \
             noeviction"
        )),
        None => unusable(format!("{address} does not tell its {POLICY} in INFO memory: allow INFO")),
    }
}
