//! One redis-server process.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::port::Port;
use super::proxy::Proxy;
use super::tls::Authority;

/// How long a server may take to start: a loaded machine is slow.
const START_WITHIN: Duration = Duration::from_secs(30);

/// A program of the Redis under test, such as `redis-server`: the one in the folder that
/// `MTIMER_REDIS_BIN` names, or the one on the `PATH`.
pub fn redis_program(name: &str) -> PathBuf {
    std::env::var_os("MTIMER_REDIS_BIN").map_or_else(|| name.into(), |folder| Path::new(&folder).join(name))
}

/// Where a process runs: in a network namespace, with an address of its own there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its name, as `ip netns` has it.
    pub netns: String,
    /// Its address.
    pub address: Ipv4Addr,
}

impl Place {
    /// A program there, or here if there is no such place. The process is the program's own in
    /// either case.
    pub fn command(place: Option<&Self>, program: impl AsRef<OsStr>) -> Command {
        let Some(place) = place else { return Command::new(program) };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &place.netns]).arg(program);
        command
    }

    /// The address there, or the loopback's if there is no such place.
    pub fn host(place: Option<&Self>) -> Ipv4Addr {
        place.map_or(Ipv4Addr::LOCALHOST, |place| place.address)
    }
}

/// How a server is started.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Where; `None`: on the loopback.
    pub place: Option<Place>,
    /// Append-only file with fsync at every write.
    pub append_only: bool,
    /// Cluster mode.
    pub cluster: bool,
    /// A TLS port, next to the plain one; its certificate is made out to `127.0.0.1`.
    pub tls: Option<TlsPort>,
    /// A Unix socket, next to the port.
    pub unix_socket: bool,
    /// More of its command line, such as `--requirepass secret`.
    pub extra: Vec<String>,
    /// More of its environment.
    pub env: Vec<(String, String)>,
}

/// How a server speaks TLS.
#[derive(Clone, Debug)]
pub struct TlsPort {
    /// Signs the server's certificate, and those of clients.
    pub authority: Arc<Authority>,
    /// Clients must have a certificate.
    pub clients_too: bool,
}

/// A running (or stopped) server. Killed on drop.
#[derive(Debug)]
pub struct Server {
    options: ServerOptions,
    port: Port,
    tls_port: Option<Port>,
    dir: TempDir,
    child: Option<Child>,
}

impl Server {
    /// Starts a plain server: no persistence.
    pub fn start() -> Self {
        Self::start_with(ServerOptions::default())
    }

    /// Starts a server and waits until it answers.
    pub fn start_with(options: ServerOptions) -> Self {
        for _ in 0..20 {
            let dir = tempfile::Builder::new().prefix("mtimer-redis-").tempdir().expect("a temporary folder");
            let port = Port::of_a_redis(options.cluster);
            let tls_port = options.tls.as_ref().map(|_| Port::of_a_redis(options.cluster));
            let mut server = Self { options: options.clone(), port, tls_port, dir, child: None };
            // If it fails, somebody else took the port in between.
            if server.try_start() {
                return server;
            }
        }
        panic!("redis-server does not start: {options:?}");
    }

    fn try_start(&mut self) -> bool {
        let yes_no = |on| if on { "yes" } else { "no" };
        let mut command = Place::command(self.options.place.as_ref(), redis_program("redis-server"));
        command
            .args(["--port", &self.port.number.to_string(), "--bind", &self.host().to_string(), "--save", ""])
            .args(["--protected-mode", yes_no(self.options.place.is_none())])
            .args(["--appendonly", yes_no(self.options.append_only), "--appendfsync", "always"])
            .args(["--cluster-enabled", yes_no(self.options.cluster), "--cluster-node-timeout", "2000"])
            .args(["--repl-diskless-sync-delay", "0"])
            .args(["--loglevel", "warning", "--logfile", "redis.log", "--enable-debug-command", "local"])
            .args(self.more_listeners())
            .args(&self.options.extra)
            .envs(self.options.env.iter().cloned())
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.child = Some(command.spawn().expect("redis-server is installed"));
        let deadline = Instant::now() + START_WITHIN;
        while Instant::now() < deadline {
            if self.child.as_mut().is_some_and(|c| c.try_wait().expect("a child process").is_some()) {
                return false;
            }
            if self.answers() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("redis-server on port {} did not answer within {START_WITHIN:?}", self.port.number);
    }

    /// Arguments for TLS and the Unix socket.
    fn more_listeners(&self) -> Vec<String> {
        let mut args = Vec::new();
        let mut add = |name: &str, value: String| args.extend([format!("--{name}"), value]);
        if self.options.unix_socket {
            add("unixsocket", self.socket().display().to_string());
        }
        if let Some(port) = &self.tls_port {
            add("tls-port", port.number.to_string());
            self.tls_files().into_iter().for_each(|[name, value]| add(&name, value));
        }
        args
    }

    /// Settings of a server, or of a Sentinel, that speaks TLS as this server does; its certificate
    /// is a new one.
    pub(super) fn tls_files(&self) -> [[String; 2]; 4] {
        let tls = self.options.tls.as_ref().expect("a server with a TLS port");
        let path = |path: PathBuf| path.display().to_string();
        let (certificate, key) = tls.authority.issue(&format!("server-{}", self.port.number));
        [
            ["tls-cert-file".to_owned(), path(certificate)],
            ["tls-key-file".to_owned(), path(key)],
            ["tls-ca-cert-file".to_owned(), path(tls.authority.certificate())],
            ["tls-auth-clients".to_owned(), if tls.clients_too { "yes" } else { "no" }.to_owned()],
        ]
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    fn answers(&self) -> bool {
        if TcpStream::connect((self.host(), self.port.number)).is_err() {
            return false;
        }
        match self.try_call::<String>(&["PING"]) {
            Ok(_) => true,
            // It is there and wants a password.
            Err(e) => e.to_string().contains("NOAUTH") || format!("{e:?}").contains("NOAUTH"),
        }
    }

    /// Kills the process at once, as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may be dead already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops the process from running, as an overloaded machine would: it neither answers nor
    /// closes anything.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets a frozen process run again.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().expect("the server runs").id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().expect("kill is installed");
        assert!(sent.success(), "kill {signal} {pid}");
    }

    /// Starts it again on the same port and folder, and waits until it answers.
    pub fn restart(&mut self) {
        self.kill();
        for _ in 0..50 {
            if self.try_start() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("redis-server does not start again on port {}", self.port.number);
    }

    /// Its port.
    pub const fn port(&self) -> u16 {
        self.port.number
    }

    /// Its address.
    pub fn host(&self) -> Ipv4Addr {
        Place::host(self.options.place.as_ref())
    }

    /// `host:port`.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host(), self.port.number)
    }

    /// As the store takes it.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// `host:port` of the TLS port.
    pub fn tls_address(&self) -> String {
        let port = self.tls_port.as_ref().expect("a server with a TLS port");
        format!("{}:{}", self.host(), port.number)
    }

    /// As the store takes the TLS port.
    pub fn tls_url(&self) -> String {
        format!("rediss://{}", self.tls_address())
    }

    /// As the store takes the Unix socket.
    pub fn unix_url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// The append-only file that it writes to.
    pub fn append_only_file(&self) -> PathBuf {
        let dir = self.dir.path().join("appendonlydir");
        let files = std::fs::read_dir(dir).expect("an append-only file").map(|f| f.expect("a file").path());
        let number = |path: &PathBuf| {
            let name = path.file_name()?.to_str()?;
            name.strip_prefix("appendonly.aof.")?.strip_suffix(".incr.aof")?.parse::<u32>().ok()
        };
        files.max_by_key(number).expect("an append-only file")
    }

    /// Has the append-only file rewritten, so that the next restart takes less time.
    pub fn rewrite_append_only_file(&self) {
        self.call::<()>(&["BGREWRITEAOF"]);
        let deadline = Instant::now() + START_WITHIN;
        while !self.call::<String>(&["INFO", "persistence"]).contains("aof_rewrite_in_progress:0") {
            assert!(Instant::now() < deadline, "the file is not rewritten within {START_WITHIN:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Has clients, replicas and other nodes of its cluster told of the port of a proxy in place of
    /// its own.
    pub fn announce_port(&mut self, port: u16) {
        const SETTING: &str = "cluster-announce-port";
        self.call::<()>(&["CONFIG", "SET", SETTING, &port.to_string()]);
        self.options.extra.extend([format!("--{SETTING}"), port.to_string()]);
    }

    /// How far the one replica that is connected is behind, in bytes of the replication stream;
    /// `None`: none is connected.
    pub fn replica_lags_by(&self) -> Option<u64> {
        let info: String = self.call(&["INFO", "replication"]);
        let row = info.lines().find(|line| line.starts_with("slave0:") && line.contains("state=online"))?;
        let at = row.split(',').find_map(|field| field.strip_prefix("offset="))?;
        let end = info.lines().find_map(|line| line.strip_prefix("master_repl_offset:"))?;
        Some(end.trim().parse::<u64>().ok()?.saturating_sub(at.parse().ok()?))
    }

    /// Waits until a replica has all that was answered before.
    pub fn wait_for_replica(&self, replica: &Self) {
        let deadline = Instant::now() + START_WITHIN;
        while self.digest() != replica.digest() {
            assert!(Instant::now() < deadline, "the replica does not follow within {START_WITHIN:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Cuts the replicas off and lets none follow. They do not lag then: they are gone. For one
    /// that lags see [`Proxy::hold_replicas`].
    pub fn cut_replicas_off(&self) {
        self.call::<()>(&["ACL", "SETUSER", "default", "-psync", "-sync"]);
        self.call::<()>(&["CLIENT", "KILL", "TYPE", "replica"]);
    }

    /// Sentinels take it for failed from now on, and tell it nothing. It serves everybody else as
    /// before.
    pub fn hide_from_sentinels(&self) {
        self.call::<()>(&["ACL", "SETUSER", "default", "-ping", "-slaveof", "-replicaof"]);
    }

    /// Lets Sentinels see it again: if they have replaced it, it becomes a replica.
    pub fn show_to_sentinels(&self) {
        self.call::<()>(&["ACL", "SETUSER", "default", "+ping", "+slaveof", "+replicaof"]);
    }

    /// Starts a replica and waits until it follows.
    pub fn add_replica(&self) -> Self {
        // How long it waits for an answer from a master that has cut it off.
        let extra = vec!["--repl-timeout".to_owned(), "3".to_owned()];
        let replica = Self::start_with(ServerOptions { extra, ..ServerOptions::default() });
        self.wait_until_followed(&replica, &self.address());
        replica
    }

    /// The same, with a proxy to this server in between.
    pub fn add_replica_behind(&self, proxy: &Proxy) -> Self {
        let replica = Self::start();
        self.wait_until_followed(&replica, proxy.address());
        replica
    }

    /// Makes a server its replica and waits until that follows.
    pub fn take_as_replica(&self, replica: &Self) {
        self.wait_until_followed(replica, &self.address());
    }

    fn wait_until_followed(&self, replica: &Self, address: &str) {
        let (host, port) = address.rsplit_once(':').expect("host:port");
        replica.call::<()>(&["REPLICAOF", host, port]);
        let deadline = Instant::now() + START_WITHIN;
        while !self.call::<String>(&["INFO", "replication"]).contains("state=online") {
            assert!(Instant::now() < deadline, "no replica within {START_WITHIN:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends a command and returns its answer.
    pub fn call<T: redis::FromRedisValue>(&self, args: &[&str]) -> T {
        self.try_call(args).unwrap_or_else(|e| panic!("{args:?}: {e}"))
    }

    /// Sends a command.
    ///
    /// # Errors
    ///
    /// The server's, or that it cannot be reached.
    pub fn try_call<T: redis::FromRedisValue>(&self, args: &[&str]) -> redis::RedisResult<T> {
        let client = redis::Client::open(self.url())?;
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(5))?;
        let (name, rest) = args.split_first().expect("a command");
        redis::cmd(name).arg(rest).query(&mut connection)
    }

    /// All keys, sorted.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.call(&["KEYS", "*"]);
        keys.sort_unstable();
        keys
    }

    /// Everything that is stored, as one checksum.
    pub fn digest(&self) -> String {
        self.call(&["DEBUG", "DIGEST"])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
