//! Looking application keys up before they are needed.
//!
//! Purpose: a script that cancels by key must be told where the key's timer may be, which depends on its id. Asking for
//! the ids of a whole window at once saves a refused script (and the repetition of all behind it) for each.
//!
//! What is found is a hint: it is read outside the lane's order, and a script that finds something else asks again.

use mtimer_store::Op;
use mtimer_types::{KeyPolicy, Target, TimerId};

use crate::dests::Destinations;
use crate::keys::SHELVES;
use crate::lane::Engine;
use crate::load::timer_id;
use crate::plan::key_field;
use crate::resp::Args;
use crate::window::{Item, Work};

/// The shelf of a key's field, as `key_key` in `lua/timers.lua` has it.
fn shelf(field: &[u8]) -> u8 {
    let at = |back: usize| field.len().checked_sub(back).map_or(0, |i| usize::from(field[i]));
    ((at(3) * 31 + at(2) * 7 + at(1) + field.len()) % usize::from(SHELVES)) as u8
}

/// A key that an item names; whether it is a target (or to be replaced).
struct Named {
    item: usize,
    field: Vec<u8>,
    target: bool,
}

fn named(item: usize, work: &Work, dests: &Destinations, out: &mut Vec<Named>) {
    let mut add = |dest, key, target| out.push(Named { item, field: key_field(dests, dest, key), target });
    let ops = match work {
        Work::Ops(run) => &run.ops[..],
        Work::Get(Target::Key(dest, key)) => return add(dest, key, true),
        _ => return,
    };
    for op in ops {
        match op {
            Op::Cancel { target: Target::Key(dest, key), .. }
            | Op::Reschedule { target: Target::Key(dest, key), .. } => add(dest, key, true),
            Op::Schedule { timer, policy: KeyPolicy::Replace } => {
                if let Some(key) = &timer.key {
                    add(&timer.dest, key, false);
                }
            }
            _ => {}
        }
    }
}

impl Engine {
    /// Looks up the keys of everything in the window that was not looked up yet.
    pub(crate) async fn resolve(&mut self) {
        let mut wanted = Vec::new();
        for (at, item) in self.window.iter_mut().enumerate().filter(|(_, item)| !item.looked_up) {
            item.looked_up = true;
            named(at, &item.work, &self.dests, &mut wanted);
        }
        let Some(conn) = self.conn.clone().filter(|_| !wanted.is_empty()) else { return };
        let mut waiting = Vec::new();
        for number in 0..SHELVES {
            let here: Vec<_> = wanted.iter().filter(|w| shelf(&w.field) == number).collect();
            if here.is_empty() {
                continue;
            }
            let mut look = Args::of(["HMGET", &self.facts.keys.app_keys(number)]);
            here.iter().for_each(|w| {
                look.push(&w.field);
            });
            waiting.push((here, conn.send(look.command(), false, false).await));
        }
        let mut found_ids = Vec::new();
        for (here, mut answer) in waiting {
            // Without an answer there is no hint.
            let Ok(answered) = answer.answer().await else { continue };
            for (wanted, found) in here.iter().zip(answered.reply.array().unwrap_or_default()) {
                if let (Some(id), Some(item)) = (timer_id(found), self.window.get_mut(wanted.item)) {
                    item.hint(wanted, id);
                    found_ids.push(id);
                }
            }
        }
        let at = self.window.iter().take_while(|item| item.sent.is_some()).count();
        self.learn(found_ids.into_iter(), at);
    }
}

impl Item {
    fn hint(&mut self, wanted: &Named, id: TimerId) {
        if wanted.target {
            self.needs.named.insert(wanted.field.clone(), id);
        } else {
            self.needs.ids.push(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shelves_are_as_in_lua() {
        // ('1' * 31 + '2' * 7 + '3' + 5) % 16
        assert_eq!(shelf(b"7:123"), ((49 * 31 + 50 * 7 + 51 + 5) % 16) as u8);
        assert!(shelf(b"") < SHELVES);
    }
}
