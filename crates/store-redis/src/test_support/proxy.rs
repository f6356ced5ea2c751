//! A TCP proxy in front of a server that loses requests and answers as it is told.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The command that runs a script.
const SCRIPT: &[u8] = b"EVALSHA";
/// The command by which a replica begins to follow.
const FOLLOW: &[u8] = b"PSYNC";
/// The request for a sign of life.
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// The next fault.
#[derive(Clone, Debug, Default)]
enum Armed {
    #[default]
    Nothing,
    /// Forward the next request that contains this, behind so many others, drop its answer and the
    /// connection.
    Answer(Vec<u8>, usize),
    /// Drop the next request that contains this, and the connection.
    Call(Vec<u8>),
    /// Answer the next request that contains this with an error in place of the server.
    Refuse(Vec<u8>, String),
    /// Keep the next request that contains this, and so many scripts from there on, and close the
    /// client's connection.
    Delay(Vec<u8>, usize),
    /// Send the kept requests to the server, right before the next request that contains this.
    Overtake(Vec<u8>),
}

/// Whose answers stay in the proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Held {
    Nobodys,
    Replicas,
    Everybodys,
}

impl Held {
    const fn applies_to(self, is_replica: bool) -> bool {
        match self {
            Self::Nobodys => false,
            Self::Replicas => is_replica,
            Self::Everybodys => true,
        }
    }
}

#[derive(Debug)]
struct State {
    /// Where new connections go.
    target: Mutex<String>,
    armed: Mutex<Armed>,
    /// Requests that were kept, with their connection to the server.
    delayed: Mutex<Option<(Vec<u8>, TcpStream)>>,
    /// The server's answers to them.
    late_answers: Mutex<String>,
    lost: std::sync::atomic::AtomicUsize,
    held: watch::Sender<Held>,
    /// Cancelled to cut all connections; `None`: down.
    up: Mutex<Option<CancellationToken>>,
}

/// See the module. Must be made inside a tokio runtime; ends with it.
#[derive(Debug)]
pub struct Proxy {
    address: String,
    state: Arc<State>,
    end: CancellationToken,
}

impl Proxy {
    /// A proxy to `target` (`host:port`).
    pub async fn start(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let state = Arc::new(State {
            target: Mutex::new(target.to_owned()),
            armed: Mutex::default(),
            delayed: Mutex::default(),
            late_answers: Mutex::default(),
            lost: 0.into(),
            held: watch::Sender::new(Held::Nobodys),
            up: Mutex::new(Some(CancellationToken::new())),
        });
        let end = CancellationToken::new();
        let (accepting, ended) = (state.clone(), end.clone());
        tokio::spawn(async move {
            ended.run_until_cancelled(accept(listener, accepting)).await;
        });
        Self { address, state, end }
    }

    /// As the store takes it.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("host:port")
    }

    /// Sends new connections to another server; those that exist stay where they are. As when the
    /// server behind a DNS name, a virtual IP or a service is replaced.
    pub fn lead_to(&self, target: &str) {
        *self.state.target.lock().unwrap() = target.to_owned();
    }

    /// Forwards nothing that the server sends from now on. Held data is lost with its connection.
    pub fn hold(&self) {
        self.state.held.send_replace(Held::Everybodys);
    }

    /// Forwards nothing that the server sends to replicas from now on: they lag. They stay
    /// connected, and the server hears how far they are. Held data is lost with its connection.
    pub fn hold_replicas(&self) {
        self.state.held.send_replace(Held::Replicas);
    }

    /// Forwards the held data, and all that follows.
    pub fn let_through(&self) {
        self.state.held.send_replace(Held::Nobodys);
    }

    /// The next request that contains `mark` reaches the server; its answer is lost, and the
    /// connection with it.
    pub fn lose_answer(&self, mark: &str) {
        self.lose_answer_after(mark, 0);
    }

    /// The same for a later request, behind so many others that contain `mark`.
    pub fn lose_answer_after(&self, mark: &str, others: usize) {
        *self.state.armed.lock().unwrap() = Armed::Answer(mark.as_bytes().to_vec(), others);
    }

    /// The next request that contains `mark` is lost, and the connection with it.
    pub fn lose_call(&self, mark: &str) {
        *self.state.armed.lock().unwrap() = Armed::Call(mark.as_bytes().to_vec());
    }

    /// The next script that contains `mark` does not reach the server: its answer is this error.
    pub fn refuse(&self, mark: &str, error: &str) {
        *self.state.armed.lock().unwrap() = Armed::Refuse(mark.as_bytes().to_vec(), error.to_owned());
    }

    /// The next request that contains `mark` is delayed, and so many scripts from there on: the
    /// client's connection is closed, and the server receives them right before the next request
    /// that contains `mark`.
    pub fn delay(&self, mark: &str, scripts: usize) {
        *self.state.armed.lock().unwrap() = Armed::Delay(mark.as_bytes().to_vec(), scripts);
    }

    /// The server's answers to delayed requests.
    pub fn late_answers(&self) -> String {
        self.state.late_answers.lock().unwrap().clone()
    }

    /// How much was lost so far.
    pub fn lost(&self) -> usize {
        self.state.lost.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// Cuts all connections and refuses new ones.
    pub fn down(&self) {
        if let Some(up) = self.state.up.lock().unwrap().take() {
            up.cancel();
        }
    }

    /// Cuts all connections; new ones are let through.
    pub fn cut(&self) {
        self.down();
        self.up();
    }

    /// Lets connections through again.
    pub fn up(&self) {
        self.state.up.lock().unwrap().get_or_insert_with(CancellationToken::new);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.end.cancel();
        self.down();
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    while let Ok((client, _)) = listener.accept().await {
        let up = state.up.lock().unwrap().clone();
        if let Some(up) = up {
            let state = state.clone();
            tokio::spawn(async move {
                up.run_until_cancelled(forward(client, &state, &up)).await;
            });
        }
    }
}

/// Forwards until either side closes or something is to be lost.
async fn forward(mut client: TcpStream, state: &State, up: &CancellationToken) {
    let target = state.target.lock().unwrap().clone();
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    // Data is sent at once and does not wait for more.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let mut held = state.held.subscribe();
    let (mut request, mut answer) = (vec![0; 256 << 10], vec![0; 256 << 10]);
    let mut is_replica = false;
    loop {
        let may_pass = !held.borrow_and_update().applies_to(is_replica);
        tokio::select! {
            changed = held.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            read = client.read(&mut request) => {
                let Ok(n @ 1..) = read else { return };
                // It may have been working when the proxy went down: later requests must not slip
                // through.
                if up.is_cancelled() {
                    return;
                }
                is_replica |= has(&request[..n], FOLLOW);
                match state.take(&request[..n]) {
                    Armed::Nothing => {
                        if server.write_all(&request[..n]).await.is_err() {
                            return;
                        }
                    }
                    Armed::Call(_) => return,
                    Armed::Delay(mark, scripts) => {
                        let mut kept = request[..n].to_vec();
                        while count_scripts(&kept) < scripts || !kept.ends_with(b"\r\n") {
                            let Ok(n @ 1..) = client.read(&mut request).await else { return };
                            kept.extend_from_slice(&request[..n]);
                        }
                        *state.delayed.lock().unwrap() = Some((kept, server));
                        *state.armed.lock().unwrap() = Armed::Overtake(mark);
                        return;
                    }
                    Armed::Overtake(_) => {
                        state.send_delayed().await;
                        if server.write_all(&request[..n]).await.is_err() {
                            return;
                        }
                    }
                    Armed::Refuse(_, error) => {
                        // Behind the server's answers to earlier requests.
                        let Ok(mut answers) = answers_so_far(&mut server).await else { return };
                        // Requests sent along with it are answered alike.
                        let refused = count_commands(&request[..n]);
                        answers.extend(format!("-{error}\r\n").repeat(refused).into_bytes());
                        if client.write_all(&answers).await.is_err() {
                            return;
                        }
                    }
                    Armed::Answer(..) => {
                        // The server has done it when it answers.
                        if server.write_all(&request[..n]).await.is_ok() {
                            let _ = server.read(&mut answer).await;
                        }
                        return;
                    }
                }
            }
            read = server.read(&mut answer), if may_pass => {
                let Ok(n @ 1..) = read else { return };
                // It may have come before it was to be held and be seen afterwards.
                if held.wait_for(|held| !held.applies_to(is_replica)).await.is_err() {
                    return;
                }
                if client.write_all(&answer[..n]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Reads the outstanding answers of the server.
async fn answers_so_far(server: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    const ECHO: &[u8] = b"*2\r\n$4\r\nECHO\r\n$9\r\nthe proxy\r\n";
    const ECHOED: &[u8] = b"$9\r\nthe proxy\r\n";
    server.write_all(ECHO).await?;
    let (mut answers, mut part) = (Vec::new(), vec![0; 64 << 10]);
    while !answers.ends_with(ECHOED) {
        let n = server.read(&mut part).await?;
        if n == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        answers.extend_from_slice(&part[..n]);
    }
    answers.truncate(answers.len() - ECHOED.len());
    Ok(answers)
}

fn has(request: &[u8], mark: &[u8]) -> bool {
    request.windows(mark.len()).any(|w| w == mark)
}

fn count_scripts(requests: &[u8]) -> usize {
    requests.windows(SCRIPT.len()).filter(|w| *w == SCRIPT).count()
}

/// How many commands there are: arrays of strings, each with its length before it.
fn count_commands(mut requests: &[u8]) -> usize {
    fn line<'a>(requests: &mut &'a [u8]) -> Option<&'a str> {
        let end = requests.windows(2).position(|w| w == b"\r\n")?;
        let (line, rest) = requests.split_at(end);
        *requests = &rest[2..];
        std::str::from_utf8(line.get(1..)?).ok()
    }
    let mut commands = 0;
    while let Some(strings) = line(&mut requests) {
        for _ in 0..strings.parse().expect("the length of an array") {
            let length: usize = line(&mut requests).expect("a string").parse().expect("its length");
            requests = requests.get(length + 2..).expect("whole commands arrive together");
        }
        commands += 1;
    }
    commands
}

impl State {
    /// Sends the delayed requests, and keeps the answers to them.
    async fn send_delayed(&self) {
        let Some((mut kept, mut server)) = self.delayed.lock().unwrap().take() else { return };
        // Everything is answered when this is.
        kept.extend_from_slice(PING);
        server.write_all(&kept).await.expect("the server keeps the connection");
        let (mut answers, mut part) = (Vec::new(), vec![0; 64 << 10]);
        while !answers.ends_with(b"+PONG\r\n") {
            let n = server.read(&mut part).await.expect("the server answers");
            assert!(n > 0, "the server has closed the connection");
            answers.extend_from_slice(&part[..n]);
        }
        *self.late_answers.lock().unwrap() = String::from_utf8_lossy(&answers).into_owned();
    }

    fn take(&self, request: &[u8]) -> Armed {
        let mut armed = self.armed.lock().unwrap();
        let has = |mark: &[u8]| has(request, mark);
        let hit = match &mut *armed {
            Armed::Nothing => false,
            Armed::Answer(mark, others @ 1..) => {
                *others -= usize::from(has(mark));
                false
            }
            Armed::Answer(mark, 0) | Armed::Call(mark) => has(mark),
            Armed::Delay(mark, _) | Armed::Overtake(mark) => has(mark),
            Armed::Refuse(mark, _) => has(mark) && has(SCRIPT),
        };
        if !hit {
            return Armed::Nothing;
        }
        self.lost.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        std::mem::take(&mut *armed)
    }
}
