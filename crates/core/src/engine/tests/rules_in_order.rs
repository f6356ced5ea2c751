//! The rules that hold a timer back whose time has come, in every combination: which of them acts.
//!
//! The same table is in the guarantees ("Priority").

use mtimer_protocol::ops::Configure;
use mtimer_types::{
    DeliveryLimits, DestinationSettings, Extensions, LateCause, Pause, Priority, SettingsVersion,
};

use super::*;
use crate::engine::claims::OWNERSHIP_MS;

/// Until the leader lends all that there is, in ms.
const QUIET_MS: u64 = 1_600;
/// Deliveries that may go once something lets them.
const FREE: u32 = 15;
/// Timers that wait, of each class.
const OF_EACH: usize = 10;

/// What holds for the destination.
#[derive(Clone, Copy, Debug)]
struct Rules {
    has_deadline: bool,
    is_paused: bool,
    has_credit: bool,
    has_slots: bool,
    is_strict: bool,
}

/// What becomes of the timers.
#[derive(PartialEq, Eq, Debug)]
enum Outcome {
    Expired,
    /// None goes, and a story says why.
    Wait(Option<LateCause>),
    /// So many of each class go.
    Go([usize; Priority::COUNT]),
}

impl Rules {
    /// The table of the guarantees: the first rule that applies decides.
    fn expected(self) -> Outcome {
        match self {
            Self { has_deadline: true, .. } => Outcome::Expired,
            Self { is_paused: true, .. } => Outcome::Wait(Some(LateCause::Paused)),
            Self { has_credit: false, .. } => Outcome::Wait(Some(LateCause::Credit)),
            Self { has_slots: false, .. } => Outcome::Wait(Some(LateCause::Limited)),
            Self { is_strict: true, .. } => Outcome::Go([10, 5, 0, 0]),
            Self { is_strict: false, .. } => Outcome::Go([8, 4, 2, 1]),
        }
    }

    fn settings(self, is_paused: bool) -> DestinationSettings {
        let concurrency = Some(1 + if self.has_slots { FREE } else { 0 });
        DestinationSettings {
            pause: is_paused.then(Pause::default),
            strict_priority: self.is_strict,
            limits: DeliveryLimits { concurrency, rate: None },
        }
    }

    /// Timers of all classes wait behind a delivery that uses all credit and a slot; then credit
    /// comes, or the pause, or the deadline passes.
    fn observed(self) -> Outcome {
        let mut rig = Rig::new(EngineOptions { callback_timeout_ms: 5_000, ..EngineOptions::default() });
        rig.join(1, "a", 1);
        rig.run(OWNERSHIP_MS);
        rig.configure_to(1, self.settings(false));
        rig.run(QUIET_MS + 5_000);
        let first = Timer { callback_timeout_ms: None, ..rig.timer("a", 0) };
        rig.deliver(1, first);
        let mut waiting: Vec<(TimerId, Priority)> = Vec::new();
        for _ in 0..OF_EACH {
            for priority in Priority::ALL.into_iter().rev() {
                let extensions = Extensions::NONE.with_priority(priority).unwrap();
                let timer = Timer { extensions, callback_timeout_ms: None, ..rig.timer("a", 1) };
                let deadline = self.has_deadline.then(|| timer.due + 10);
                waiting.push((timer.id, priority));
                rig.schedule(1, Timer { deadline, ..timer });
            }
        }
        rig.run(5);
        if self.is_paused {
            rig.configure_to(2, self.settings(true));
        }
        if self.has_deadline {
            rig.run(2_000);
        }
        assert_eq!(rig.take_deliveries(), [], "{self:?}: all of them wait");
        if self.has_credit {
            rig.session(1, SessionEvent::Register { registration: 1, dest: dest("a"), credit: 1 + FREE });
        }
        // With credit the leader lends what more is wanted; without, timers would soon be parked.
        rig.run(if self.has_credit { 500 } else { 5 });
        let mut went = [0; Priority::COUNT];
        for (_, delivery) in rig.take_deliveries() {
            let of = waiting.iter().find(|(id, _)| *id == delivery.id);
            went[of.map(|(_, priority)| priority.rank()).unwrap()] += 1;
        }
        if went != [0; Priority::COUNT] {
            return Outcome::Go(went);
        }
        let (last, _) = waiting[waiting.len() - 1];
        rig.session(1, SessionEvent::Query { corr: 9, query: Query::Story(Target::Id(last)) });
        rig.run(2);
        let story = rig.sent.iter().find_map(|(_, message)| match message {
            ServerMessage::Answer { corr: 9, answer: QueryAnswer::Story(story) } => Some(story),
            _ => None,
        });
        story.unwrap().as_ref().map_or(Outcome::Expired, |story| Outcome::Wait(story.waits_for))
    }
}

impl Rig {
    fn configure_to(&mut self, version: u64, settings: DestinationSettings) {
        let version = SettingsVersion::Given(version);
        let settings = Box::new(settings);
        self.ask(1, vec![Configure { partition: P, dest: dest("a"), settings, version }.into()]);
        self.run(5);
    }
}

#[test]
fn of_all_rules_the_first_that_applies_decides() {
    let bit = |n: u32, at: u32| n >> at & 1 == 1;
    for n in 0..1 << 5 {
        let rules = Rules {
            has_deadline: bit(n, 0),
            is_paused: bit(n, 1),
            has_credit: bit(n, 2),
            has_slots: bit(n, 3),
            is_strict: bit(n, 4),
        };
        assert_eq!(rules.observed(), rules.expected(), "{rules:?}");
    }
}
