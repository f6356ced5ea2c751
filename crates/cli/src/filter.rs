//! Flags that say which timers a command is about, shared by `list` and `bulk`.

use clap::Args;
use mtimer_client::{Filter, Time};

use super::args::name_and_value;
use super::moment;

/// What the timers have in common.
#[derive(Args, Clone, Debug)]
pub(crate) struct FilterArgs {
    /// Only of this group
    #[arg(long)]
    pub(crate) group: Option<String>,
    /// Only of this app
    #[arg(long)]
    pub(crate) app: Option<String>,
    /// Only with a key that begins like this; '' for all that have a key
    #[arg(long, value_name = "PREFIX")]
    pub(crate) key_prefix: Option<String>,
    /// Only with this header, such as tenant=acme
    #[arg(long, value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub(crate) header: Option<(String, String)>,
}

impl FilterArgs {
    pub(crate) fn filter(&self) -> Filter {
        Filter {
            group: self.group.clone(),
            app: self.app.clone(),
            key_prefix: self.key_prefix.clone(),
            header: self.header.clone(),
        }
    }
}

/// When live timers fire, and for which attempt they wait.
#[derive(Args, Clone, Debug)]
pub(crate) struct PendingArgs {
    /// Only what fires then or later: RFC 3339, or milliseconds since 1970
    #[arg(long, value_name = "TIME", value_parser = moment::time)]
    pub(crate) from: Option<Time>,
    /// Only what fires then or earlier: RFC 3339, or milliseconds since 1970
    #[arg(long, value_name = "TIME", value_parser = moment::time)]
    pub(crate) until: Option<Time>,
    /// Only what waits for a retry after a failed attempt
    #[arg(long, conflicts_with = "first")]
    pub(crate) retrying: bool,
    /// Only what waits for its first attempt
    #[arg(long)]
    pub(crate) first: bool,
}

impl PendingArgs {
    /// Whether an attempt must have failed, or must not have; `None`: either.
    pub(crate) fn retrying(&self) -> Option<bool> {
        (self.retrying || self.first).then_some(self.retrying)
    }
}
