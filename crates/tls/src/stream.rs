//! One type for connections with and without TLS.
//!
//! Invariant: a side that drops an encrypted connection tells the other that it ends, as far as
//! the system takes that at once: without it the other side cannot tell an end from a lost
//! connection.

use std::io::{self, IoSlice, Write};
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::ConnectionCommon;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_rustls::TlsStream;

/// A connection. Data written to an encrypted one is on its way only after a flush.
#[derive(Debug)]
pub enum Stream {
    /// Not encrypted.
    Plain(TcpStream),
    /// Encrypted.
    Tls(Box<Encrypted>),
}

/// The half of a [`Stream`] that is read.
#[derive(Debug)]
pub enum ReadHalf {
    /// Not encrypted.
    Plain(OwnedReadHalf),
    /// Encrypted.
    Tls(tokio::io::ReadHalf<Box<Encrypted>>),
}

/// The half of a [`Stream`] that is written.
#[derive(Debug)]
pub enum WriteHalf {
    /// Not encrypted.
    Plain(OwnedWriteHalf),
    /// Encrypted.
    Tls(tokio::io::WriteHalf<Box<Encrypted>>),
}

/// An encrypted connection, which says when it ends.
#[derive(Debug)]
pub struct Encrypted(TlsStream<TcpStream>);

impl Encrypted {
    pub(crate) fn new(stream: impl Into<TlsStream<TcpStream>>) -> Self {
        Self(stream.into())
    }
}

impl Deref for Encrypted {
    type Target = TlsStream<TcpStream>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for Encrypted {
    fn drop(&mut self) {
        match &mut self.0 {
            TlsStream::Client(stream) => {
                let (socket, session) = stream.get_mut();
                say_goodbye(socket, session);
            }
            TlsStream::Server(stream) => {
                let (socket, session) = stream.get_mut();
                say_goodbye(socket, session);
            }
        }
    }
}

/// Sends the waiting data, and that nothing follows. A socket that is full or broken is left.
fn say_goodbye<T>(socket: &TcpStream, session: &mut ConnectionCommon<T>) {
    session.send_close_notify();
    while session.wants_write() && matches!(session.write_tls(&mut AtOnce(socket)), Ok(1..)) {}
}

/// Writes as much as the system takes without waiting.
struct AtOnce<'a>(&'a TcpStream);

impl Write for AtOnce<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream {
    /// Splits it, so that one task can read and another write.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        match self {
            Self::Plain(socket) => {
                let (read, write) = socket.into_split();
                (ReadHalf::Plain(read), WriteHalf::Plain(write))
            }
            Self::Tls(stream) => {
                let (read, write) = tokio::io::split(stream);
                (ReadHalf::Tls(read), WriteHalf::Tls(write))
            }
        }
    }

    /// Returns whether the other side has shown a certificate, which was then checked.
    pub fn has_peer_certificate(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.get_ref().1.peer_certificates().is_some(),
        }
    }
}

macro_rules! read {
    ($ty:ty) => {
        impl AsyncRead for $ty {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::Plain(plain) => Pin::new(plain).poll_read(cx, buf),
                    Self::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
                }
            }
        }
    };
}

macro_rules! write {
    ($ty:ty) => {
        impl AsyncWrite for $ty {
            fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    Self::Plain(plain) => Pin::new(plain).poll_write(cx, buf),
                    Self::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
                }
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    Self::Plain(plain) => Pin::new(plain).poll_write_vectored(cx, bufs),
                    Self::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, bufs),
                }
            }

            fn is_write_vectored(&self) -> bool {
                match self {
                    Self::Plain(plain) => plain.is_write_vectored(),
                    Self::Tls(tls) => tls.is_write_vectored(),
                }
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::Plain(plain) => Pin::new(plain).poll_flush(cx),
                    Self::Tls(tls) => Pin::new(tls).poll_flush(cx),
                }
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    Self::Plain(plain) => Pin::new(plain).poll_shutdown(cx),
                    Self::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
                }
            }
        }
    };
}

impl AsyncRead for Encrypted {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(cx)
    }
}

read!(Stream);
write!(Stream);
read!(ReadHalf);
write!(WriteHalf);
