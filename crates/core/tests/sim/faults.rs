//! Faults, and when each is healed.

use mtimer_core::Input;
use mtimer_types::PartitionId;

use super::check::FORGETFUL_MS;
use super::lanes::State;
use super::{Event, PARTITIONS, World};

/// Something that ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Heal {
    Way(u16),
    Full(u16),
    /// A store's clock answers again.
    StoreClock(usize),
    /// A store's clock is set right, by as many µs.
    StoreClockStep(usize, i64),
}

impl World {
    /// One fault, and the time of the next.
    pub(super) fn disturb(&mut self) {
        if self.ms >= self.faulty_until {
            return;
        }
        let loading = self.ms < self.plan.load_ms;
        let pause = if loading {
            self.rng.between(50, 2_500)
        } else {
            self.rng.log_between(1_000, self.plan.far_ms / 3)
        };
        self.at(pause, Event::Fault);
        self.disturbed = self.ms;
        match self.rng.below(100) {
            0..=19 if self.plan.has_handovers() => self.move_one(),
            20..=24 if self.plan.has_handovers() => self.stop_one(),
            25..=44 if self.plan.has_clocks() => self.disturb_clock(),
            _ if !self.plan.has_faults() => {}
            _ if self.plan.only_cuts => {
                let b = self.broker();
                self.cut_off(b);
                self.reassign(b, Some(b));
            }
            25..=69 => self.disturb_store(),
            70..=89 => self.disturb_client(),
            _ => self.disturb_broker(),
        }
    }

    fn partition(&mut self) -> u16 {
        self.rng.below(u64::from(PARTITIONS)) as u16
    }

    fn broker(&mut self) -> usize {
        self.rng.below(self.brokers.len() as u64) as usize
    }

    fn move_one(&mut self) {
        let (p, to) = (self.partition(), self.broker());
        if self.brokers[to].process.as_ref().is_some_and(|x| !x.stopping) {
            self.stats.fault("handover");
            self.hand_over(p, to, None);
        }
    }

    /// A broker stops gracefully, and starts again; others take over if there are any.
    fn stop_one(&mut self) {
        let b = self.broker();
        let Some(p) = self.brokers[b].process.as_mut().filter(|p| !p.stopping && !p.paused) else { return };
        p.stopping = true;
        let inc = p.inc;
        self.stats.fault("stop");
        self.history.note(self.ms, None, || format!("broker {b} stops"));
        self.arrive(b, inc, Input::Drain);
        let after = self.rng.between(1, 800);
        self.at(after, Event::Release(b, inc));
        self.reassign(b, None);
    }

    pub(super) fn release(&mut self, b: usize, inc: u64) {
        if let Some(p) = self.process(b, inc) {
            p.releasing = true;
            self.arrive(b, inc, Input::Release);
        }
    }

    /// A broker's partitions go to others that run.
    fn reassign(&mut self, b: usize, deaf: Option<usize>) {
        let others: Vec<usize> = (0..self.brokers.len())
            .filter(|x| *x != b && self.brokers[*x].process.as_ref().is_some_and(|p| !p.stopping))
            .collect();
        for p in (0..PARTITIONS).filter(|_| !others.is_empty()) {
            if self.assigned(p) == b {
                let to = self.rng.pick(&others);
                self.hand_over(p, to, deaf);
            }
        }
    }

    fn disturb_broker(&mut self) {
        let b = self.broker();
        let Some(inc) = self.brokers[b].process.as_ref().map(|p| p.inc) else { return };
        let mut deaf = None;
        match self.rng.below(5) {
            0 | 1 => {
                self.stats.fault("crash");
                self.history.note(self.ms, None, || format!("broker {b} crashes"));
                self.end(b);
                let after = self.rng.between(1, 3_000);
                self.at(after, Event::Start(b));
            }
            2 => {
                self.stats.fault("pause");
                let for_ms = self.rng.log_between(20, 8_000);
                self.pause(b, inc, for_ms);
            }
            _ => {
                deaf = Some(b);
                self.cut_off(b);
            }
        }
        if self.rng.chance(60) {
            self.reassign(b, deaf);
        }
    }

    /// A broker does not know that nothing of it reaches the store, nor who has its partitions
    /// instead.
    fn cut_off(&mut self, b: usize) {
        let Some(inc) = self.brokers[b].process.as_ref().map(|p| p.inc) else { return };
        self.stats.fault("broker cut off");
        let for_ms = self.rng.log_between(200, 8_000);
        let until = self.ms + for_ms;
        self.healed_at = self.healed_at.max(until);
        if self.plan.clustered {
            self.at(for_ms, Event::Topology(b, inc));
        }
        self.history.note(self.ms, None, || format!("broker {b} is cut off until {until}"));
        for at in (0..PARTITIONS).map(PartitionId) {
            for (_, lane) in self.lanes.of_mut(at).filter(|(_, l)| l.broker == b) {
                lane.stuck_until = until;
            }
        }
    }

    fn pause(&mut self, b: usize, inc: u64, for_ms: u64) {
        self.history.note(self.ms, None, || format!("broker {b} stands still for {for_ms} ms"));
        if let Some(p) = self.process(b, inc).filter(|p| !p.paused) {
            p.paused = true;
            let ms = self.ms;
            self.brokers[b].pause_until(ms, ms + for_ms);
            self.at(for_ms, Event::Resume(b, inc));
            self.healed_at = self.healed_at.max(self.ms + for_ms);
        }
    }

    fn heal_after(&mut self, for_ms: u64, heal: Heal) {
        self.healed_at = self.healed_at.max(self.ms + for_ms);
        self.at(for_ms, Event::Heal(heal));
    }

    fn disturb_store(&mut self) {
        let p = self.partition();
        let at = PartitionId(p);
        let notice = self.rng.log_between(1, 2_000);
        let link = &mut self.links[usize::from(p)];
        let long = self.rng.log_between(20, 4_000);
        match self.rng.below(10) {
            kind @ 0..=4 if link.state == State::Up => {
                let (state, name) =
                    if kind < 2 { (State::Down, "store down") } else { (State::Cut, "answers lost") };
                link.state = state;
                self.stats.fault(name);
                self.history.note(self.ms, None, || format!("{name}: partition {p} for {long} ms"));
                self.at(notice, Event::Notice(p));
                self.heal_after(long, Heal::Way(p));
            }
            5 | 6 => {
                link.slow_until = self.ms + long;
                self.stats.fault("slow store");
                self.history
                    .note(self.ms, None, || format!("the way to partition {p} is slow for {long} ms"));
            }
            7 => {
                self.stats.fault("store full");
                self.store.faults().full(at, true);
                self.heal_after(long.min(1_000), Heal::Full(p));
            }
            8 => {
                self.stats.fault("not replicated");
                link.unconfirmed_until = self.ms + long.min(1_000);
                self.bring_forward(at);
            }
            9 if self.rng.chance(50) => {
                self.stats.fault("fenced by a stranger");
                let epoch = self.store.faults().fence(at);
                let monos = self.monos();
                self.history.acquired(self.ms, at, epoch, monos, false);
            }
            _ => {
                self.stats.fault("acquisition lost");
                self.store.faults().lose_acquisition(at);
            }
        }
    }

    fn disturb_client(&mut self) {
        let n = self.rng.below(self.clients.len() as u64) as usize;
        if self.rng.chance(25) {
            self.stats.fault("everybody leaves");
            let for_ms = self.rng.log_between(1, 4_000);
            for n in 0..self.clients.len() {
                self.leave(n, for_ms);
            }
            // Timers that wait for them belong to no client then.
            for p in 0..PARTITIONS {
                let to = self.broker();
                self.hand_over(p, to, None);
            }
        } else if self.rng.chance(60) {
            self.stats.fault("client leaves");
            let for_ms = self.rng.log_between(1, 4_000);
            self.leave(n, for_ms);
        } else {
            self.stats.fault("credit changes");
            self.change_credit(n);
        }
    }

    /// Disturbs a clock as real ones are disturbed.
    fn disturb_clock(&mut self) {
        let b = self.broker();
        let far = self.rng.log_between(1_000, 20_000_000) as i64 * 100;
        let sign = if self.rng.chance(50) { 1 } else { -1 };
        let by_us = sign * far;
        let n = self.clocks.len();
        match self.rng.below(4) {
            0 => {
                self.stats.fault("host clock steps");
                self.step_host(b, by_us);
            }
            1 => {
                self.stats.fault("suspension");
                let for_ms = self.rng.log_between(100, 120_000);
                self.suspend(b, for_ms);
            }
            // One at a time: the others, if there are any, are a majority.
            2 if n > 0 && !self.clocks.disturbed => {
                self.stats.fault("store clock hangs");
                let which = self.rng.below(n as u64) as usize;
                let long = self.rng.log_between(1_000, 200_000);
                self.clocks.hang(which, true);
                self.clocks.disturbed = true;
                if n == 1 {
                    // Nobody tells the time: a broker cannot know of a step that it misses
                    // meanwhile.
                    let until = self.ms + long;
                    self.brokers.iter_mut().for_each(|b| b.excuse_from(until, 0));
                }
                self.heal_after(long, Heal::StoreClock(which));
            }
            3 if n >= 3 && !self.clocks.disturbed => {
                self.stats.fault("store clock steps");
                let which = self.rng.below(n as u64) as usize;
                let long = self.rng.log_between(1_000, 60_000);
                self.clocks.step(which, by_us);
                self.clocks.disturbed = true;
                self.heal_after(long, Heal::StoreClockStep(which, -by_us));
            }
            _ => {}
        }
    }

    /// A host's wall clock is set. Where it decides, its broker has to follow.
    fn step_host(&mut self, b: usize, by_us: i64) {
        self.history.note(self.ms, None, || format!("the clock of host {b} steps by {} ms", by_us / 1_000));
        let decides = self.clocks.len() == 0;
        let ms = self.ms;
        let broker = &mut self.brokers[b];
        broker.host.step(by_us);
        if decides {
            if by_us > FORGETFUL_MS as i64 * 1_000 {
                self.history.stepped_forward(ms);
            }
            self.history.stepped_back_ms += (-by_us).max(0) as u64 / 1_000;
            broker.excuse_from(ms, by_us);
        }
    }

    /// A host stands still as a whole.
    fn suspend(&mut self, b: usize, for_ms: u64) {
        let Some(p) = self.brokers[b].process.as_ref().filter(|p| !p.paused) else { return };
        let inc = p.inc;
        self.pause(b, inc, for_ms);
        let us = self.us();
        let broker = &mut self.brokers[b];
        if !broker.host.suspend(us, for_ms as i64 * 1_000) {
            broker.excuse_from(self.ms + for_ms, 0);
        }
    }

    pub(super) fn heal(&mut self, heal: Heal) {
        self.disturbed = self.ms;
        match heal {
            Heal::Way(p) => {
                self.reopen(PartitionId(p));
                let notice = self.rng.below(50);
                self.at(notice, Event::Notice(p));
            }
            Heal::Full(p) => self.store.faults().full(PartitionId(p), false),
            Heal::StoreClock(n) => {
                self.clocks.hang(n, false);
                self.clocks.disturbed = false;
            }
            Heal::StoreClockStep(n, by_us) => {
                self.clocks.step(n, by_us);
                self.clocks.disturbed = false;
            }
        }
    }
}
