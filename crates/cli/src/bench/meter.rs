//! The cost of work: processor time of client, broker and Redis, and Redis' own figures.
//!
//! Invariant: a value that cannot be known (another machine, another system, no Redis named) is
//! `None`, never 0. Units: microseconds of processor time, bytes.

use mtimer_store_redis::{RedisOptions, connect_to_masters};
use redis::aio::MultiplexedConnection;
use redis::{RedisError, cmd};
use serde::Serialize;

use crate::exit::{Exit, Failure};

/// The settings that are recommended for a Redis that holds timers: slots stay list-packs, and so
/// do indexes of few slots.
const RECOMMENDED: [(&str, &str); 3] = [
    ("hash-max-listpack-entries", "512"),
    ("hash-max-listpack-value", "1024"),
    ("zset-max-listpack-entries", "512"),
];

/// Reads the counters of everything that takes part.
#[derive(Clone)]
pub(super) struct Meter {
    /// Processes of brokers on this machine.
    pub(super) pids: Vec<u32>,
    redis: Vec<MultiplexedConnection>,
}

/// Counters at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeterReading {
    client_us: Option<u64>,
    broker_us: Option<u64>,
    pub(super) redis: Option<RedisReading>,
}

/// Counters of Redis, summed over its masters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RedisReading {
    cpu_us: u64,
    /// All commands, those within scripts too.
    pub(super) commands: u64,
    /// Script calls.
    pub(super) scripts: u64,
    /// Memory without that of connections.
    pub(super) memory: u64,
}

/// Processor time, µs, or µs a timer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Cpu {
    pub(super) client: Option<f64>,
    pub(super) broker: Option<f64>,
    pub(super) redis: Option<f64>,
}

impl Cpu {
    /// For each of so many.
    pub(super) fn per(self, timers: u64) -> Self {
        let per = |us: Option<f64>| us.map(|us| us / timers.max(1) as f64);
        Self { client: per(self.client), broker: per(self.broker), redis: per(self.redis) }
    }
}

impl MeterReading {
    /// The usage since an earlier reading.
    pub(super) fn since(&self, before: &Self) -> Cpu {
        let diff = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_sub(b?) as f64);
        Cpu {
            client: diff(self.client_us, before.client_us),
            broker: diff(self.broker_us, before.broker_us),
            redis: diff(self.redis.map(|r| r.cpu_us), before.redis.map(|r| r.cpu_us)),
        }
    }

    /// Commands and script calls since an earlier reading, without those of the readings.
    pub(super) fn commands_since(&self, before: &Self, masters: usize) -> Option<(u64, u64)> {
        let (now, before) = (self.redis?, before.redis?);
        // A reading is one INFO; the later one does not count itself.
        let own = masters as u64;
        let commands = now.commands.saturating_sub(before.commands).saturating_sub(own);
        Some((commands, now.scripts.saturating_sub(before.scripts)))
    }
}

impl Meter {
    /// Processes of brokers, and how to enter Redis; without addresses there is none.
    pub(super) async fn new(pids: Vec<u32>, redis: &RedisOptions) -> Result<Self, Failure> {
        let redis = if redis.urls.is_empty() { Vec::new() } else { connect_to_masters(redis).await? };
        Ok(Self { pids, redis })
    }

    /// How many masters there are; 0: no Redis, or none that is known.
    pub(super) fn masters(&self) -> usize {
        self.redis.len()
    }

    pub(super) async fn read(&self) -> Result<MeterReading, Failure> {
        let redis = match self.redis.is_empty() {
            true => None,
            false => Some(self.redis().await.map_err(|e| away(&e))?),
        };
        let sum = |mut all: u64, us: Option<u64>| {
            all += us?;
            Some(all)
        };
        let broker_us = match self.pids.as_slice() {
            [] => None,
            pids => pids.iter().map(|pid| cpu_us(&pid.to_string())).try_fold(0, sum),
        };
        Ok(MeterReading { client_us: cpu_us("self"), broker_us, redis })
    }

    async fn redis(&self) -> Result<RedisReading, RedisError> {
        let mut all = RedisReading::default();
        for connection in &self.redis {
            let info: String = cmd("INFO").arg("all").query_async(&mut connection.clone()).await?;
            let of = |name: &str| field(&info, name).unwrap_or_default();
            all.cpu_us += ((of("used_cpu_user") + of("used_cpu_sys")) * 1e6) as u64;
            all.commands += of("total_commands_processed") as u64;
            all.scripts += script_calls(&info);
            all.memory += (of("used_memory") - of("mem_clients_normal")).max(0.0) as u64;
        }
        Ok(all)
    }

    /// A connection to the first master.
    pub(super) fn redis_connection(&self) -> Option<MultiplexedConnection> {
        self.redis.first().cloned()
    }

    /// Memory of the brokers' processes, bytes: now, and the most there was.
    pub(super) fn broker_memory(&self) -> Option<(u64, u64)> {
        let both =
            |pid: &u32| Some((memory(&pid.to_string(), "VmRSS:")?, memory(&pid.to_string(), "VmHWM:")?));
        let all: Vec<(u64, u64)> = self.pids.iter().map(both).collect::<Option<_>>()?;
        (!all.is_empty()).then(|| all.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1)))
    }

    /// Gives every master the recommended settings; returns the former ones.
    pub(super) async fn tune(&self) -> Result<Tuned, Failure> {
        let mut tuned = Tuned::default();
        for connection in &self.redis {
            for (name, value) in RECOMMENDED {
                let mut connection = connection.clone();
                let before = config(&mut connection, name).await;
                let set = match before {
                    Ok(before) => {
                        let set = set(&mut connection, name, value).await;
                        tuned.before.push((connection, name, before));
                        set
                    }
                    Err(error) => Err(error),
                };
                if let Err(error) = set {
                    tuned.restore().await?;
                    return Err(away(&error));
                }
            }
        }
        Ok(tuned)
    }
}

/// Settings of Redis as they were.
#[derive(Default)]
pub(super) struct Tuned {
    before: Vec<(MultiplexedConnection, &'static str, String)>,
}

impl Tuned {
    /// Puts them back.
    pub(super) async fn restore(self) -> Result<(), Failure> {
        let mut result = Ok(());
        for (mut connection, name, value) in self.before {
            if let Err(error) = set(&mut connection, name, &value).await {
                let text =
                    format!("the setting {name} of Redis was {value} and could not be put back: {error}");
                result = Err(Failure::new(Exit::Failed, text));
            }
        }
        result
    }
}

async fn config(connection: &mut MultiplexedConnection, name: &str) -> Result<String, RedisError> {
    let (_, value): (String, String) = cmd("CONFIG").arg("GET").arg(name).query_async(connection).await?;
    Ok(value)
}

async fn set(connection: &mut MultiplexedConnection, name: &str, value: &str) -> Result<(), RedisError> {
    cmd("CONFIG").arg("SET").arg(name).arg(value).query_async(connection).await
}

fn away(error: &RedisError) -> Failure {
    Failure::new(Exit::NotNow, format!("Redis does not tell what is asked of it: {error}"))
}

/// A number in an answer to INFO.
fn field(info: &str, name: &str) -> Option<f64> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok();
    info.lines().find_map(value)
}

/// Calls of scripts in an answer to INFO.
fn script_calls(info: &str) -> u64 {
    let calls = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        ["eval", "evalsha", "eval_ro", "evalsha_ro"].contains(&name).then_some(())?;
        rest.split(',').next()?.parse::<u64>().ok()
    };
    info.lines().filter_map(calls).sum()
}

/// Processor time of a process, user and system, µs, where the system tells.
#[cfg(target_os = "linux")]
fn cpu_us(pid: &str) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything; state is field 3, utime 14, stime 15.
    let (_, rest) = stat.rsplit_once(')')?;
    let field = |n: usize| rest.split_whitespace().nth(n - 3)?.parse::<u64>().ok();
    Some((field(14)? + field(15)?) * 1_000_000 / rustix::param::clock_ticks_per_second())
}

#[cfg(not(target_os = "linux"))]
fn cpu_us(_: &str) -> Option<u64> {
    None
}

/// A line of a process's status, in bytes.
fn memory(pid: &str, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_redis_says_is_understood() {
        let info = "# CPU\r\nused_cpu_sys:1.5\r\nused_cpu_sys_children:9\r\ncmdstat_evalsha:calls=7,usec=1\r\n\
                    cmdstat_get:calls=5,usec=1\r\ncmdstat_evalsha_ro:calls=3,usec=1\r\n";
        assert_eq!(field(info, "used_cpu_sys"), Some(1.5));
        assert_eq!(field(info, "used_cpu"), None);
        assert_eq!(script_calls(info), 10);
    }

    #[test]
    fn what_is_not_known_is_not_nought() {
        let reading = MeterReading { client_us: Some(30), broker_us: None, redis: None };
        let before = MeterReading { client_us: Some(10), ..reading };
        let cpu = reading.since(&before).per(10);
        assert_eq!(cpu, Cpu { client: Some(2.0), broker: None, redis: None });
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_has_used_something() {
        assert!(cpu_us("self").is_some() && memory("self", "VmHWM:").is_some());
        assert_eq!(cpu_us("nobody"), None);
    }
}
