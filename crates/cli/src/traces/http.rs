//! An HTTP client for one purpose: spans to a collector.
//!
//! Invariant: a request ends within [`TIMEOUT`], and of an answer no more than [`MAX_ANSWER`] bytes
//! are read.

use std::error::Error;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

/// How long a collector may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of an answer: a status, and perhaps why some spans were refused.
const MAX_ANSWER: usize = 64 * 1024;
/// Of `http://` without a port.
const DEFAULT_PORT: u16 = 80;

/// Sends requests over a connection each. The exporter calls it from a thread of its own every few
/// seconds, so a connection need not stay open.
#[derive(Debug)]
pub(super) struct Collector {
    runtime: Handle,
    /// The last request has failed, and that was logged.
    failing: AtomicBool,
}

impl Collector {
    pub(super) const fn new(runtime: Handle) -> Self {
        Self { runtime, failing: AtomicBool::new(false) }
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let to = request.uri().clone();
        let sending = self.runtime.spawn(async { tokio::time::timeout(TIMEOUT, exchange(request)).await });
        let answer = match sending.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(format!("no answer within {} s", TIMEOUT.as_secs()).into()),
            Err(ended) => Err(ended.into()),
        };
        let error = match &answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(answer.status().to_string()),
            Err(error) => Some(error.to_string()),
        };
        match error {
            Some(error) if !self.failing.swap(true, Ordering::Relaxed) => {
                tracing::warn!(collector = %to, error, "spans cannot be exported; those of meanwhile are lost");
            }
            None if self.failing.swap(false, Ordering::Relaxed) => {
                tracing::info!(collector = %to, "spans are exported again");
            }
            _ => {}
        }
        answer
    }
}

/// As `async_trait` writes it, which the trait is made with.
impl HttpClient for Collector {
    fn send_bytes<'a, 'f>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'f>>
    where
        'a: 'f,
        Self: 'f,
    {
        Box::pin(self.send(request))
    }
}

async fn exchange(mut request: Request<Bytes>) -> Result<Response<Bytes>, Box<dyn Error + Send + Sync>> {
    let uri = std::mem::take(request.uri_mut());
    let (Some(host), Some(authority)) = (uri.host(), uri.authority()) else {
        return Err(format!("{uri} names no host").into());
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(DEFAULT_PORT))).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    request.headers_mut().insert(HOST, HeaderValue::from_str(authority.as_str())?);
    *request.uri_mut() =
        uri.path_and_query().map_or_else(|| Ok(Uri::from_static("/")), |p| p.as_str().parse())?;
    let (parts, body) = sender.send_request(request.map(Full::new)).await?.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
    connection.abort();
    Ok(Response::from_parts(parts, body))
}
