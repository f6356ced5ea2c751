//! Waiting for an instant more exactly than the runtime's timers, which round up to the next
//! millisecond.
//!
//! Purpose: a timer of the kernel (`timerfd`) that the runtime polls beside its sockets, so that a
//! worker that waits for either is woken at the instant. A thread that slept until then took more:
//! in `bench lateness` at 10,000/s the broker now takes 14 µs a timer instead of 19, and p50 is
//! 0.10 ms instead of 0.20 (docs/performance-notes.md). While all workers are busy it is polled as
//! often as the runtime's `event_interval` says.
//! Invariant: it is a help, not the truth. The runtime's own timer runs beside it: where there is
//! no `timerfd` (on systems other than Linux), or time is paused in a test, of which it knows
//! nothing, a wait ends all the same.
//! Not in here: more than one waiter, long waits.

use std::io;

use tokio::time::Instant;

/// A timer that is set to one instant at a time.
pub(crate) struct Precise {
    timer: KernelTimer,
    /// The instant that the timer was set to last: it is set to each instant once.
    set_to: Option<Instant>,
}

impl Precise {
    /// Creates the timer.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { timer: KernelTimer::new()?, set_to: None })
    }

    /// Completes at `at` or a little later. It may complete early: compare the clock.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again.
    pub(crate) async fn reached(&mut self, at: Instant) {
        if self.set_to != Some(at) {
            self.set_to = Some(at);
            self.timer.set(at.saturating_duration_since(Instant::now()));
        }
        tokio::select! {
            () = self.timer.expired() => {}
            () = tokio::time::sleep_until(at) => {}
        }
    }
}

#[cfg(target_os = "linux")]
use linux::KernelTimer;

#[cfg(target_os = "linux")]
mod linux {
    use std::future::pending;
    use std::io;
    use std::time::Duration;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::net::unix::pipe::Receiver;

    /// The shortest time that it can be set to: zero would stop it.
    const SHORTEST: Duration = Duration::from_nanos(1);
    const NEVER: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

    /// `timerfd_create(2)`. The runtime waits for it and reads it as it does with a pipe.
    pub(super) struct KernelTimer(Receiver);

    impl KernelTimer {
        pub(super) fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            Receiver::from_owned_fd_unchecked(timer).map(Self)
        }

        /// It expires once, after this time, and not when it was set to before.
        pub(super) fn set(&self, after: Duration) {
            let it_value = Timespec::try_from(after.max(SHORTEST)).unwrap_or(NEVER);
            let once = Itimerspec { it_interval: NEVER, it_value };
            // The kernel refuses only times that are none. The runtime's timer would do.
            let _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once);
        }

        /// Completes when it has expired; perhaps at once if it expired before it was set last.
        pub(super) async fn expired(&self) {
            // Read until there is nothing left: then the runtime waits for it again.
            let error = match self.0.readable().await {
                Ok(()) => loop {
                    if let Err(error) = self.0.try_read(&mut [0; 8]) {
                        break error;
                    }
                },
                Err(error) => error,
            };
            if error.kind() != io::ErrorKind::WouldBlock {
                // It cannot be read, or the runtime shuts down: the runtime's timer has to do.
                pending().await
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
use elsewhere::KernelTimer;

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use std::future::pending;
    use std::io;
    use std::time::Duration;

    /// There is none: see the module.
    pub(super) struct KernelTimer;

    impl KernelTimer {
        pub(super) fn new() -> io::Result<Self> {
            Ok(Self)
        }

        pub(super) fn set(&self, _after: Duration) {}

        pub(super) async fn expired(&self) {
            pending().await
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_millis(1);
    const HOUR: Duration = Duration::from_secs(3_600);

    /// Real time: the kernel knows no other.
    #[tokio::test]
    async fn the_kernels_timer_expires_once_for_what_it_was_set_to_last() {
        let timer = KernelTimer::new().unwrap();
        let expires = || timeout(HOUR, timer.expired());
        for after in [SOON, Duration::ZERO, SOON] {
            timer.set(after);
            expires().await.expect("it expires each time that it is set");
        }
        timer.set(HOUR);
        timer.set(SOON);
        expires().await.expect("the last time counts");
        timer.set(SOON);
        timer.set(HOUR);
        let again = timeout(Duration::from_millis(20), timer.expired()).await;
        assert!(again.is_err(), "it expired for what it is not set to any more");
    }
}
