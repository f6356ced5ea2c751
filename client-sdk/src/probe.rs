//! Whether a broker is there: one connection to it alone, for health checks.
//!
//! Invariant: nothing that is asked here reaches the broker's store or another broker, so that the
//! answer costs the same however many timers there are, and a fault elsewhere is not taken for one
//! of this broker.

use std::time::Duration;

use futures_util::StreamExt;
use mtimer_protocol::{ClientMessage, Query, QueryAnswer, ServerMessage, decode, encode_frame};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout};

use crate::error::LinkError;
use crate::link::{BrokerConnection, DialPlan};
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
    connection: BrokerConnection,
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
    /// Dropping the future closes what was connected.
    pub async fn probe(self) -> Result<Probe, ConnectError> {
        let settings = self.observer().settings;
        let connection = DialPlan::new(&settings)?.first(settings.connect_timeout).await?;
        let info = info(&connection.broker, &connection.welcome);
        Ok(Probe { connection, info, request_timeout: settings.request_timeout, last: 0 })
    }
}

impl Probe {
    /// Returns what the broker said of itself.
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

    /// Sends something and waits for what answers it.
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

async fn exchange<T>(
    connection: &mut BrokerConnection,
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

async fn send(connection: &mut BrokerConnection, message: &ClientMessage) -> Result<(), LinkError> {
    let mut bytes = Vec::new();
    encode_frame(message, &mut bytes).map_err(std::io::Error::other)?;
    connection.write.write_all(&bytes).await?;
    Ok(connection.write.flush().await?)
}
