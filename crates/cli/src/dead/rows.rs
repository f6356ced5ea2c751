//! Which dead or unconfirmed timers are meant.

use clap::Args;
use mtimer_client::{Client, Filter, RequestError, Time};

use crate::aside::{AsideRows, AsideState};

#[derive(Args, Clone, Debug)]
pub(super) struct RetainedFilter {
    /// Only of this group
    #[arg(long)]
    pub(super) group: Option<String>,
    /// Only of this app
    #[arg(long)]
    pub(super) app: Option<String>,
    /// At-most-once timers that were never confirmed, instead of dead letters
    #[arg(long)]
    pub(super) unconfirmed: bool,
}

impl RetainedFilter {
    /// The rows that pass it.
    pub(super) async fn rows(&self, client: &Client) -> Result<AsideRows, RequestError> {
        let state = if self.unconfirmed { AsideState::Unconfirmed } else { AsideState::Dead };
        let filter = Filter { group: self.group.clone(), app: self.app.clone(), ..Filter::default() };
        AsideRows::of(client, state, filter, Time::ZERO..=Time::MAX).await
    }
}
