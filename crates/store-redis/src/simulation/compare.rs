//! Compares everything of a partition that can be seen with the model.

use std::collections::{BTreeMap, BTreeSet};

use mtimer_store::conformance::check_spans;
use mtimer_store::{
    Census, Counts, CountsRange, DeadFilter, ForecastRange, ListPage, Listed, Listing, Load, LoadedTimer,
    Pending, PendingRange, Place, Record,
};
use mtimer_types::{Destination, Filter, Target, Time, TimerId};

use super::arbitrary::DAY;
use super::run::{Check, FORGET, Run, alive, same};

impl Run {
    pub(super) async fn get(&mut self, target: &Target) -> Check {
        let seen = alive(self.owner.get(target.clone()).await)?;
        let known = self.model.find(target).map(|id| {
            let entry = &self.model.timers[&id];
            (entry.record(), entry.place)
        });
        let plain = |row: Option<(Record, Place)>| row.map(|(record, place)| (plain(record, place), place));
        same(&format!("get {target:?}"), &plain(seen), &plain(known))
    }

    /// Compares everything that can be seen. Leaves everything loaded.
    pub(super) async fn check(&mut self) -> Check {
        self.log.push("check".into());
        // Before everything is loaded, and after it.
        self.check_forecast().await?;
        self.check_counts().await?;
        self.check_pending().await?;
        let far = self.now + 4_000 * DAY;
        alive(self.owner.unload(Time::ZERO).await)?;
        let pending = self.load_all(far).await?;
        let expected: BTreeMap<_, _> =
            self.model.pending().into_iter().map(|timer| (timer.record.timer.id, timer)).collect();
        same("pending", &pending, &expected)?;
        (self.wheel, self.horizon) = (pending.into_iter().map(|(id, t)| (id, t.fire)).collect(), far);
        self.check_pending().await?;
        self.check_counts().await?;
        self.check_listings().await?;
        let census = Census { residue: 0, ..alive(self.owner.census().await)? };
        same("the census", &census, &self.model.census())?;
        let controls = alive(self.owner.controls().await)?;
        same("the bulk jobs", &controls.bulks.all(), &self.model.jobs.as_slice())?;
        let settings: Vec<_> = controls.settings.all().cloned().collect();
        same("the settings", &settings, &self.model.settings())?;
        for timer in self.timers.clone() {
            self.get(&Target::Id(timer.id)).await?;
            if let Some(key) = timer.key {
                self.get(&Target::Key(timer.dest, key)).await?;
            }
        }
        Ok(())
    }

    /// Compares the pending timers as they are listed: all, those of each destination, retries.
    pub(super) async fn check_pending(&mut self) -> Check {
        let pending = self.model.filed();
        let mut dests: Vec<_> = self.timers.iter().map(|timer| timer.dest.clone()).collect();
        dests.sort();
        dests.dedup();
        let all = PendingRange::of(Filter::default(), 3);
        let retries = PendingRange { retrying: Some(true), ..all.clone() };
        let of_each = dests.iter().map(|dest| PendingRange::of(Filter::of(dest), 5));
        for mut range in [all, retries].into_iter().chain(of_each) {
            let row = |t: &LoadedTimer| Pending { record: t.record.clone(), fire: t.fire, tier: t.tier };
            let accepted = pending.iter().filter(|t| range.has(&t.record, t.fire));
            let mut expected: Vec<_> = accepted.map(row).collect();
            expected.sort_by_key(Pending::position);
            let mut listed = Vec::new();
            loop {
                let page = alive(self.owner.pending(range.clone()).await)?;
                listed.extend(page.rows);
                let Some(next) = page.next else { break };
                range.from = next;
            }
            same(&format!("the list of {:?}", range.filter), &listed, &expected)?;
        }
        Ok(())
    }

    /// Compares when timers are due, once that is exact: of all, and of each destination.
    async fn check_forecast(&mut self) -> Check {
        let pending = self.model.filed();
        let dests: BTreeSet<_> = pending.iter().map(|timer| timer.record.timer.dest.clone()).collect();
        let filters = [Filter::default()].into_iter().chain(dests.iter().map(Filter::of));
        for filter in filters {
            let of = pending.iter().filter(|timer| filter.accepts_destination(&timer.record.timer.dest));
            let fires: Vec<_> = of.map(|timer| timer.fire).collect();
            let range = ForecastRange { filter, ..ForecastRange::of(DAY) };
            let spans = loop {
                let page = alive(self.owner.forecast(range.clone()).await)?;
                same("where a forecast goes on", &page.next, &None)?;
                if page.uncounted == 0 {
                    break page.spans;
                }
                alive(self.owner.count_some().await)?;
            };
            check_spans(&spans, &fires, DAY)?;
        }
        Ok(())
    }

    /// Compares the counts of destinations, once they are exact.
    async fn check_counts(&mut self) -> Check {
        same("the counts", &self.counts().await?, &self.model.counts().into_iter().collect())
    }

    /// The counts of destinations, once they are exact.
    pub(super) async fn counts(&mut self) -> Check<Vec<(Destination, Counts)>> {
        let range = CountsRange::of(1_000);
        loop {
            let page = alive(self.owner.counts(range.clone()).await)?;
            if page.uncounted == 0 {
                return Ok(page.rows);
            }
            alive(self.owner.count_some().await)?;
        }
    }

    pub(super) async fn load_all(&mut self, far: Time) -> Check<BTreeMap<TimerId, LoadedTimer>> {
        let mut pending = BTreeMap::new();
        for _ in 0..10_000 {
            let load = Load { until: far, max_timers: 1_000, max_bytes: 1 << 20, claim: None };
            let loaded = alive(self.owner.load(load).await)?;
            pending.extend(loaded.timers.into_iter().map(|timer| (timer.record.timer.id, timer)));
            if loaded.horizon >= far {
                return Ok(pending);
            }
        }
        Err("loading does not come to an end".into())
    }

    async fn list(&mut self, of: Listed) -> Check<ListPage> {
        alive(self.owner.page(Listing { of, cursor: 0, limit: 1_000 }).await)
    }

    async fn check_listings(&mut self) -> Check {
        let sorted = |mut rows: Vec<Record>, place: Place| {
            rows.sort_by_key(|record| record.timer.id);
            rows.into_iter().map(|record| plain(record, place)).collect::<Vec<_>>()
        };
        let mut parked = Vec::new();
        for (dest, count) in alive(self.owner.parked_destinations().await)? {
            let ListPage::Parked(page) = self.list(Listed::Parked(dest)).await? else { return other_kind() };
            same("a count of parked timers", &count, &(page.rows.len() as u64))?;
            parked.extend(page.rows);
        }
        same("parked", &sorted(parked, Place::Parked), &sorted(self.model.parked(), Place::Parked))?;
        let ListPage::Taken(taken) = self.list(Listed::Taken).await? else { return other_kind() };
        let taken = taken.rows.into_iter().map(|row| row.record).collect();
        let known = self.model.taken().into_iter().map(|row| row.record).collect();
        same("taken", &sorted(taken, Place::Dead), &sorted(known, Place::Dead))?;
        let all = self.list(Listed::Unconfirmed).await?;
        let ListPage::Unconfirmed(unconfirmed) = all else { return other_kind() };
        let of = |row: &mtimer_store::Unconfirmed| (row.since, row.record.timer.id, row.epoch);
        same(
            "unconfirmed",
            &unconfirmed.rows.iter().map(of).collect::<Vec<_>>(),
            &self.model.unconfirmed().iter().map(of).collect::<Vec<_>>(),
        )?;
        let all = self.list(Listed::Dead(DeadFilter::default())).await?;
        let ListPage::Dead(dead) = all else { return other_kind() };
        let of = |row: &mtimer_store::DeadLetter| {
            (row.died, row.record.timer.id, row.reason, row.record.progress.last_error.clone())
        };
        same(
            "dead",
            &dead.rows.iter().map(of).collect::<Vec<_>>(),
            &self.model.dead().iter().map(of).collect::<Vec<_>>(),
        )
    }

    /// Checks that nothing is left of any timer.
    pub(super) async fn is_empty(&mut self) -> Check {
        let census = alive(self.owner.census().await)?;
        same("the census of what was drained", &census, &Census::default())?;
        self.pass(FORGET);
        let mut state = self.server.state();
        let now = state.now;
        state.data.expire(now);
        let left: Vec<_> = state.data.keys();
        let stays = |key: &&String| {
            ["owner:", "dest:", "bulk:", "settings:"].iter().any(|kind| key.starts_with(kind))
        };
        let left: Vec<_> = left.iter().filter(|key| !stays(key)).collect();
        same("what is left", &left, &Vec::new())
    }
}

fn other_kind() -> Check {
    Err("a page of another listing".into())
}

/// Of a timer that is not pending nobody can tell when it was filed, of one that is taken or dead
/// nobody asks whether it was stopped.
pub(super) fn plain(mut record: Record, place: Place) -> Record {
    if !matches!(place, Place::Pending { .. }) {
        record.progress.fresh = None;
    }
    if matches!(place, Place::Taken { .. } | Place::Dead) {
        record.progress.stopped = false;
    }
    record
}
