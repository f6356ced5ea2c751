//! A TCP proxy between two parties that loses, holds back, slows and resets what it is told to.
//!
//! Purpose: what a network does to one connection or to all between two parties, in either
//! direction.
//! Invariant: a stream never goes on behind a gap: a connection that lost something is reset when
//! its way is free again, as a peer that never got its acknowledgements would end it. Buffers are
//! bounded.
//! Not in here: who the parties are; see [`Label`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::party::Label;

/// How long a connection may take to say something before it is given a name: the first to speak
/// are those who dial.
const FIRST_WORD: Duration = Duration::from_secs(5);

/// What happens to bytes of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Way {
    /// They pass.
    #[default]
    Free,
    /// They vanish. Connections stay open, and are reset when the way is free again.
    Lost,
    /// They wait until the way is free again, as far as buffers hold them.
    Held,
    /// What a connection says first passes, such as the answer to a hello; what follows waits as if
    /// [`Self::Held`].
    GreetingOnly,
    /// Each piece waits so long, in ms.
    Slow(u64),
}

/// Both directions of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ways {
    /// From who dials to who listens.
    pub there: Way,
    /// From who listens to who dials.
    pub back: Way,
}

impl Way {
    /// What it is to a connection that has said something already, or has not.
    fn to_one_that(self, has_spoken: bool) -> Self {
        match self {
            Self::GreetingOnly if has_spoken => Self::Held,
            Self::GreetingOnly => Self::Free,
            other => other,
        }
    }
}

impl Ways {
    /// The same both ways.
    pub fn both(way: Way) -> Self {
        Self { there: way, back: way }
    }

    /// Only from who dials to who listens.
    pub fn there(way: Way) -> Self {
        Self { there: way, back: Way::Free }
    }

    /// Only from who listens to who dials.
    pub fn back(way: Way) -> Self {
        Self { there: Way::Free, back: way }
    }
}

/// What connections are under.
#[derive(Clone)]
struct Under {
    rules: watch::Receiver<Rules>,
    disturbed: Arc<AtomicU64>,
}

/// What holds for whom.
#[derive(Clone, Debug, Default)]
struct Rules {
    all: Ways,
    of: BTreeMap<String, Ways>,
    /// Connections of an older number are reset.
    resets: u64,
}

impl Rules {
    fn of(&self, label: &str) -> Ways {
        self.of.get(label).copied().unwrap_or(self.all)
    }
}

/// See the module. Must be made inside a tokio runtime; ends with it.
pub struct Proxy {
    address: String,
    target: Arc<Mutex<String>>,
    rules: watch::Sender<Rules>,
    disturbed: Arc<AtomicU64>,
    end: CancellationToken,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Proxy {
    /// A proxy to `target` (`host:port`) that names connections by `label`.
    pub async fn start(target: &str, label: Label) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let target = Arc::new(Mutex::new(target.to_owned()));
        let (rules, seen) = watch::channel(Rules::default());
        let end = CancellationToken::new();
        let disturbed = Arc::new(AtomicU64::new(0));
        let (to, ended) = (Arc::clone(&target), end.clone());
        let under = Under { rules: seen, disturbed: Arc::clone(&disturbed) };
        tokio::spawn(async move {
            ended.clone().run_until_cancelled(accept(listener, to, label, under, ended)).await;
        });
        Self { address, target, rules, disturbed, end }
    }

    /// The same, with one name for all.
    pub async fn plain(target: &str) -> Self {
        Self::start(target, Arc::new(|_, _, _| String::new())).await
    }

    /// Where to dial, `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("host:port")
    }

    /// How often something was lost, held back or slowed so far.
    pub fn disturbed(&self) -> u64 {
        self.disturbed.load(Ordering::Relaxed)
    }

    /// New connections go here from now on.
    pub fn aim(&self, target: &str) {
        *self.target.lock().unwrap() = target.to_owned();
    }

    /// [`Self::aim`], to be given away.
    pub fn aimer(&self) -> impl Fn(&str) + Send + use<> {
        let at = Arc::clone(&self.target);
        move |target: &str| target.clone_into(&mut at.lock().unwrap())
    }

    /// For everybody without ways of their own.
    pub fn set(&self, ways: Ways) {
        self.rules.send_modify(|rules| rules.all = ways);
    }

    /// For connections of this name.
    pub fn set_for(&self, label: &str, ways: Ways) {
        self.rules.send_modify(|rules| _ = rules.of.insert(label.to_owned(), ways));
    }

    /// Resets all connections that there are.
    pub fn reset(&self) {
        self.rules.send_modify(|rules| rules.resets += 1);
    }

    /// Everything passes again.
    pub fn heal(&self) {
        self.rules.send_modify(|rules| {
            rules.all = Ways::default();
            rules.of.clear();
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

async fn accept(
    listener: TcpListener,
    target: Arc<Mutex<String>>,
    label: Label,
    under: Under,
    end: CancellationToken,
) {
    loop {
        let Ok((dialled, from)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let (to, label, under) = (target.lock().unwrap().clone(), Arc::clone(&label), under.clone());
        let carry = async move { carry(dialled, from, &to, label, under).await };
        tokio::spawn(end.clone().run_until_cancelled_owned(carry));
    }
}

/// Carries one connection until either side closes it or it is reset.
async fn carry(dialled: TcpStream, from: SocketAddr, target: &str, label: Label, under: Under) {
    let born = under.rules.borrow().resets;
    let mut first = vec![0; 4096];
    let Ok(Ok(n @ 1..)) = timeout(FIRST_WORD, dialled.peek(&mut first)).await else { return };
    let Ok(here) = dialled.local_addr() else { return };
    let name = label(from, here, &first[..n]);
    // Nobody there: who dialled sees it closed.
    let Ok(reached) = TcpStream::connect(target).await else { return };
    let _ = (dialled.set_nodelay(true), reached.set_nodelay(true));
    let (dialled_read, dialled_write) = dialled.into_split();
    let (reached_read, reached_write) = reached.into_split();
    let mut orders = under.rules.clone();
    // The proxy is gone: so is this.
    let reset = async { _ = orders.wait_for(|rules| rules.resets > born).await };
    let there = pump(dialled_read, reached_write, name.clone(), under.clone(), |w| w.there);
    let back = pump(reached_read, dialled_write, name, under, |w| w.back);
    tokio::select! {
        () = reset => {}
        () = there => {}
        () = back => {}
    }
}

/// Carries one direction. Ends when either side has closed, or the stream has a gap and the way is
/// free again.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    name: String,
    under: Under,
    pick: fn(Ways) -> Way,
) {
    let Under { mut rules, disturbed } = under;
    let mut buffer = vec![0; 64 << 10];
    let (mut gap, mut spoken) = (false, false);
    loop {
        let now = |rules: &Rules| pick(rules.of(&name)).to_one_that(spoken);
        let way = now(&rules.borrow_and_update());
        if gap && way != Way::Lost {
            return;
        }
        // What comes is left in the socket meanwhile.
        if way == Way::Held {
            disturbed.fetch_add(1, Ordering::Relaxed);
            if rules.changed().await.is_err() {
                return;
            }
            continue;
        }
        let n = tokio::select! {
            changed = rules.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            read = from.read(&mut buffer) => match read {
                Ok(n @ 1..) => n,
                _ if way == Way::Lost => {
                    // The end of the stream is lost as well.
                    gap = true;
                    if rules.changed().await.is_err() {
                        return;
                    }
                    continue;
                }
                _ => return,
            },
        };
        // The way may have changed while it came.
        let way = now(&rules.borrow());
        if !matches!(way, Way::Free | Way::GreetingOnly) {
            disturbed.fetch_add(1, Ordering::Relaxed);
        }
        match way {
            Way::Lost => {
                gap = true;
                continue;
            }
            Way::Held => {
                if rules.wait_for(|rules| now(rules) != Way::Held).await.is_err() {
                    return;
                }
            }
            Way::Slow(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
            Way::Free | Way::GreetingOnly => {}
        }
        spoken = true;
        if to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers every byte with itself.
    async fn echo() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = socket.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        address
    }

    /// How long an answer may take; and how long it is looked that none comes.
    const TIMEOUT: Duration = Duration::from_secs(30);
    const SILENCE: Duration = Duration::from_millis(300);

    async fn hears(socket: &mut TcpStream, within: Duration) -> Option<u8> {
        let mut answer = [0];
        match timeout(within, socket.read_exact(&mut answer)).await {
            Ok(Ok(_)) => Some(answer[0]),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    async fn says(socket: &mut TcpStream, byte: u8) -> Option<u8> {
        socket.write_all(&[byte]).await.ok()?;
        hears(socket, TIMEOUT).await
    }

    async fn says_in_vain(socket: &mut TcpStream, byte: u8) {
        socket.write_all(&[byte]).await.unwrap();
        assert_eq!(hears(socket, SILENCE).await, None);
    }

    #[tokio::test]
    async fn what_is_lost_stays_lost_and_ends_the_connection() {
        let label: Label = Arc::new(|_, _, first| String::from_utf8_lossy(&first[..1]).into_owned());
        let proxy = Proxy::start(&echo().await, label).await;
        let mut a = TcpStream::connect(proxy.address()).await.unwrap();
        let mut b = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!((says(&mut a, b'a').await, says(&mut b, b'b').await), (Some(b'a'), Some(b'b')));
        proxy.set_for("a", Ways::back(Way::Lost));
        assert_eq!(proxy.disturbed(), 0);
        says_in_vain(&mut a, b'x').await;
        assert_eq!((says(&mut b, b'y').await, proxy.disturbed()), (Some(b'y'), 1));
        proxy.heal();
        let mut one = [0];
        let end = timeout(Duration::from_secs(10), a.read(&mut one)).await.unwrap();
        assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
        assert_eq!(says(&mut b, b'z').await, Some(b'z'));
    }

    #[tokio::test]
    async fn what_is_held_comes_later() {
        let proxy = Proxy::plain(&echo().await).await;
        let mut a = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(says(&mut a, b'1').await, Some(b'1'));
        proxy.set(Ways::both(Way::Held));
        says_in_vain(&mut a, b'2').await;
        proxy.heal();
        assert_eq!(says(&mut a, b'3').await, Some(b'2'));
        proxy.reset();
        let mut rest = Vec::new();
        let _ = timeout(Duration::from_secs(10), a.read_to_end(&mut rest)).await.unwrap();
        assert!(says(&mut a, b'4').await.is_none());
    }

    #[tokio::test]
    async fn a_greeting_passes_and_the_rest_comes_later() {
        let proxy = Proxy::plain(&echo().await).await;
        proxy.set(Ways::back(Way::GreetingOnly));
        let mut a = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(says(&mut a, b'1').await, Some(b'1'));
        says_in_vain(&mut a, b'2').await;
        proxy.heal();
        assert_eq!(says(&mut a, b'3').await, Some(b'2'));
    }
}
