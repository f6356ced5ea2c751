//! One partition as its owner sees it: turns, loads, recovery, the log, listings.
