//! HTTP for operators: `/metrics`, `/healthz`, `/readyz`.
//!
//! Purpose: answers scrapes and probes from the moment at which the broker begins to acquire its
//! partitions until the engine's task has ended.
//! Invariant: at most [`CONNECTIONS`] connections at a time, one request on each, none longer than
//! [`CONNECTION_WITHIN`]; further ones wait in the system's queue. Nothing here can change
//! anything.
//! Not in here: what the answers say (`metrics`).

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use mtimer_tls::ClientCertificate;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use crate::access::{Access, NoMetrics};
use crate::error::{BrokerError, StartError};
use crate::listener::bind;
use crate::metrics::{self, Source};
use crate::options::HttpListen;
use crate::tasks::Tasks;

/// Where it listens unless told otherwise.
pub const DEFAULT_HTTP: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7480);
/// Connections at the same time: a few scrapers and probes, each for milliseconds.
const CONNECTIONS: usize = 32;
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
const BACKLOG: u32 = 64;

const TEXT: &str = "text/plain; charset=utf-8";

/// What is answered from; `None` while the broker starts.
pub(crate) type Sources = watch::Receiver<Option<Arc<Source>>>;

/// What serves HTTP: it is there before the partitions are.
pub(crate) struct Web {
    tasks: Tasks,
    sources: watch::Sender<Option<Arc<Source>>>,
    addr: Option<SocketAddr>,
}

impl Web {
    /// Listens where it is asked to, and answers that the broker starts.
    pub(crate) fn start(http: HttpListen, access: &Arc<Access>) -> Result<Self, StartError> {
        let (sources, answered_from) = watch::channel(None);
        let mut web = Self { tasks: Tasks::default(), sources, addr: None };
        match http {
            HttpListen::Off => {}
            HttpListen::At(addr) => {
                web.listen(addr, answered_from, access)
                    .map_err(|source| StartError::Http { addr, source })?;
            }
            HttpListen::Auto => {
                if let Err(error) = web.listen(DEFAULT_HTTP, answered_from, access) {
                    tracing::warn!(
                        addr = %DEFAULT_HTTP, %error,
                        "metrics and health probes are not served: give this broker an address with --http"
                    );
                }
            }
        }
        Ok(web)
    }

    fn listen(&mut self, addr: SocketAddr, answered_from: Sources, access: &Arc<Access>) -> io::Result<()> {
        let listener = bind(addr)?.listen(BACKLOG)?;
        let local = listener.local_addr()?;
        if !local.ip().is_loopback() && !access.protection().0.is_authenticated {
            tracing::warn!(
                %local,
                "metrics are served beyond this machine, to anybody: they name destinations; trusted networks only"
            );
        }
        tracing::info!(%local, "metrics and health probes are served");
        self.addr = Some(local);
        self.tasks.spawn("http", serve(listener, answered_from, access.clone()));
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

    /// Its task, and where to put what is answered from.
    pub(crate) fn into_parts(self) -> (Tasks, watch::Sender<Option<Arc<Source>>>) {
        (self.tasks, self.sources)
    }
}

/// Serves until the engine's task has ended. Aborting it ends all connections at once.
pub(crate) async fn serve(
    listener: TcpListener,
    sources: Sources,
    access: Arc<Access>,
) -> Result<(), BrokerError> {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    let mut end = std::pin::pin!(ended(sources.clone()));
    loop {
        // Nobody closes the semaphore.
        let place = async { places.clone().acquire_owned().await.ok() };
        let accepted = tokio::select! {
            () = &mut end => return Ok(()),
            Some(ended) = connections.join_next() => {
                check(ended)?;
                continue;
            }
            accepted = async { (place.await, listener.accept().await) } => accepted,
        };
        match accepted {
            (place, Ok((socket, _))) => {
                let (sources, access) = (sources.clone(), access.clone());
                connections.spawn(async move {
                    let _place = place;
                    serve_one(socket, sources, &access).await;
                });
            }
            (_, Err(error)) => {
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

async fn serve_one(socket: TcpStream, sources: Sources, access: &Access) {
    // Probes have no certificates.
    let stream = match access.accept(socket, ClientCertificate::Optional, HEAD_WITHIN).await {
        Ok(stream) => stream,
        Err(error) => return tracing::debug!(%error, "an HTTP connection was not encrypted"),
    };
    let has_certificate = stream.has_peer_certificate();
    let service = service_fn(|request| answer(request, sources.borrow().clone(), access, has_certificate));
    let connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(CONNECTION_WITHIN, connection).await {
        Ok(Ok(())) => {}
        // Whoever sends nonsense, or goes away, does no harm.
        Ok(Err(error)) => tracing::debug!(%error, "an HTTP connection has failed"),
        Err(_) => tracing::debug!("an HTTP connection took too long"),
    }
}

async fn answer(
    request: Request<Incoming>,
    source: Option<Arc<Source>>,
    access: &Access,
    has_certificate: bool,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let known = matches!(request.uri().path(), "/metrics" | "/healthz" | "/readyz");
    if known && !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Ok(response);
    }
    // Probes are open: they say nothing but whether the broker is well.
    if request.uri().path() == "/metrics"
        && let Err(why) = access.may_scrape(bearer(&request), has_certificate)
    {
        return Ok(not_shown(&why));
    }
    Ok(match (request.uri().path(), source) {
        ("/healthz", None) => text(StatusCode::OK, "starting\n"),
        ("/healthz", Some(source)) => health(&source).await,
        ("/metrics" | "/readyz", None) => {
            text(StatusCode::SERVICE_UNAVAILABLE, "the broker is starting: it waits for its store\n")
        }
        ("/metrics", Some(source)) => scrape(&source).await,
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
async fn health(source: &Source) -> Response<Full<Bytes>> {
    match source.unready().await {
        Ok(_) => text(StatusCode::OK, "ok\n"),
        Err(error) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

async fn readiness(source: &Source) -> Response<Full<Bytes>> {
    let unready = source.unready().await.unwrap_or_else(|error| vec![error.to_string()]);
    match unready.is_empty() {
        true => text(StatusCode::OK, "ready\n"),
        false => text(StatusCode::SERVICE_UNAVAILABLE, unready.join("\n") + "\n"),
    }
}

async fn scrape(source: &Source) -> Response<Full<Bytes>> {
    match source.scrape().await {
        Ok(body) => {
            let mut response = text(StatusCode::OK, body);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
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
