//! Whether a broker is there: one connection to it alone, for health checks.
//!
//! Invariant: nothing that is asked here reaches the broker's store or another broker, so that the
//! answer costs the same however many timers there are, and a fault elsewhere is not taken for one
//! of this broker.

use std::time::Duration;

use futures_util::StreamExt;
use mtimer_protocol::{ClientMessage, Query, QueryAnswer, ServerMessage, decode, encode_frame};
use mtimer_types::limits::MAX_FRAME;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, sleep, timeout};

use crate::clock::RuntimeClock;
use crate::error::LinkError;
use crate::link::{BrokerStream, Dialler, explain};
use crate::machine::dial::{DialPlan, Patience, Place};
use crate::machine::handshake;
use crate::machine::random::Random;
use crate::settings::Settings;
use crate::shell::ThreadRandom;
use crate::state::info;
use crate::{ClientBuilder, ConnectError, Info, RequestError};

/// Asks one broker whether it is there: a connection past its handshake; made by
/// [`ClientBuilder::probe`]. It is closed when it is dropped.
///
/// It is not kept alive between two questions: ask, and drop it.
///
/// # Cancel safety
///
/// A call that was dropped half way may have sent half a message: drop the probe, too.
#[derive(Debug)]
pub struct Probe {
    connection: BrokerStream,
    info: Info,
    request_timeout: Duration,
    last: u64,
}

impl ClientBuilder {
    /// Connects, as an [observer](Self::observer), to the first of the given brokers that answers,
    /// and to no other broker of its cluster.
    ///
    /// # Errors
    ///
    /// As [`ClientBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    pub async fn probe(self) -> Result<Probe, ConnectError> {
        let settings = self.observer().settings;
        let (connection, info) = connect(&settings).await?;
        Ok(Probe { connection, info, request_timeout: settings.request_timeout, last: 0 })
    }
}

impl Probe {
    /// Returns the broker's description of itself.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Has the broker answer a ping; returns how long that took.
    ///
    /// # Errors
    ///
    /// [`RequestError::Unanswered`] after [`ClientBuilder::request_timeout`], or if the connection
    /// is gone: drop the probe.
    ///
    /// # Cancel safety
    ///
    /// None: see [`Probe`].
    pub async fn ping(&mut self) -> Result<Duration, RequestError> {
        let sent = Instant::now();
        self.last += 1;
        let number = self.last;
        let pong = |message| matches!(message, ServerMessage::Pong(n, _) if n == number).then_some(());
        self.ask(&ClientMessage::Ping(number), pong).await?;
        Ok(sent.elapsed())
    }

    /// Returns why the broker is not ready, for people; empty if it is.
    ///
    /// These are the reasons that its `/readyz` gives: docs/metrics.md lists the conditions.
    ///
    /// # Errors
    ///
    /// [`RequestError::Unanswered`] as [`Probe::ping`]; [`RequestError::Refused`] if the broker
    /// does not tell, as to a token that may not read.
    ///
    /// # Cancel safety
    ///
    /// None: see [`Probe`].
    pub async fn unready(&mut self) -> Result<Vec<String>, RequestError> {
        self.last += 1;
        let number = self.last;
        let answer = |message| match message {
            ServerMessage::Answer { corr, answer } if corr == number => Some(answer),
            _ => None,
        };
        match self.ask(&ClientMessage::Query { corr: number, query: Query::Ready }, answer).await? {
            QueryAnswer::Ready(why) => Ok(why),
            QueryAnswer::Failed { code, message } => Err(RequestError::Refused { code, message }),
            _ => Err(RequestError::Mismatched),
        }
    }

    /// Sends a message and waits for its answer.
    async fn ask<T>(
        &mut self,
        message: &ClientMessage,
        answer: impl FnMut(ServerMessage) -> Option<T>,
    ) -> Result<T, RequestError> {
        let limit = self.request_timeout;
        let silent = || LinkError::Silent(limit.as_millis() as u64);
        let answered = timeout(limit, exchange(&mut self.connection, message, answer)).await;
        answered.unwrap_or_else(|_| Err(silent())).map_err(|error| {
            let reason = format!("{}: {error}", self.info.broker);
            RequestError::Unanswered { ms: limit.as_millis() as u64, reason }
        })
    }
}

/// Connects to the first place that answers.
async fn connect(settings: &Settings) -> Result<(BrokerStream, Info), ConnectError> {
    let (dialler, clock) = (Dialler::new(settings)?, RuntimeClock::new());
    let Settings { software, token, role, .. } = settings;
    let hello = handshake::hello(ThreadRandom.client(), software, token, *role)?;
    let patience = Patience::new(clock.moment(), settings.connect_timeout);
    let names = dialler.names();
    let mut plan = DialPlan::new(names.len());
    loop {
        let (number, limit) = (plan.begin(), patience.limit(clock.moment()));
        let error = match timeout(limit, greet(&dialler, &Place::Seed(number), &hello)).await {
            Ok(Ok(connected)) => return Ok(connected),
            Ok(Err(error)) => error,
            Err(_) => {
                let (broker, ms) = (names[number].clone(), limit.as_millis() as u64);
                ConnectError::Timeout { broker, ms }
            }
        };
        let pause = plan.pause(&mut ThreadRandom);
        if patience.is_over(&plan, &error, clock.moment() + pause) {
            return Err(error);
        }
        sleep(pause).await;
    }
}

/// Makes a connection, and its handshake.
async fn greet(
    dialler: &Dialler,
    place: &Place,
    hello: &ClientMessage,
) -> Result<(BrokerStream, Info), ConnectError> {
    let mut stream = dialler.open(place).await?;
    let broker = stream.address.clone();
    let ended = |end: LinkError| end.before_welcome(broker.clone());
    send(&mut stream, hello).await.map_err(ended)?;
    let body = match stream.frames.next().await {
        None => return Err(ended(LinkError::Closed)),
        Some(Err(error)) => {
            let explained = explain(stream.tls.as_ref(), &broker, error);
            return Err(explained.unwrap_or_else(|error| ended(error.into())));
        }
        Some(Ok(body)) => body,
    };
    let answer = decode(&body).map_err(|error| ended(error.into()))?;
    let welcome = handshake::welcome(&broker, answer)?;
    stream.frames.decoder_mut().set_max_frame_length(MAX_FRAME);
    let info = info(&broker, &welcome);
    Ok((stream, info))
}

async fn exchange<T>(
    connection: &mut BrokerStream,
    message: &ClientMessage,
    mut answer: impl FnMut(ServerMessage) -> Option<T>,
) -> Result<T, LinkError> {
    send(connection, message).await?;
    loop {
        let body = connection.frames.next().await.ok_or(LinkError::Closed)??;
        match decode(&body)? {
            ServerMessage::Ping(number) => send(connection, &ClientMessage::Pong(number)).await?,
            ServerMessage::Refused { message, .. } => return Err(LinkError::Refused { message }),
            message => {
                if let Some(answer) = answer(message) {
                    return Ok(answer);
                }
            }
        }
    }
}

async fn send(connection: &mut BrokerStream, message: &ClientMessage) -> Result<(), LinkError> {
    let mut bytes = Vec::new();
    encode_frame(message, &mut bytes).map_err(std::io::Error::other)?;
    connection.write.write_all(&bytes).await?;
    Ok(connection.write.flush().await?)
}
