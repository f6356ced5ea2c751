//! One partition, as its owner works on it.
//!
//! Calls wait in `lane` and are executed one at a time. They read and write through `writer`, which
//! deals with lost answers; after a lost answer, `turn` reads the slots again that the write was
//! about. Beside the calls, `trim` asks replicas by itself.
//!
//! | module | task |
//! |---|---|
//! | `acquire` | becomes the owner, and reads the indexes |
//! | `owner`, `knowledge` | the owner, and what it knows of its partition's data |
//! | `lane` | queues calls, and runs the task that executes them |
//! | `handed` | how long a call has waited |
//! | `turn` | executes a batch: reads, decides, writes, answers |
//! | `blind` | finds acknowledgements that are written without reading |
//! | `controls` | reads bulk jobs and settings at the acquisition, and tells them |
//! | `lookup` | reads the data that decisions need, unless the owner knows it |
//! | `fields`, `retained` | how it reads: fields of hashes, the oldest entries of listings |
//! | `locations` | where the timers of a turn are |
//! | `encode` | turns decisions into commands, in an order that may be cut off anywhere |
//! | `commit` | carries the commands out, and notes their changes |
//! | `writes` | holds the commands of one write, as the script `apply` takes them |
//! | `load` | reads slots into the wheel; splits dense ones before |
//! | `listing` | finds single timers, lists, counts, releases |
//! | `counting` | counts what is there, by destination, beside the calls |
//! | `tally` | the counts of timers that are in no slot |
//! | `pending` | lists pending timers in the order of time |
//! | `writer` | writes exactly once, reads until the result counts, despite failures |
//! | `identity`, `master` | who writes; the connection to where the partition is |
//! | `log` | keeps the last writes, to be applied again to a store that has lost them |
//! | `trim` | finds out which of them are safe |
//! | `confirm` | holds answers back until replicas have the write (`redis-replicated`) |
//! | `shortage` | of which partitions replicas do not confirm |
//! | `destinations` | numbers destinations, so that a record holds a number instead of two names |
//! | `unreadable` | reports damaged records |
//! | `incidents` | logs events of many partitions at once |
//!
//! `broken!` names a rule that the simulation breaks on purpose. In releases it is `false`: nothing
//! is broken.

pub(crate) mod acquire;
mod blind;
mod commit;
pub(crate) mod confirm;
mod controls;
mod counting;
mod destinations;
mod encode;
mod fields;
pub(crate) mod handed;
mod identity;
mod incidents;
mod knowledge;
pub(crate) mod lane;
mod listing;
mod load;
mod locations;
pub(crate) mod log;
mod lookup;
mod master;
pub(crate) mod owner;
mod pending;
mod retained;
pub(crate) mod shortage;
mod tally;
#[cfg(test)]
mod tests;
pub(crate) mod trim;
pub(crate) mod turn;
mod unreadable;
mod writer;
mod writes;
