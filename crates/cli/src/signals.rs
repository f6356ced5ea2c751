//! Signals: the first INT or TERM asks for a good end, the second ends the process at once. HUP
//! asks a daemon to read files again, and ends commands that show something at a terminal.

use tokio_util::sync::CancellationToken;

use super::exit::{Exit, Failure};
use super::output::note;

/// Cancelled by the first signal that asks for an end.
#[derive(Clone, Debug)]
pub(crate) struct StopSignal {
    token: CancellationToken,
}

impl StopSignal {
    /// Starts to look for INT and TERM. `what` says the effect of the first of them.
    pub(crate) fn on_signals(what: &'static str) -> Result<Self, Failure> {
        Self::start(what, false)
    }

    /// Starts to look for HUP, too, which comes when the terminal is closed: without it, temporary
    /// folders and keys would stay. Under `nohup` it is ignored.
    pub(crate) fn on_signals_and_hangup(what: &'static str) -> Result<Self, Failure> {
        Self::start(what, !hangup_is_ignored())
    }

    fn start(what: &'static str, hangup: bool) -> Result<Self, Failure> {
        let token = CancellationToken::new();
        watch(token.clone(), what, hangup).map_err(unwatched)?;
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
        signal(SignalKind::hangup()).map(|signal| Self { signal }).map_err(unwatched)
    }

    #[cfg(not(unix))]
    pub(crate) fn watch() -> Result<Self, Failure> {
        Ok(Self {})
    }

    /// Waits for the next one. Nothing is lost if this is dropped.
    #[cfg(unix)]
    pub(crate) async fn next(&mut self) {
        if self.signal.recv().await.is_none() {
            std::future::pending().await
        }
    }

    #[cfg(not(unix))]
    pub(crate) async fn next(&mut self) {
        std::future::pending().await
    }
}

fn unwatched(error: std::io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("cannot watch for signals: {error}"))
}

/// Whether this process was started so that HUP does nothing, as by `nohup`. Where there is no
/// `/proc` it counts as not ignored.
fn hangup_is_ignored() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores_hangup(&status))
}

/// Reads the mask of ignored signals; HUP is signal 1, the lowest bit.
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

#[cfg(unix)]
fn watch(token: CancellationToken, what: &'static str, hangup: bool) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut int = signal(SignalKind::interrupt())?;
    let mut term = signal(SignalKind::terminate())?;
    let mut hup = hangup.then(|| signal(SignalKind::hangup())).transpose()?;
    // Ends with the process.
    tokio::spawn(async move {
        loop {
            let hangup = async {
                match &mut hup {
                    Some(hup) => hup.recv().await,
                    None => std::future::pending().await,
                }
            };
            let number = tokio::select! {
                _ = int.recv() => 2,
                _ = term.recv() => 15,
                _ = hangup => 1,
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
fn watch(token: CancellationToken, what: &'static str, _hangup: bool) -> std::io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_says_whether_hup_is_among_them() {
        for (mask, ignored) in
            [("0000000000000001", true), ("0000000000001001", true), ("0000000000001000", false)]
        {
            let status = format!("Name:\tmtimer\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\nSigCgt:\t0\n");
            assert_eq!(ignores_hangup(&status), ignored, "{mask}");
        }
        assert!(!ignores_hangup("") && !ignores_hangup("SigIgn:\tx"));
    }
}
