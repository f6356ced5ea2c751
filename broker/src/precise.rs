//! Waiting for an instant more exactly than the runtime's timers, which round up to the next
//! millisecond.
//!
//! Purpose: a timer of the kernel (`timerfd`) that the runtime polls beside its sockets, so that a
//! worker that waits for either is woken at the instant.
//! Invariant: it is a help, not the truth. The runtime's own timer runs beside it: where there is
//! no `timerfd` (on systems other than Linux), or time is paused in a test, of which it knows
//! nothing, a wait ends all the same.
//! Not in here: more than one waiter, long waits.

use std::io;

use tokio::time::Instant;

/// A timer that is set to one instant at a time.
pub(crate) struct Precise {
    timer: KernelTimer,
    /// The instant that the timer was set to last: to each once.
    given: Option<Instant>,
}

impl Precise {
    /// Creates the timer.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { timer: KernelTimer::new()?, given: None })
    }

    /// Completes at `at` or a little later; now and then too early, so compare the clock.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again.
    pub(crate) async fn reached(&mut self, at: Instant) {
        if self.given != Some(at) {
            self.given = Some(at);
            self.timer.set(at.saturating_duration_since(Instant::now()));
        }
        tokio::select! {
            () = self.timer.rang() => {}
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

        /// It rings once, after this time.
        pub(super) fn set(&self, after: Duration) {
            let it_value = Timespec::try_from(after.max(SHORTEST)).unwrap_or(NEVER);
            let once = Itimerspec { it_interval: NEVER, it_value };
            // The kernel refuses only times that are none. If it does, the runtime's timer rings.
            let _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once);
        }

        /// Completes when it has rung; now and then too early.
        pub(super) async fn rang(&self) {
            if self.0.readable().await.is_err() {
                // The runtime is shutting down.
                return pending().await;
            }
            // How often it has rung does not matter, nor if it has not: it was set again meanwhile.
            let _ = self.0.try_read(&mut [0; 8]);
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

        pub(super) async fn rang(&self) {
            pending().await
        }
    }
}
