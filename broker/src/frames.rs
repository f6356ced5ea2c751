//! Reads the frames of one connection.
//!
//! Purpose: turns bytes into frames, charges their memory to a budget that all connections share,
//! and ends a connection whose frame does not come.
//! Invariant: memory follows the bytes that have arrived, never those announced; beyond
//! [`FREE_BYTES`] every byte of a frame is charged before it is allocated, until the frame is
//! dropped.
//! Not in here: the meaning of a frame, and how long a frame that is complete may wait.
//!
//! Three rules keep a client from taking memory that others need:
//!
//! 1. A frame brings [`MIN_FRAME_RATE`] within every window (the heartbeat timeout), or its
//!    connection is closed.
//! 2. While the budget is used up, frames that want more of it are not read. One of them at a time
//!    goes on beyond the budget, so that frames that wait for each other come to an end.
//! 3. While a frame waits so, connections are closed whose frames hold memory and began more than
//!    [`MAX_PRESSED_FRAME_MS`] ago. Frames that others have sent since then go on. A frame that
//!    holds nothing beyond [`FREE_BYTES`] only waits.

mod budget;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, BytesMut};
use mtimer_types::limits::{MAX_PRESSED_FRAME_MS, MIN_FRAME_RATE};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, sleep_until};

use self::budget::Charge;
pub(crate) use self::budget::ReceiveBudget;

/// Bytes of the length before a frame's body.
const LENGTH_BYTES: usize = 4;
/// Bytes of a frame that a connection may hold without being charged: its read buffer.
pub(crate) const FREE_BYTES: usize = 8 * 1024;

/// A frame's body, with its charge.
#[derive(Debug)]
pub(crate) struct ReceivedFrame {
    pub(crate) body: BytesMut,
    _charge: Charge,
}

/// Why there is no frame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    /// The connection has ended between two frames.
    #[error("the connection has ended")]
    Ended,
    /// The connection has ended in the middle of a frame.
    #[error("the connection has ended in the middle of a frame")]
    Truncated,
    /// The connection has failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A frame is announced that is too large.
    #[error("a frame is announced with more than {limit} bytes: send smaller frames")]
    Oversized { limit: usize },
    /// Nothing has come between two frames.
    #[error("nothing heard for {} ms", .0.as_millis())]
    Silent(Duration),
    /// A frame has begun and does not go on.
    #[error(
        "only {brought} bytes of a frame {of} came within {} ms, {least} are the least: send smaller \
         frames, or faster",
        .window.as_millis()
    )]
    Slow { brought: usize, of: Announced, window: Duration, least: usize },
    /// Others need the memory that an unfinished frame takes.
    #[error(
        "a frame {of} has taken {} ms for {received} bytes while other clients wait for memory: \
         send smaller frames, or faster",
        .age.as_millis()
    )]
    Evicted { received: usize, of: Announced, age: Duration },
}

/// How large a frame is to be, where that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Announced(Option<usize>);

impl std::fmt::Display for Announced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(bytes) => write!(f, "of {bytes}"),
            None => f.write_str("of unknown length"),
        }
    }
}

/// Reads the frames of a connection.
#[derive(Debug)]
pub(crate) struct FrameReader<R> {
    socket: R,
    budget: Arc<ReceiveBudget>,
    /// Most bytes of a body.
    limit: usize,
    /// Silence, or too little of a frame, for so long ends the connection.
    window: Duration,
    /// Bytes read that belong to no frame yet.
    buffer: BytesMut,
    /// A frame that does not fit the buffer.
    large: Option<Large>,
}

/// A large frame that has begun.
#[derive(Debug)]
struct Large {
    body: BytesMut,
    announced: usize,
    charge: Charge,
    began: Instant,
}

impl Large {
    /// When it ends if another frame waits for memory; `None`: it holds none that would help.
    fn evicted_at(&self) -> Option<Instant> {
        self.charge.is_some().then(|| self.began + Duration::from_millis(MAX_PRESSED_FRAME_MS))
    }
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) fn new(socket: R, limit: usize, window: Duration, budget: Arc<ReceiveBudget>) -> Self {
        Self { socket, budget, limit, window, buffer: BytesMut::with_capacity(FREE_BYTES), large: None }
    }

    /// Sets limit, window and budget of the frames from now on.
    pub(crate) fn begin_session(&mut self, limit: usize, window: Duration, budget: Arc<ReceiveBudget>) {
        (self.limit, self.window, self.budget) = (limit, window, budget);
    }

    /// The connection itself, to read bytes that are no frames.
    pub(crate) fn socket_mut(&mut self) -> &mut R {
        &mut self.socket
    }

    /// Reads the next frame. After an error there is none, and no memory is held.
    ///
    /// # Cancel safety
    ///
    /// Nothing of a frame is lost; the time that it may take begins again.
    pub(crate) async fn next(&mut self) -> Result<ReceivedFrame, FrameError> {
        let frame = self.receive().await;
        if frame.is_err() {
            self.large = None;
        }
        frame
    }

    async fn receive(&mut self) -> Result<ReceivedFrame, FrameError> {
        let mut window = ProgressWindow::begin(self.window);
        loop {
            if let Some(frame) = self.take()? {
                return Ok(frame);
            }
            if self.grow().await? {
                // The client could not send meanwhile.
                window = ProgressWindow::begin(self.window);
            }
            let had = self.received();
            match self.read(&mut window).await? {
                Some(0) if had == 0 => return Err(FrameError::Ended),
                Some(0) => return Err(FrameError::Truncated),
                // The first bytes of a frame begin its time.
                Some(_) if had == 0 => window = ProgressWindow::begin(self.window),
                Some(bytes) => window.brought += bytes,
                None => {}
            }
        }
    }

    /// Bytes of the frame that has begun.
    fn received(&self) -> usize {
        self.large.as_ref().map_or(self.buffer.len(), |large| LENGTH_BYTES + large.body.len())
    }

    /// Takes a frame that is complete.
    fn take(&mut self) -> Result<Option<ReceivedFrame>, FrameError> {
        if let Some(large) = self.large.take_if(|large| large.body.len() == large.announced) {
            return Ok(Some(ReceivedFrame { body: large.body, _charge: large.charge }));
        }
        let Some(announced) = self.announced().filter(|_| self.large.is_none()) else { return Ok(None) };
        if announced > self.limit {
            return Err(FrameError::Oversized { limit: self.limit });
        }
        if LENGTH_BYTES + announced <= self.buffer.len() {
            self.buffer.advance(LENGTH_BYTES);
            let body = self.buffer.split_to(announced);
            return Ok(Some(ReceivedFrame { body, _charge: Charge::default() }));
        }
        if LENGTH_BYTES + announced > FREE_BYTES {
            let mut body = BytesMut::with_capacity(FREE_BYTES);
            body.extend_from_slice(&self.buffer[LENGTH_BYTES..]);
            self.buffer.clear();
            self.large = Some(Large { body, announced, charge: Charge::default(), began: Instant::now() });
        }
        Ok(None)
    }

    /// The length of the frame that has begun, once it is known.
    fn announced(&self) -> Option<usize> {
        match &self.large {
            Some(large) => Some(large.announced),
            None => self.buffer.first_chunk().map(|length| u32::from_be_bytes(*length) as usize),
        }
    }

    /// Makes the buffer larger if it is full. Returns whether that had to wait for memory.
    async fn grow(&mut self) -> Result<bool, FrameError> {
        let Some(large) = &mut self.large else {
            self.buffer.reserve(FREE_BYTES - self.buffer.len());
            return Ok(false);
        };
        let (held, capacity) = (large.body.len(), large.body.capacity());
        if held < capacity.min(large.announced) {
            return Ok(false);
        }
        // Twice the bytes that have come, so that memory follows them.
        let more = capacity.min(large.announced - held);
        let evicted_at = large.evicted_at();
        let waited = tokio::select! {
            biased;
            waited = self.budget.charge(&mut large.charge, more) => waited,
            () = maybe(evicted_at) => return Err(self.evicted()),
        };
        let mut body = BytesMut::with_capacity(held + more);
        body.extend_from_slice(&large.body);
        large.body = body;
        Ok(waited)
    }

    fn evicted(&self) -> FrameError {
        let age = self.large.as_ref().map_or(Duration::ZERO, |large| large.began.elapsed());
        FrameError::Evicted { received: self.received(), of: Announced(self.announced()), age }
    }

    /// Reads some bytes; `None` if none have come yet and the wait may go on.
    async fn read(&mut self, window: &mut ProgressWindow) -> Result<Option<usize>, FrameError> {
        let held = self.buffer.len();
        let evicted_at = self.large.as_ref().and_then(Large::evicted_at);
        let evicted = async {
            maybe(evicted_at).await;
            self.budget.pressed().await;
        };
        let read = async {
            match &mut self.large {
                Some(large) => {
                    let missing = large.announced - large.body.len();
                    let free = large.body.capacity() - large.body.len();
                    self.socket.read_buf(&mut (&mut large.body).limit(missing.min(free))).await
                }
                None => self.socket.read_buf(&mut (&mut self.buffer).limit(FREE_BYTES - held)).await,
            }
        };
        tokio::select! {
            biased;
            read = read => return Ok(Some(read?)),
            () = sleep_until(window.until) => {}
            () = evicted => return Err(self.evicted()),
        }
        let least = least(self.window);
        if self.received() == 0 {
            return Err(FrameError::Silent(self.window));
        }
        if window.brought < least {
            let (brought, of) = (window.brought, Announced(self.announced()));
            return Err(FrameError::Slow { brought, of, window: self.window, least });
        }
        *window = ProgressWindow::begin(self.window);
        Ok(None)
    }
}

/// Completes at a time, if there is one.
async fn maybe(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The least that a frame brings, or a client takes, in so much time.
pub(crate) fn least(window: Duration) -> usize {
    usize::try_from(window.as_millis() * MIN_FRAME_RATE as u128 / 1_000).unwrap_or(usize::MAX).max(1)
}

/// The time in which a frame has to bring something.
#[derive(Debug)]
struct ProgressWindow {
    until: Instant,
    brought: usize,
}

impl ProgressWindow {
    fn begin(length: Duration) -> Self {
        Self { until: Instant::now() + length, brought: 0 }
    }
}
