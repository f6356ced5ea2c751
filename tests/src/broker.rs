//! A broker process that can be killed and started again on the same store and address.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use mtimer_client::{Client, ClientBuilder};
use mtimer_store_redis::test_support::{Place, Port};
use rustix::process::Signal;
use serde_json::Value;

use crate::binary::{breakable, mtimer, without_settings};
use crate::journal::Journal;
use crate::party::Parties;
use crate::process::Process;

/// How long a broker may take to start: a loaded machine is slow, and it may have a journal to
/// read.
const START_WITHIN: Duration = Duration::from_secs(60);
/// The exit code of a broker whose address is taken.
const LISTEN: i32 = 14;

/// What is broken on purpose in a broker that can be broken (see `tests/src/bin/broken-broker`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// Nothing: it is to behave like any other.
    Nothing,
    /// The store applies what a former owner asks for.
    Fence,
    /// Claims are not written.
    Claim,
    /// Some schedules are answered before the store has them.
    EarlyOk,
}

impl Sabotage {
    /// As the program's first argument has it.
    fn argument(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Fence => "fence",
            Self::Claim => "claim",
            Self::EarlyOk => "early-ok",
        }
    }
}

/// How a broker is started.
#[derive(Clone, Debug)]
pub struct Launch {
    store: Vec<String>,
    flags: Vec<String>,
    journal: Option<Journal>,
    parties: Option<Parties>,
    sabotage: Option<Sabotage>,
    place: Option<Place>,
    env: Vec<(String, String)>,
}

impl Launch {
    /// On an embedded store in this folder.
    pub fn embedded(data: &Path) -> Self {
        let data = data.to_str().expect("a plain path").to_owned();
        Self::on(vec!["--data".into(), data])
    }

    /// On a Redis.
    pub fn redis(url: &str) -> Self {
        Self::on(vec!["--redis".into(), url.to_owned()])
    }

    fn on(store: Vec<String>) -> Self {
        Self {
            store,
            flags: Vec::new(),
            journal: None,
            parties: None,
            sabotage: None,
            place: None,
            env: Vec::new(),
        }
    }

    /// The program that can be broken on purpose, on Redis, and what is broken in it.
    pub fn breakable(mut self, sabotage: Sabotage) -> Self {
        self.sabotage = Some(sabotage);
        self
    }

    /// What it logs is read into this journal, as the words of the broker that is reached at its
    /// address.
    pub fn journal(mut self, journal: &Journal) -> Self {
        self.journal = Some(journal.clone());
        self.flags(["--log-format", "json", "--log-level", "info,mtimer_broker=debug"])
    }

    /// Its process is made known here, under the address it listens on, before it can have dialled
    /// anybody.
    pub fn known_to(mut self, parties: &Parties) -> Self {
        self.parties = Some(parties.clone());
        self
    }

    /// It runs there, and not on the loopback.
    pub fn at(mut self, place: &Place) -> Self {
        self.place = Some(place.clone());
        self
    }

    /// It says that it is reached here.
    pub fn advertise(self, address: &str) -> Self {
        self.flags(["--advertise", address])
    }

    /// More of its command line.
    pub fn flags<const N: usize>(mut self, flags: [&str; N]) -> Self {
        self.flags.extend(flags.map(str::to_owned));
        self
    }

    /// More of its command line.
    pub fn more(mut self, flags: &[String]) -> Self {
        self.flags.extend_from_slice(flags);
        self
    }

    /// More of its environment.
    pub fn env(mut self, env: &[(String, String)]) -> Self {
        self.env.extend_from_slice(env);
        self
    }

    /// Starts it on a free port, and waits until it serves.
    pub fn start(self) -> Broker {
        self.start_telling(|_| {})
    }

    /// The same; `tell` learns the address before the broker starts.
    pub fn start_telling(self, tell: impl Fn(SocketAddr)) -> Broker {
        match self.try_start(tell) {
            Ok(broker) => broker,
            Err((code, tail)) => panic!("the broker ended with {code:?} at its start{tail}"),
        }
    }

    /// Starts it on a free port and waits until it has ended: its exit code, its output and the end
    /// of its log.
    ///
    /// # Panics
    ///
    /// If it serves.
    pub fn refused(self) -> (Option<i32>, String) {
        match self.try_start(|_| {}) {
            Ok(broker) => panic!("the broker serves at {}", broker.address()),
            Err(end) => end,
        }
    }

    fn try_start(self, tell: impl Fn(SocketAddr)) -> Result<Broker, (Option<i32>, String)> {
        for _ in 0..50 {
            let port = Port::of_a_broker();
            let addr = SocketAddr::from((Place::host(self.place.as_ref()), port.number));
            tell(addr);
            match run(&self, addr) {
                Ok((process, about)) => {
                    return Ok(Broker { launch: self, addr, _port: port, process, about, before: 0 });
                }
                // Another process took the port in between.
                Err((Some(LISTEN), _)) => {}
                Err(end) => return Err(end),
            }
        }
        panic!("no free port for a broker");
    }
}

/// A broker process. Killed on drop.
#[derive(Debug)]
pub struct Broker {
    launch: Launch,
    addr: SocketAddr,
    /// Kept for as long as it may be started again.
    _port: Port,
    process: Process,
    about: Value,
    /// Log lines of earlier processes.
    before: u64,
}

impl Broker {
    /// Where clients connect; the same after a restart.
    pub fn address(&self) -> String {
        self.addr.to_string()
    }

    /// What it said at its start.
    pub fn about(&self) -> &Value {
        &self.about
    }

    /// The folder of its embedded store.
    pub fn data(&self) -> Option<PathBuf> {
        self.about["data"].as_str().map(PathBuf::from)
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Log lines so far, of all its processes.
    pub fn log_lines(&self) -> u64 {
        self.before + self.process.log_lines()
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Tells it to stop and waits for its end.
    pub fn terminate(&mut self, limit: Duration) -> ExitStatus {
        self.process.signal(Signal::TERM);
        self.process.wait(limit)
    }

    /// Starts it again on the same store and address, and waits until it serves.
    pub fn restart(&mut self) {
        self.process.kill();
        self.before += self.process.log_lines();
        let began = Instant::now();
        loop {
            match run(&self.launch, self.addr) {
                Ok((process, about)) => {
                    (self.process, self.about) = (process, about);
                    return;
                }
                Err((Some(LISTEN), _)) if began.elapsed() < START_WITHIN => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err((code, tail)) => panic!("the broker ended with {code:?} when started again{tail}"),
            }
        }
    }

    /// A client's settings for it.
    pub fn client_builder(&self) -> ClientBuilder {
        Client::builder().brokers([self.address()]).connect_timeout(START_WITHIN)
    }

    /// A client.
    pub async fn client(&self) -> Client {
        self.client_builder().connect().await.unwrap_or_else(|e| panic!("{e}{}", self.process.tail()))
    }
}

/// Starts a process and waits for its first line; the exit code and the log if it ends before that.
fn run(launch: &Launch, addr: SocketAddr) -> Result<(Process, Value), (Option<i32>, String)> {
    let place = launch.place.as_ref();
    let mut command = match launch.sabotage {
        Some(sabotage) => {
            let mut command = Place::command(place, breakable());
            command.arg(sabotage.argument());
            command
        }
        None => {
            let mut command = Place::command(place, mtimer());
            command.arg("broker");
            command
        }
    };
    command.args(["--json", "--listen", &addr.to_string()]).args(&launch.store).args(&launch.flags);
    if !addr.ip().is_loopback() {
        // A network of the test's own.
        command.arg("--insecure");
    }
    without_settings(&mut command);
    // Many brokers run at the same time; a test that wants metrics says where.
    command.env("MTIMER_HTTP", "off");
    command.envs(launch.env.iter().cloned());
    let advertised = launch.flags.iter().skip_while(|flag| *flag != "--advertise").nth(1).cloned();
    let name = advertised.unwrap_or_else(|| addr.to_string());
    let journal = launch.journal.clone();
    let observe = {
        let name = name.clone();
        move |line: &str| _ = journal.as_ref().map(|journal| journal.read(&name, line))
    };
    let mut process = Process::start_observed(&format!("the broker {name}"), &mut command, observe);
    if let Some(parties) = &launch.parties {
        parties.add(process.pid(), &addr.to_string());
    }
    let first = process.line(START_WITHIN);
    let about = first.as_deref().and_then(|line| serde_json::from_str::<Value>(line).ok());
    match about.filter(|v| v["listening"].is_string()) {
        Some(about) => Ok((process, about)),
        None => {
            let code = process.wait(START_WITHIN).code();
            // Why it did not start is in its output.
            Err((code, format!("\n{}{}", first.unwrap_or_default(), process.tail())))
        }
    }
}
