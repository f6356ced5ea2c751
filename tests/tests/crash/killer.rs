//! Kills the broker at moments that hurt.

use std::time::{Duration, Instant};

use mtimer_client::Client;
use mtimer_tests::{Broker, Recorder, host_ms};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::Size;

/// How long a kill waits for a moment when there is something of everything.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How far back a delivery may be that a handler is still busy with.
const IN_HANDS_MS: u64 = 2_000;

/// What the broker had when it was killed, summed over all kills.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Met {
    pending: u64,
    loaded: u64,
    in_flight: u64,
    retrying: u64,
    /// Kills right after a start, while timers were being loaded.
    at_start: u32,
}

impl Met {
    pub(crate) fn all_kinds(&self) -> bool {
        self.pending > 0 && self.loaded > 0 && self.in_flight > 0 && self.retrying > 0 && self.at_start > 0
    }
}

/// Kills and starts it, spread over the span of the load; every third kill comes right after a
/// start.
pub(crate) async fn kill_again_and_again(
    broker: &mut Broker,
    control: &Client,
    recorder: &Recorder,
    size: Size,
    seed: u64,
) -> Met {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x6b69_6c6c);
    let mut met = Met::default();
    let gap = size.span_ms / u64::from(size.kills);
    for kill in 0..size.kills {
        if kill % 3 == 1 {
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..80))).await;
            met.at_start += 1;
        } else {
            tokio::time::sleep(Duration::from_millis(rng.random_range(gap / 2..gap))).await;
            look(control, &mut met).await;
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..30))).await;
        }
        let from = host_ms();
        // Blocks this task's thread for a moment, not those of the clients.
        broker.kill();
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..300))).await;
        broker.restart();
        cancel_what_was_sent(broker, recorder, from).await;
        recorder.fault(from, format!("kill {} of the broker", kill + 1));
    }
    met
}

/// Cancels, before anybody else is back, what the killed broker had sent: only its claims in the
/// store can tell the new one that it is too late.
async fn cancel_what_was_sent(broker: &Broker, recorder: &Recorder, killed: u64) {
    let client = broker.client().await;
    let cancels = recorder.in_hands(killed - IN_HANDS_MS).into_iter().map(|(serial, id)| {
        let client = &client;
        async move {
            let asked = host_ms();
            recorder.cancelled(serial, asked, &client.cancel(id).await);
        }
    });
    futures_util::future::join_all(cancels).await;
    client.close().await.unwrap();
}

/// Waits for a moment when timers are pending, in delivery and in retry.
async fn look(control: &Client, met: &mut Met) {
    let began = Instant::now();
    while began.elapsed() < TIMEOUT {
        let Ok(s) = control.status().await else { continue };
        if s.pending > 0 && s.in_flight > 0 && s.retrying > 0 {
            met.pending += s.pending;
            met.loaded += s.loaded;
            met.in_flight += s.in_flight;
            met.retrying += s.retrying;
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
