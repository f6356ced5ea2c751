//! Being told to stop: the first signal asks for a good end, the second ends the process at once.

use tokio_util::sync::CancellationToken;

use super::exit::{Exit, Failure};
use super::output::note;

/// Cancelled by the first INT or TERM.
#[derive(Clone, Debug)]
pub(crate) struct StopSignal {
    token: CancellationToken,
}

impl StopSignal {
    /// Starts to look for signals. `what` says what happens at the first of them.
    pub(crate) fn on_signals(what: &'static str) -> Result<Self, Failure> {
        let token = CancellationToken::new();
        watch(token.clone(), what)
            .map_err(|e| Failure::new(Exit::Failed, format!("cannot watch for signals: {e}")))?;
        Ok(Self { token })
    }

    pub(crate) async fn asked(&self) {
        self.token.cancelled().await;
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.token.is_cancelled()
    }

    /// The result of `work`, or `None` if told to stop before it came.
    pub(crate) async fn unless<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            result = work => Some(result),
            () = self.asked() => None,
        }
    }
}

/// The HUPs that come from here on. They no longer end the process. Only Unix has them.
pub(crate) struct Hangups {
    #[cfg(unix)]
    signal: tokio::signal::unix::Signal,
}

impl Hangups {
    #[cfg(unix)]
    pub(crate) fn watch() -> Result<Self, Failure> {
        use tokio::signal::unix::{SignalKind, signal};
        let signal = signal(SignalKind::hangup());
        let failed = |e| Failure::new(Exit::Failed, format!("cannot watch for signals: {e}"));
        signal.map(|signal| Self { signal }).map_err(failed)
    }

    #[cfg(not(unix))]
    pub(crate) fn watch() -> Result<Self, Failure> {
        Ok(Self {})
    }

    /// Does something at each, without an end.
    #[cfg(unix)]
    pub(crate) async fn each(mut self, act: impl Fn()) {
        while self.signal.recv().await.is_some() {
            act();
        }
        std::future::pending().await
    }

    #[cfg(not(unix))]
    pub(crate) async fn each(self, _act: impl Fn()) {
        std::future::pending().await
    }
}

#[cfg(unix)]
fn watch(token: CancellationToken, what: &'static str) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut int = signal(SignalKind::interrupt())?;
    let mut term = signal(SignalKind::terminate())?;
    // Ends with the process.
    tokio::spawn(async move {
        loop {
            let number = tokio::select! {
                _ = int.recv() => 2,
                _ = term.recv() => 15,
            };
            if token.is_cancelled() {
                std::process::exit(128 + number);
            }
            note(&format!("{what}; once more to end at once"));
            token.cancel();
        }
    });
    Ok(())
}

#[cfg(not(unix))]
fn watch(token: CancellationToken, what: &'static str) -> std::io::Result<()> {
    // Ends with the process.
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            if token.is_cancelled() {
                std::process::exit(130);
            }
            note(&format!("{what}; once more to end at once"));
            token.cancel();
        }
    });
    Ok(())
}
