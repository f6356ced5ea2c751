//! The rules that must hold at every moment, and a log of events.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use mtimer_core::cluster::NodeEffect;
use mtimer_protocol::Topology;
use mtimer_types::{Epoch, PartitionId, Term};

/// The first thing that went wrong, and a digest of everything.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    pub(crate) wrong: Option<String>,
    events: Vec<String>,
    hasher: DefaultHasher,
    /// Who has led under each term.
    terms: BTreeMap<Term, (usize, u64)>,
    /// Per process: the highest term and newest topology that it had.
    seen: BTreeMap<(usize, u64), (Term, (Term, u64))>,
    topologies: BTreeMap<(Term, u64), Topology>,
    /// The highest epoch of each partition so far.
    epochs: BTreeMap<PartitionId, Epoch>,
    pub(crate) acted: u64,
    pub(crate) decided: u64,
}

impl Watch {
    pub(crate) fn note(&mut self, now: u64, text: String) {
        text.hash(&mut self.hasher);
        now.hash(&mut self.hasher);
        self.events.push(format!("{now:>7} {text}"));
    }

    pub(crate) fn digest(&self) -> u64 {
        self.hasher.finish()
    }

    pub(crate) fn tail(&self, n: usize) -> String {
        self.events[self.events.len().saturating_sub(n)..].join("\n")
    }

    pub(crate) fn fail(&mut self, now: u64, text: String) {
        self.note(now, format!("WRONG: {text}"));
        self.wrong.get_or_insert(format!("at {now} ms: {text}"));
    }

    pub(crate) fn leads(&mut self, now: u64, who: (usize, u64), term: Term) {
        self.acted += 1;
        let first = *self.terms.entry(term).or_insert(who);
        if first != who {
            self.fail(now, format!("term {term:?} is led by {who:?} and was led by {first:?}"));
        }
    }

    pub(crate) fn acquired(&mut self, now: u64, partition: PartitionId, epoch: Epoch) {
        let before = self.epochs.insert(partition, epoch).unwrap_or_default();
        if epoch <= before {
            self.fail(now, format!("{partition:?} goes from epoch {before} to {epoch}"));
        }
    }

    pub(crate) fn term(&mut self, now: u64, who: (usize, u64), term: Term) {
        let seen = self.seen.entry(who).or_default();
        let before = seen.0;
        seen.0 = term.max(before);
        if term < before {
            self.fail(now, format!("{who:?} went back from {before:?} to {term:?}"));
        }
    }

    /// `effect` came out of a node that has this topology and is or is not stopping.
    pub(crate) fn effect(
        &mut self,
        now: u64,
        who: (usize, u64),
        address: &str,
        stops: bool,
        effect: &NodeEffect,
    ) {
        match effect {
            NodeEffect::Adopt(t) => {
                self.note(now, format!("n{} adopts {:?}", who.0, t.stamp()));
                let seen = self.seen.entry(who).or_default();
                let before = seen.1;
                seen.1 = t.stamp();
                if t.stamp() <= before {
                    self.fail(now, format!("{who:?} went back from topology {before:?} to {:?}", t.stamp()));
                }
                let first = self.topologies.entry(t.stamp()).or_insert_with(|| Topology::clone(t));
                if *first != **t {
                    let text = format!("there are two topologies {:?}: {t:?} and {first:?}", t.stamp());
                    self.fail(now, text);
                }
                self.decided = self.decided.max(self.topologies.len() as u64);
            }
            NodeEffect::Own { partition, term, version } => {
                let owner = self.topologies.get(&(*term, *version)).and_then(|t| t.owner(*partition));
                if owner != Some(address) || stops {
                    self.fail(now, format!("{who:?} is to own {partition:?}, which is {owner:?}'s"));
                }
            }
            NodeEffect::Disown(partition) => {
                let stamp = self.seen.get(&who).map(|s| s.1).unwrap_or_default();
                let owner = self.topologies.get(&stamp).and_then(|t| t.owner(*partition));
                if owner == Some(address) && !stops {
                    self.fail(now, format!("{who:?} is to give up {partition:?}, which is its own"));
                }
            }
            NodeEffect::ToLeader(_) | NodeEffect::ToPeer(..) | NodeEffect::Renew(..) => {}
            other => self.note(now, format!("n{} {other:?}", who.0).chars().take(160).collect()),
        }
    }
}
