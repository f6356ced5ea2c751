//! Names of keys, places of timers, bytes of values, and what the owner knows of its keys.
