//! Lines for standard output, written from a thread of their own.

use std::io::{self, Write};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::exit::{Exit, Failure};

/// A line, and who waits until it is written.
type QueuedLine = (String, oneshot::Sender<()>);

/// Writes lines from a thread of its own: a reader that is slow holds up handlers, and nothing
/// else.
pub(crate) struct Printer {
    lines: mpsc::Sender<QueuedLine>,
    thread: Mutex<Option<JoinHandle<io::Result<()>>>>,
    /// Cancelled when the thread has let go of every line that it was given.
    closed: CancellationToken,
}

/// Lines that wait to be written.
const MAX_LINES: usize = 1_024;

impl Printer {
    /// Also returns a token that is cancelled when nobody reads any more.
    pub(crate) fn start(out: impl Write + Send + 'static) -> Result<(Self, CancellationToken), Failure> {
        let (lines, waiting) = mpsc::channel(MAX_LINES);
        let closed = CancellationToken::new();
        let token = closed.clone();
        let write = move || {
            // Also when it panics.
            let _ended = token.drop_guard();
            write_lines(waiting, out)
        };
        let thread = std::thread::Builder::new()
            .name("mtimer-output".to_owned())
            .spawn(write)
            .map_err(|e| Failure::new(Exit::Failed, format!("cannot start the output thread: {e}")))?;
        Ok((Self { lines, thread: Some(thread).into(), closed: closed.clone() }, closed))
    }

    /// Whether the line was written.
    pub(crate) async fn print(&self, line: String) -> bool {
        match self.lines.reserve().await {
            Ok(place) => self.put(place, line).await,
            Err(_) => false,
        }
    }

    /// Hands a line in; whether it was written. One whose place was taken before the thread ended,
    /// and used after, is left lying there for as long as the printer lives: nobody would say
    /// anything about it.
    async fn put(&self, place: mpsc::Permit<'_, QueuedLine>, line: String) -> bool {
        let (done, mut written) = oneshot::channel();
        place.send((line, done));
        tokio::select! {
            biased;
            written = &mut written => written.is_ok(),
            () = self.closed.cancelled() => written.try_recv().is_ok(),
        }
    }

    /// How the writing has gone. Lines that come later are not written.
    pub(crate) fn end(&self) -> io::Result<()> {
        if !self.closed.is_cancelled() {
            return Ok(());
        }
        let thread = self.thread.lock().take();
        thread.map_or(Ok(()), |thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
        })
    }
}

fn write_lines(mut waiting: mpsc::Receiver<QueuedLine>, mut out: impl Write) -> io::Result<()> {
    let mut written = Vec::new();
    while let Some(first) = waiting.blocking_recv() {
        let mut next = Some(first);
        let mut together = String::new();
        while let Some((line, done)) = next {
            together += &line;
            together.push('\n');
            written.push(done);
            next = if written.len() < MAX_LINES { waiting.try_recv().ok() } else { None };
        }
        out.write_all(together.as_bytes())?;
        out.flush()?;
        for done in written.drain(..) {
            // A handler that is gone does not want to know.
            let _ = done.send(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Nobody reads, or worse.
    struct Broken(fn() -> io::Result<usize>);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            self.0()
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Longer than any of this takes.
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_line_that_comes_as_the_reader_goes_is_not_waited_for() {
        let gone = || Err(io::ErrorKind::BrokenPipe.into());
        let (printer, closed) = Printer::start(Broken(gone)).unwrap();
        let place = printer.lines.reserve().await.unwrap();
        assert!(!printer.print("first".to_owned()).await);
        closed.cancelled().await;
        let late = tokio::time::timeout(LONG, printer.put(place, "late".to_owned())).await;
        assert_eq!(late, Ok(false));
        assert!(!printer.print("later".to_owned()).await);
        assert_eq!(printer.end().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_writer_that_panics_says_that_it_is_gone() {
        let (printer, closed) = Printer::start(Broken(|| panic!("on purpose"))).unwrap();
        assert!(!printer.print("first".to_owned()).await);
        tokio::time::timeout(LONG, closed.cancelled()).await.expect("it is told");
        assert!(printer.end().is_err());
    }

    #[tokio::test]
    async fn what_was_written_is_said_to_be() {
        let (printer, closed) = Printer::start(io::sink()).unwrap();
        assert!(printer.print("first".to_owned()).await && printer.print("second".to_owned()).await);
        assert!(!closed.is_cancelled());
        assert!(printer.end().is_ok());
    }
}
