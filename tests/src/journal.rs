//! What brokers say in their logs, as far as the checker and the figures need it.
//!
//! Purpose: who acquired which partition when, and what every broker took for the topology.
//! Not in here: anything that is not written in a log line (JSON, one object a line).

use std::sync::{Arc, Mutex};

use serde_json::Value;

/// One line of a broker's log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// When, ms since the epoch, by the broker's clock.
    pub at: u64,
    /// Which broker.
    pub broker: String,
    /// What.
    pub note: Note,
}

/// What a line says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// It has become a partition's owner.
    Acquired {
        /// Which.
        partition: u16,
        /// Under this epoch.
        epoch: u64,
    },
    /// It has lost a partition: another one has it, or it could not go on.
    Lost {
        /// Which.
        partition: u16,
        /// The epoch that is over.
        epoch: u64,
        /// Why.
        error: String,
    },
    /// It took a partition from a live owner that did not give it up in time.
    Forced {
        /// Which.
        partition: u16,
    },
    /// It has learned of a topology.
    Topology {
        /// The leader's term.
        term: u64,
        /// The version within the term.
        version: u64,
        /// The leader.
        leader: String,
        /// Brokers in it.
        brokers: u64,
    },
}

impl Note {
    /// The partition that it is about, if it is one.
    pub fn partition(&self) -> Option<u16> {
        match self {
            Self::Acquired { partition, .. } | Self::Lost { partition, .. } | Self::Forced { partition } => {
                Some(*partition)
            }
            Self::Topology { .. } => None,
        }
    }
}

/// Collects entries, from any thread.
#[derive(Clone, Debug, Default)]
pub struct Journal(Arc<Mutex<Vec<Entry>>>);

impl Journal {
    /// Takes a line of a broker's log in.
    pub fn read(&self, broker: &str, line: &str) {
        if let Some(entry) = Entry::parse(broker, line) {
            self.0.lock().unwrap().push(entry);
        }
    }

    /// What was said so far.
    pub fn entries(&self) -> Vec<Entry> {
        self.0.lock().unwrap().clone()
    }

    /// How many entries there are so far, for [`Self::since`].
    pub fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Whether nothing was said so far.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What was said from the entry of this number on.
    pub fn since(&self, first: usize) -> Vec<Entry> {
        self.0.lock().unwrap().get(first..).unwrap_or_default().to_vec()
    }
}

impl Entry {
    /// Reads a log line; `None`: it is about something else.
    pub fn parse(broker: &str, line: &str) -> Option<Self> {
        let line: Value = serde_json::from_str(line).ok()?;
        let text = |name: &str| line[name].as_str().map(str::to_owned);
        // A field recorded by its Display is a string.
        let number = |name: &str| -> Option<u64> {
            let value = &line[name];
            value.as_u64().or_else(|| value.as_str()?.parse().ok())
        };
        let partition = || number("partition").and_then(|p| u16::try_from(p).ok());
        let note = match line["message"].as_str()? {
            "acquired" => Note::Acquired { partition: partition()?, epoch: number("epoch")? },
            "the ownership has ended" => Note::Lost {
                partition: partition()?,
                epoch: number("epoch")?,
                error: text("error").unwrap_or_default(),
            },
            "topology" => Note::Topology {
                term: number("term")?,
                version: number("version")?,
                leader: text("leader")?,
                brokers: number("brokers")?,
            },
            said if said.starts_with("the owner did not give the partition up") => {
                Note::Forced { partition: partition()? }
            }
            _ => return None,
        };
        let at: jiff::Timestamp = text("timestamp")?.parse().ok()?;
        Some(Self { at: u64::try_from(at.as_millisecond()).ok()?, broker: broker.to_owned(), note })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let line = r#"{"timestamp":"2026-11-20T10:00:00.250000Z","level":"DEBUG","message":"acquired","partition":"3","epoch":"17","took_ms":4,"target":"mtimer_broker::cluster::acquire"}"#;
        let entry = Entry::parse("a:1", line).unwrap();
        assert_eq!((entry.at % 1_000, entry.broker.as_str()), (250, "a:1"));
        assert_eq!(entry.note, Note::Acquired { partition: 3, epoch: 17 });
        let line = r#"{"timestamp":"2026-11-20T10:00:00Z","message":"topology","term":2,"version":3,"leader":"b:2","brokers":2}"#;
        let note = Entry::parse("a:1", line).unwrap().note;
        assert_eq!(note, Note::Topology { term: 2, version: 3, leader: "b:2".into(), brokers: 2 });
        assert_eq!(Entry::parse("a:1", "thread main panicked"), None);
        assert_eq!(Entry::parse("a:1", r#"{"message":"ready"}"#), None);
    }
}
