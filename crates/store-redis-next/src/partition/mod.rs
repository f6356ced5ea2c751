//! One partition as its owner sees it.
//!
//! | module | what it does |
//! |---|---|
//! | `lane` | the caller's side: calls in order, one at a time |
//! | `acquire` | becomes the owner |
//! | `turn` | reads, decides, writes, answers |
//! | `facts` | reads what decisions need |
//! | `encode` | makes commands of what was decided |
//! | `load` | loads slots into the wheel, splits dense ones |
//! | `listing` | single timers, listings, counts, release |
//! | `writer` | reads and writes exactly once, whatever happens on the way |
//! | `log`, `trim` | keep the last writes, for a store that loses them, until they are safe |
//! | `confirm` | waits for replicas before answers |

pub(crate) mod acquire;
pub(crate) mod confirm;
mod destinations;
mod encode;
mod facts;
pub(crate) mod lane;
mod listing;
mod load;
pub(crate) mod log;
pub(crate) mod owner;
mod reply;
pub(crate) mod trim;
mod turn;
mod unreadable;
mod writer;
mod writes;
