//! A network of a test's own, with a cable to every party: what a cut does to parties that dial
//! each other's own addresses, as brokers and the nodes of a Redis Cluster do.
//!
//! Purpose: every party in a network namespace of its own, the test and its clients on the router
//! between them; between any two parties packets pass or vanish, in either direction.
//! Invariant: nothing is left behind. Namespaces, cables and processes belong to one process, which
//! has them to itself ([`apart`]), and are gone when it is, however it ends; nobody outside sees or
//! names any of them.
//! Not in here: cuts of single connections, delays; see [`Proxy`](super::Proxy).

use std::env;
use std::net::Ipv4Addr;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;

use mtimer_store_redis::test_support::Place;

use crate::binary::mtimer;
use crate::skip::skip;

/// Set in the process that has the network to itself.
const APART: &str = "MTIMER_TEST_APART";
/// How that process says that the test has run and passed: it may not have found the test, and that
/// is no failure to it.
const PASSED: i32 = 86;
/// What a router needs. The names of namespaces are kept below `/run`, which is another one here.
const ROUTER: &str =
    "mount -t tmpfs tmpfs /run && ip link set lo up && echo 1 >/proc/sys/net/ipv4/ip_forward";
/// Whether the rest can be done.
const TRIAL: &str = "ip netns add trial && ip link add trial type veth peer name eth0 netns trial \
    && ip rule add from 192.0.2.1 to 192.0.2.2 blackhole";

/// Runs a test in a process that has network, process ids and mounts to itself, with this `body`;
/// where there can be no such process, the test is skipped ([`skip`]). `test` is the test function,
/// which calls this and does nothing else.
///
/// # Panics
/// If the body does, or if the test is skipped and may not be.
pub fn apart<T: Fn()>(test: T, body: impl Future<Output = ()>) {
    if env::var_os(APART).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(body);
        std::process::exit(PASSED);
    }
    let path = name_of(&test);
    // Without the name of the crate.
    let name = path.split_once("::").expect("a path").1;
    if let Err(why) = tried(separate().args(["sh", "-c", &format!("{ROUTER} && {TRIAL}")])) {
        let why =
            format!("there can be no network namespaces here (they take root, or user namespaces): {why}");
        return skip(name, &why);
    }
    // If it has to be built, that takes a network.
    mtimer();
    let exe = env::current_exe().expect("the test's own path");
    let mut inside = separate();
    inside.args(["sh", "-c", &format!("{ROUTER} && exec \"$0\" \"$@\"")]).arg(exe);
    inside.args([name, "--exact", "--nocapture"]).env(APART, "1").stdin(Stdio::null());
    let status = inside.status().expect("it was started before");
    assert_eq!(status.code(), Some(PASSED), "{name}, in a network of its own: {status}; it is told above");
}

fn name_of<T>(_: &T) -> &'static str {
    std::any::type_name::<T>()
}

/// A command whose process, and all that come from it, are apart from all others, and end with this
/// one.
fn separate() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare"]);
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command
}

/// Runs a command that says something only when it fails: that is the error.
fn tried(command: &mut Command) -> Result<(), String> {
    let Output { status, stderr, .. } =
        command.output().map_err(|e| format!("{:?}: {e}", command.get_program()))?;
    if status.success() {
        return Ok(());
    }
    Err(format!("{} ({status})", String::from_utf8_lossy(&stderr).trim()))
}

/// The network of a process that is [`apart`]: this process is the router.
#[derive(Debug)]
pub struct Net {
    /// Where Redis is.
    pub redis: Place,
    /// Places so far.
    places: u8,
    /// What does not pass: from here to there.
    cuts: Mutex<Vec<(Ipv4Addr, Ipv4Addr)>>,
}

impl Net {
    /// With a place for Redis.
    pub(super) fn lay() -> Self {
        assert!(env::var_os(APART).is_some(), "a network is laid only within `apart`");
        Self { redis: lay("redis", 0), places: 1, cuts: Mutex::default() }
    }

    /// One more place.
    pub(super) fn place(&mut self, name: &str) -> Place {
        self.places += 1;
        lay(name, self.places - 1)
    }

    /// What one place sends to the other vanishes from now on.
    pub fn cut(&self, from: &Place, to: &Place) {
        rule("add", from.address, to.address);
        self.cuts.lock().unwrap().push((from.address, to.address));
    }

    /// Everything passes again.
    pub fn heal(&self) {
        for (from, to) in self.cuts.lock().unwrap().drain(..) {
            rule("del", from, to);
        }
    }
}

/// A namespace with a cable to the router.
fn lay(name: &str, number: u8) -> Place {
    let (router, address) = (Ipv4Addr::new(10, 0, number, 1), Ipv4Addr::new(10, 0, number, 2));
    let cable = format!("cable{number}");
    ip(&format!("netns add {name}"));
    ip(&format!("link add {cable} type veth peer name eth0 netns {name}"));
    ip(&format!("addr add {router}/24 dev {cable}"));
    ip(&format!("link set {cable} up"));
    ip(&format!("-n {name} addr add {address}/24 dev eth0"));
    ip(&format!("-n {name} link set lo up"));
    ip(&format!("-n {name} link set eth0 up"));
    ip(&format!("-n {name} route add default via {router}"));
    Place { netns: name.to_owned(), address }
}

/// Packets that match are dropped where they would be forwarded, and nobody is told.
fn rule(what: &str, from: Ipv4Addr, to: Ipv4Addr) {
    ip(&format!("rule {what} from {from} to {to} blackhole"));
}

fn ip(args: &str) {
    tried(Command::new("ip").args(args.split(' '))).unwrap_or_else(|why| panic!("ip {args}: {why}"));
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use mtimer_store_redis::test_support::{Server, ServerOptions, redis_program};

    use super::*;

    /// How long it is looked whether something comes that must not come.
    const NOTHING: Duration = Duration::from_millis(300);
    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn what_is_cut_vanishes_in_one_direction() {
        apart(what_is_cut_vanishes_in_one_direction, async { one_direction() });
    }

    /// A client in one place writes to a server in another; the router asks the server.
    fn one_direction() {
        let mut net = Net::lay();
        let (there, here) = (net.redis.clone(), net.place("client"));
        let server =
            Server::start_with(ServerOptions { place: Some(there.clone()), ..ServerOptions::default() });
        let mut client = Place::command(Some(&here), redis_program("redis-cli"))
            .args(["-h", &there.address.to_string(), "-p", &server.port().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-cli is installed");
        let mut input = client.stdin.take().unwrap();
        let mut set = |n: u64| writeln!(input, "SET n {n}").unwrap();
        let (sender, answers) = channel();
        let output = BufReader::new(client.stdout.take().unwrap());
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let says = |limit| answers.recv_timeout(limit).ok();
        let stored = || server.call::<u64>(&["GET", "n"]);

        set(1);
        assert_eq!(says(TIMEOUT).as_deref(), Some("OK"));
        net.cut(&there, &here);
        set(2);
        while stored() != 2 {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(says(NOTHING), None, "the answer has vanished");
        net.heal();
        assert_eq!(says(TIMEOUT).as_deref(), Some("OK"), "it was sent again");
        net.cut(&here, &there);
        set(3);
        assert_eq!((says(NOTHING), stored()), (None, 2), "the request has vanished");
        net.heal();
        assert_eq!((says(TIMEOUT).as_deref(), stored()), (Some("OK"), 3));
        drop(input);
        client.wait().unwrap();
    }
}
