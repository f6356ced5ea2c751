//! Redis Sentinels.

use std::fmt::Write as _;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::port::Port;
use super::server::{Server, redis_program};

/// How long Sentinels may take to start and to find each other, and for a failover.
const WITHIN: Duration = Duration::from_secs(60);
/// How long a master is silent before a Sentinel takes it for failed, ms.
const DOWN_AFTER_MS: u32 = 1_000;

/// Sentinels that watch one master. Killed on drop.
#[derive(Debug)]
pub struct Sentinels {
    all: Vec<Sentinel>,
    master: String,
}

#[derive(Debug)]
struct Sentinel {
    port: Port,
    child: Child,
    _dir: TempDir,
}

impl Sentinels {
    /// Starts three Sentinels that call the master by this name, and waits until they know each
    /// other and its replica.
    pub fn start(name: &str, master: &Server) -> Self {
        Self::start_at(name, &master.address())
    }

    /// The same for the master at an address, which may be a proxy's.
    pub fn start_at(name: &str, address: &str) -> Self {
        let mut config = format!("sentinel monitor {name} {} 2\n", address.replace(':', " "));
        for (setting, value) in [("down-after-milliseconds", DOWN_AFTER_MS), ("failover-timeout", 3_000)] {
            writeln!(config, "sentinel {setting} {name} {value}").expect("a string takes text");
        }
        let all = (0..3).map(|_| Sentinel::start(&config)).collect();
        let this = Self { all, master: name.to_owned() };
        this.wait(|state| state("num-other-sentinels") == "2" && state("num-slaves") == "1");
        this
    }

    /// Starts one Sentinel. `more` are lines of its configuration.
    pub fn start_one(name: &str, master: &Server, more: &[&str]) -> Self {
        let config = format!("sentinel monitor {name} {} {} 1\n", master.host(), master.port());
        Self { all: vec![Sentinel::start(&(config + &more.join("\n")))], master: name.to_owned() }
    }

    /// Starts one Sentinel that speaks nothing but TLS, to its clients and to the master, whose TLS
    /// port it names.
    pub fn start_one_with_tls(name: &str, master: &Server) -> Self {
        let config = format!("sentinel monitor {name} {} 1\n", master.tls_address().replace(':', " "));
        let port = Port::of_a_redis(false);
        let listen = format!("port 0\ntls-port {}\n", port.number);
        let tls = master.tls_files().into_iter().map(|[name, value]| format!("{name} {value}\n"));
        let all = tls.chain(["tls-replication yes\n".to_owned(), config]).collect::<String>();
        Self { all: vec![Sentinel::start_on(port, &(listen + &all))], master: name.to_owned() }
    }

    /// Their addresses.
    pub fn addresses(&self) -> Vec<String> {
        self.all.iter().map(Sentinel::address).collect()
    }

    /// As the store takes them.
    pub fn urls(&self) -> Vec<String> {
        let url = |one: &Sentinel| format!("redis-sentinel://{}?master={}", one.address(), self.master);
        self.all.iter().map(url).collect()
    }

    /// Waits until all agree that this server is the master.
    pub fn wait_for_master(&self, server: &Server) {
        self.wait(|state| state("port") == server.port().to_string() && state("flags") == "master");
    }

    /// Kills one of them.
    pub fn kill(&mut self, number: usize) {
        drop(self.all.remove(number));
    }

    fn wait(&self, is_so: impl Fn(&dyn Fn(&str) -> String) -> bool) {
        let deadline = Instant::now() + WITHIN;
        let knows = |one: &Sentinel| {
            let state = one.state(&self.master);
            is_so(&|name| {
                let at = state.iter().step_by(2).position(|field| field == name);
                at.and_then(|at| state.get(2 * at + 1)).cloned().unwrap_or_default()
            })
        };
        while !self.all.iter().all(knows) {
            assert!(Instant::now() < deadline, "the Sentinels do not agree within {WITHIN:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Sentinel {
    fn start(config: &str) -> Self {
        let port = Port::of_a_redis(false);
        let listen = format!("port {}\n", port.number);
        Self::start_on(port, &(listen + config))
    }

    /// Starts one whose configuration says that it listens on this port.
    fn start_on(port: Port, config: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("mtimer-sentinel-").tempdir().expect("a temporary folder");
        let file = dir.path().join("sentinel.conf");
        let own = "bind 127.0.0.1\nlogfile sentinel.log\n".to_owned();
        std::fs::write(&file, own + config).expect("a temporary file");
        let child = Command::new(redis_program("redis-server"))
            .arg(&file)
            .arg("--sentinel")
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let this = Self { port, child, _dir: dir };
        let deadline = Instant::now() + WITHIN;
        while TcpStream::connect(this.address()).is_err() {
            assert!(Instant::now() < deadline, "a Sentinel did not answer within {WITHIN:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        this
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port.number)
    }

    /// Fields and values of `SENTINEL MASTER`; nothing while it knows none.
    fn state(&self, master: &str) -> Vec<String> {
        let ask = || {
            let client = redis::Client::open(format!("redis://{}", self.address()))?;
            let mut connection = client.get_connection_with_timeout(Duration::from_secs(5))?;
            redis::cmd("SENTINEL").arg("MASTER").arg(master).query(&mut connection)
        };
        ask().unwrap_or_default()
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
