//! HTTP for operators: `/metrics`, `/healthz`, `/readyz`.
//!
//! Purpose: answers scrapes and probes from the moment at which the broker begins to acquire its
//! partitions until the engine's task has ended.
//! Invariant: one request on each connection, none longer than [`CONNECTION_WITHIN`]. A newcomer
//! always gets a slot: beyond [`CONNECTIONS`] the oldest connection is closed, unless it is a
//! scrape, of which there are [`SCRAPES`] at most. So unauthenticated clients hold up neither
//! probes nor scrapes. Nothing here can change anything.
//! Not in here: the contents of the answers (`metrics`).

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use mtimer_tls::{AcceptError, ClientCertificate};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use crate::access::{AccessControl, NoMetrics};
use crate::connection_slots::{ConnectionSlot, ConnectionSlots};
use crate::counters::{ShellCounter, ShellCounters};
use crate::error::{BrokerError, StartError};
use crate::handshake::token_id;
use crate::listener::bind;
use crate::metrics::{Format, MetricsSource};
use crate::options::HttpListen;
use crate::tasks::Tasks;

/// Where it listens unless told otherwise.
pub const DEFAULT_HTTP: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7480);
/// Connections at the same time, scrapes not counted. Probes take milliseconds; the more there are,
/// the longer a probe has before as many newer connections push it out.
const CONNECTIONS: usize = 128;
/// Scrapes at the same time, by those who may read metrics: a few scrapers. Further ones wait.
const SCRAPES: usize = 8;
/// How long the head of a request may take.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// How long a connection may last, its answer included.
const CONNECTION_WITHIN: Duration = Duration::from_secs(15);
/// Memory for the head of a request, bytes; the least that the library allows.
const HEAD_BYTES: usize = 8 * 1024;
/// Pause after an error of the listener, which usually means that the process has no file
/// descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections that the system accepts before the listener does.
const BACKLOG: u32 = 256;

const TEXT: &str = "text/plain; charset=utf-8";

/// The source of answers; `None` while the broker starts.
pub(crate) type Sources = watch::Receiver<Option<Arc<MetricsSource>>>;

/// The HTTP server: it runs before the broker owns partitions.
pub(crate) struct Web {
    tasks: Tasks,
    sources: watch::Sender<Option<Arc<MetricsSource>>>,
    addr: Option<SocketAddr>,
}

/// State that all HTTP connections share.
struct HttpContext {
    sources: Sources,
    access: Arc<AccessControl>,
    counters: Arc<ShellCounters>,
    scrapes: Arc<Semaphore>,
}

/// One connection, with its slot.
struct Visit {
    peer: SocketAddr,
    slot: ConnectionSlot,
    has_certificate: bool,
    /// Held until the answer is written.
    scrape: OnceLock<OwnedSemaphorePermit>,
}

impl Web {
    /// Listens where it is asked to, and answers that the broker starts.
    pub(crate) fn start(
        http: HttpListen,
        access: &Arc<AccessControl>,
        counters: &Arc<ShellCounters>,
    ) -> Result<Self, StartError> {
        let (sources, answered_from) = watch::channel(None);
        let scrapes = Arc::new(Semaphore::new(SCRAPES));
        let (access, counters) = (access.clone(), counters.clone());
        let context = HttpContext { sources: answered_from, access, counters, scrapes };
        let mut web = Self { tasks: Tasks::default(), sources, addr: None };
        match http {
            HttpListen::Off => {}
            HttpListen::At(addr) => {
                web.listen(addr, context).map_err(|source| StartError::Http { addr, source })?;
            }
            HttpListen::Auto => {
                if let Err(error) = web.listen(DEFAULT_HTTP, context) {
                    tracing::warn!(
                        addr = %DEFAULT_HTTP, %error,
                        "metrics and health probes are not served: give this broker an address with --http"
                    );
                }
            }
        }
        Ok(web)
    }

    fn listen(&mut self, addr: SocketAddr, context: HttpContext) -> io::Result<()> {
        let listener = bind(addr)?.listen(BACKLOG)?;
        let local = listener.local_addr()?;
        if !local.ip().is_loopback() && !context.access.protection().0.is_authenticated {
            tracing::warn!(
                %local,
                "metrics are served beyond this machine, to anybody: they name destinations; trusted networks only"
            );
        }
        tracing::info!(%local, "metrics and health probes are served");
        self.addr = Some(local);
        self.tasks.spawn("http", serve(listener, context));
        Ok(())
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> Option<SocketAddr> {
        self.addr
    }

    /// Completes when there is something to answer from, or never will be.
    pub(crate) fn opened(&self) -> impl Future<Output = ()> + use<> {
        let mut sources = self.sources.subscribe();
        async move { _ = sources.wait_for(Option::is_some).await.is_ok() }
    }

    /// Its task, and the channel for the source of answers.
    pub(crate) fn into_parts(self) -> (Tasks, watch::Sender<Option<Arc<MetricsSource>>>) {
        (self.tasks, self.sources)
    }
}

/// Serves until the engine's task has ended. Aborting it ends all connections at once.
async fn serve(listener: TcpListener, context: HttpContext) -> Result<(), BrokerError> {
    let slots = ConnectionSlots::new(CONNECTIONS, Duration::ZERO);
    let mut connections = JoinSet::new();
    let mut end = std::pin::pin!(ended(context.sources.clone()));
    let context = Arc::new(context);
    loop {
        let accepted = tokio::select! {
            () = &mut end => return Ok(()),
            Some(ended) = connections.join_next() => {
                check(ended)?;
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, peer)) => {
                if let Some(slot) = slots.take(peer.ip()) {
                    connections.spawn(serve_one(socket, peer, context.clone(), slot));
                }
            }
            Err(error) => {
                tracing::debug!(%error, "cannot accept connections for metrics, trying again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn check(ended: Result<(), JoinError>) -> Result<(), BrokerError> {
    ended.map_err(|error| BrokerError::Panicked { task: "http", what: error.to_string() })
}

/// Completes when the engine's task has ended, or the broker has not started.
async fn ended(mut sources: Sources) {
    let Ok(source) = sources.wait_for(Option::is_some).await.map(|source| source.clone()) else { return };
    if let Some(source) = source {
        source.ended().await;
    }
}

/// Serves a connection until it ends, or a newer one gets its slot.
async fn serve_one(socket: TcpStream, peer: SocketAddr, context: Arc<HttpContext>, slot: ConnectionSlot) {
    // Probes have no certificates.
    let accepting = context.access.accept(socket, ClientCertificate::Optional, HEAD_WITHIN);
    let accepted = tokio::select! {
        accepted = accepting => accepted,
        () = slot.evicted() => return context.evicted(peer),
    };
    let stream = match accepted {
        Ok(stream) => stream,
        Err(AcceptError::Ended) => return,
        Err(error) => {
            let counter = match &error {
                AcceptError::Timeout(_) => ShellCounter::HandshakesTimedOut,
                _ => ShellCounter::TlsRefused,
            };
            context.counters.refuse(counter, peer, None);
            return tracing::debug!(%peer, %error, "an HTTP connection was not encrypted");
        }
    };
    let has_certificate = stream.has_peer_certificate();
    let visit = Visit { peer, slot, has_certificate, scrape: OnceLock::new() };
    let connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service_fn(|request| answer(request, &context, &visit)));
    let served = tokio::select! {
        served = timeout(CONNECTION_WITHIN, connection) => served,
        () = visit.slot.evicted() => return context.evicted(peer),
    };
    match served {
        Ok(Ok(())) => {}
        // A client that sends nonsense, or goes away, does no harm.
        Ok(Err(error)) => {
            if error.is_timeout() {
                context.counters.refuse(ShellCounter::HandshakesTimedOut, peer, None);
            }
            tracing::debug!(%peer, %error, "an HTTP connection has failed");
        }
        Err(_) => tracing::debug!(%peer, "an HTTP connection took too long"),
    }
}

impl HttpContext {
    fn evicted(&self, peer: SocketAddr) {
        self.counters.refuse(ShellCounter::ConnectionsRefused, peer, None);
        tracing::debug!(%peer, "an HTTP connection was closed: a newer one needs its slot");
    }
}

async fn answer(
    request: Request<Incoming>,
    context: &HttpContext,
    visit: &Visit,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let known = matches!(request.uri().path(), "/metrics" | "/healthz" | "/readyz");
    if known && !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Ok(response);
    }
    // Probes are open: they say nothing but whether the broker is well.
    if request.uri().path() == "/metrics" {
        let token = bearer(&request);
        if let Err(why) = context.access.may_scrape(token, visit.has_certificate) {
            let counter = match &why {
                NoMetrics::Unauthorized(_) | NoMetrics::NoCertificate => ShellCounter::AuthRefused,
                NoMetrics::Forbidden(_) => ShellCounter::AccessDenied,
            };
            context.counters.refuse(counter, visit.peer, token_id(token).as_deref());
            return Ok(not_shown(&why));
        }
        // Nobody closes the semaphore.
        if let Ok(turn) = context.scrapes.clone().acquire_owned().await {
            visit.slot.give_up();
            _ = visit.scrape.set(turn);
        }
    }
    let source = context.sources.borrow().clone();
    Ok(match (request.uri().path(), source) {
        ("/healthz", None) => text(StatusCode::OK, "starting\n"),
        ("/healthz", Some(source)) => health(&source).await,
        ("/metrics" | "/readyz", None) => {
            text(StatusCode::SERVICE_UNAVAILABLE, "the broker is starting: it waits for its store\n")
        }
        ("/metrics", Some(source)) => scrape(&source, accepted(&request)).await,
        ("/readyz", Some(source)) => readiness(&source).await,
        _ => text(StatusCode::NOT_FOUND, "there is /metrics, /healthz, /readyz\n"),
    })
}

/// The refusal of metrics: 401 without a valid token, 403 with one that does not allow it.
fn not_shown(why: &NoMetrics) -> Response<Full<Bytes>> {
    let status = match why {
        NoMetrics::Unauthorized(_) => StatusCode::UNAUTHORIZED,
        NoMetrics::Forbidden(_) | NoMetrics::NoCertificate => StatusCode::FORBIDDEN,
    };
    let mut response = text(status, format!("{why}\n"));
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// The token of a request; empty if there is none.
fn bearer<T>(request: &Request<T>) -> &str {
    let value = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let (scheme, token) = value.and_then(|value| value.split_once(' ')).unwrap_or_default();
    if scheme.eq_ignore_ascii_case("bearer") { token.trim() } else { "" }
}

/// Alive: the engine's loop answers.
async fn health(source: &MetricsSource) -> Response<Full<Bytes>> {
    match source.unready().await {
        Ok(_) => text(StatusCode::OK, "ok\n"),
        Err(error) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

async fn readiness(source: &MetricsSource) -> Response<Full<Bytes>> {
    let unready = source.unready().await.unwrap_or_else(|error| vec![error.to_string()]);
    match unready.is_empty() {
        true => text(StatusCode::OK, "ready\n"),
        false => text(StatusCode::SERVICE_UNAVAILABLE, unready.join("\n") + "\n"),
    }
}

/// The format that a request for metrics asks for.
fn accepted<T>(request: &Request<T>) -> Format {
    let value = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    Format::accepted(value.unwrap_or_default())
}

async fn scrape(source: &MetricsSource, format: Format) -> Response<Full<Bytes>> {
    match source.scrape(format).await {
        Ok(body) => {
            let mut response = text(StatusCode::OK, body);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
            response
        }
        Err(error) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
    response
}
