//! Faults, and when each is healed.

use super::{Event, Sabotage, World, address};
use mtimer_core::cluster::NodeInput;
use mtimer_types::Epoch;

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) brokers: usize,
    pub(crate) partitions: u16,
    pub(crate) sabotage: Option<Sabotage>,
}

impl Default for Plan {
    fn default() -> Self {
        Self { brokers: 3, partitions: 16, sabotage: None }
    }
}

/// Something that is to be undone.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut {
    Way(usize, usize),
    Third(usize, u16),
    /// The lease names no leader.
    Lease,
    /// Nobody can connect to this broker.
    Address(usize),
}

impl World {
    /// Faults for so long, from now on; then everything heals.
    pub(crate) fn suffer(&mut self, ms: u64) {
        self.faulty = true;
        self.at(0, Event::Fault);
        self.run(ms);
        self.recover();
    }

    /// Everything is right again, and everybody there.
    pub(crate) fn recover(&mut self) {
        self.faulty = false;
        self.cuts.clear();
        self.apart.clear();
        self.unreached.clear();
        self.store.names_no_leader = false;
        self.watch.note(self.now, "everything heals".into());
        self.pump_all();
        for i in 0..self.procs.len() {
            match self.procs[i].as_ref().map(|p| (p.inc, p.paused)) {
                Some((inc, true)) => self.resume(i, inc),
                Some(_) => {}
                None => self.start(i),
            }
        }
    }

    /// Takes back all operators' wishes, at the present leader.
    pub(crate) fn undrain(&mut self) {
        let draining: Vec<String> = self.topology().map_or(Vec::new(), |t| {
            t.brokers.iter().filter(|b| b.draining).map(|b| b.address.clone()).collect()
        });
        for broker in draining {
            self.drain(&broker, false);
        }
    }

    pub(crate) fn drain(&mut self, broker: &str, drain: bool) {
        let now = self.now;
        let Some(leader) = self.leader() else { return };
        let Some(p) = self.procs[leader].as_mut() else { return };
        let inc = p.inc;
        let local = p.clock.local(now);
        let done = p.node.drain(local, broker, drain);
        self.watch.note(now, format!("n{leader} drains {broker}, {drain}: {done:?}"));
        self.follow_up(leader, inc);
    }

    pub(crate) fn cut(&mut self, cut: Cut) {
        self.watch.note(self.now, format!("{cut:?} is cut"));
        match cut {
            Cut::Way(a, b) => _ = self.cuts.insert((a, b)),
            Cut::Third(i, third) => _ = self.apart.insert((i, third)),
            Cut::Lease => self.store.names_no_leader = true,
            Cut::Address(i) => _ = self.unreached.insert(i),
        }
    }

    pub(crate) fn heal(&mut self, cut: Cut) {
        self.watch.note(self.now, format!("{cut:?} is healed"));
        match cut {
            Cut::Way(a, b) => {
                self.cuts.remove(&(a, b));
                self.pump_all();
            }
            Cut::Third(i, third) => _ = self.apart.remove(&(i, third)),
            Cut::Lease => self.store.names_no_leader = false,
            Cut::Address(i) => _ = self.unreached.remove(&i),
        }
    }

    /// The store forgets the last acquisitions; the owners find that out by and by.
    pub(crate) fn forget(&mut self) {
        self.watch.note(self.now, "the store forgets".into());
        for (partition, forgotten) in self.store.forget() {
            if let Some((i, inc)) = forgotten.holder {
                let after = self.rng.between(1, 300);
                self.at(after, Event::Fenced(i, inc, partition, Epoch(forgotten.epoch)));
            }
        }
    }

    pub(crate) fn pause(&mut self, i: usize, ms: u64) {
        let Some(p) = self.procs[i].as_mut().filter(|p| !p.paused) else { return };
        p.paused = true;
        let inc = p.inc;
        self.watch.note(self.now, format!("n{i} pauses for {ms} ms"));
        self.at(ms, Event::Resume(i, inc));
    }

    pub(crate) fn stop(&mut self, i: usize) {
        if let Some(inc) = self.procs[i].as_ref().map(|p| p.inc) {
            self.watch.note(self.now, format!("n{i} is told to stop"));
            self.feed(i, inc, NodeInput::Stop);
        }
    }

    pub(super) fn fault(&mut self) {
        if !self.faulty {
            return;
        }
        self.faults += 1;
        let n = self.procs.len() as u64;
        let (i, j) = (self.rng.below(n) as usize, self.rng.below(n) as usize);
        let long = self.rng.between(100, 8_000);
        match self.rng.below(13) {
            0 => {
                let loud = self.rng.chance(50);
                self.end(i, loud);
                self.at(long, Event::Start(i));
            }
            1 => {
                self.end(i, true);
                self.at(1 + long / 50, Event::Start(i));
            }
            2 | 3 => self.pause(i, long),
            4 | 5 if i != j => {
                self.cut(Cut::Way(i, j));
                self.at(long, Event::Heal(Cut::Way(i, j)));
                if self.rng.chance(50) {
                    self.cut(Cut::Way(j, i));
                    self.at(long, Event::Heal(Cut::Way(j, i)));
                }
            }
            6 => {
                let third = self.rng.below(3) as u16;
                self.cut(Cut::Third(i, third));
                self.at(long, Event::Heal(Cut::Third(i, third)));
            }
            7 => (0..3).for_each(|third| {
                self.cut(Cut::Third(i, third));
                self.at(long, Event::Heal(Cut::Third(i, third)));
            }),
            8 => {
                let third = self.rng.below(3) as u16;
                for i in 0..self.procs.len() {
                    self.cut(Cut::Third(i, third));
                    let after = long + self.rng.below(900);
                    self.at(after, Event::Heal(Cut::Third(i, third)));
                }
            }
            9 if self.rng.chance(30) => {
                self.cut(Cut::Lease);
                self.at(long, Event::Heal(Cut::Lease));
            }
            10 => self.stop(i),
            11 => {
                let drain = self.rng.chance(50);
                self.drain(&address(i), drain);
            }
            12 => {
                self.cut(Cut::Address(i));
                self.at(long, Event::Heal(Cut::Address(i)));
                if self.rng.chance(50) {
                    self.end(i, true);
                    self.at(1 + long / 50, Event::Start(i));
                }
            }
            _ => {}
        }
        let next = self.rng.between(50, 3_000);
        self.at(next, Event::Fault);
    }
}
