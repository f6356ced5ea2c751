//! The command line from outside: real processes, what they print, and how they end.

#![allow(clippy::unwrap_used)]

mod bench;
mod bulk;
mod client;
mod daemon;
mod dead;
mod demo;
mod destination;
mod destinations;
mod disk;
mod file;
mod forecast;
mod hangup;
mod harness;
mod import;
mod list;
mod listen;
mod redis;
mod remove;
mod repair;
mod rotation;
mod secrets;
mod shell;
mod story;
mod tls;
mod token;
mod token_broker;
mod troubles;
mod truth;
mod unanswered;
mod usage;
