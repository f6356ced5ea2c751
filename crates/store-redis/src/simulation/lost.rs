//! A key that the store loses although its sequence number shows no loss: as when a node fails over
//! while it takes over a hash slot. Whichever owner comes to read the slot says so, once.

use mtimer_types::Time;

use super::arbitrary::DAY;
use super::run::{Check, Run, acquire_next, alive, block_on, pass, same};
use crate::keyspace::keys::SlotKey;

/// One run.
pub(super) fn is_told_of(seed: u64) -> Check {
    block_on(async {
        let mut run = Run::new(seed, 0).await?;
        run.calls(30).await?;
        let mut slots = run.server.state().data.keys();
        // Those of staged timers are not loaded.
        let slot = |key: &str| key.strip_prefix("slot:")?.rsplit(':').next().and_then(SlotKey::parse);
        slots.retain(|key| slot(key).is_some_and(|slot| !Time::from_ms(slot.start).is_staged()));
        slots.sort_unstable();
        if slots.is_empty() {
            return Ok(());
        }
        // Another owner takes over before the loss, after it, both or neither: the one that reads
        // the slot has filed its timers, has found it full, or has found it empty.
        let [before, after] = [run.random.one_in(2), run.random.one_in(2)];
        let lost = &slots[run.random.below(slots.len() as u64) as usize];
        if before {
            next_owner(&mut run).await?;
        }
        run.server.state().data.remove(lost.as_bytes());
        if after {
            next_owner(&mut run).await?;
        }
        for _ in 0..2 {
            alive(run.owner.unload(Time::ZERO).await)?;
            run.load_all(run.now + 4_000 * DAY).await?;
        }
        next_owner(&mut run).await?;
        run.load_all(run.now + 4_000 * DAY).await?;
        let told = run.shared.log_budget.status().lost_slots;
        same(&format!("slots that were lost of {slots:?}: {lost}, {before}, {after}"), &told, &1)
    })
}

async fn next_owner(run: &mut Run) -> Check {
    let epoch = run.owner.epoch();
    run.owner = acquire_next(&run.server, &run.shared, epoch, epoch, &mut run.random).await?;
    Ok(())
}

#[test]
fn a_slot_that_the_store_loses_is_told_of_once() {
    pass("a_slot_that_the_store_loses_is_told_of_once", is_told_of);
}
