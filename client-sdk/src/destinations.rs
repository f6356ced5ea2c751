//! How many timers each destination has: every partition is asked for pages, and their rows are
//! added up.
//!
//! Not in here: which broker is asked about a partition (the machine's routes).

use std::collections::HashMap;

use futures_util::StreamExt;
use mtimer_protocol::{CountsQuery, DestinationCounts, Query, QueryAnswer};
use mtimer_types::{Destination, limits};

use crate::answer::{DestinationFilter, Destinations};
use crate::{Client, RequestError};

impl Client {
    /// Returns how many timers each destination has, and where they are: waiting, parked, dead and
    /// so on.
    ///
    /// Brokers keep these counts, so it takes no longer if there are more timers. They are exact if
    /// [`Destinations::uncounted`] is 0; it is not for a while after a broker has taken over
    /// partitions of another.
    ///
    /// ```no_run
    /// # use mtimer_client::{Client, DestinationFilter, RequestError};
    /// # async fn example(client: &Client) -> Result<(), RequestError> {
    /// let shop = DestinationFilter { group: Some("shop".into()), app: None };
    /// for row in client.destinations(shop).await?.rows {
    ///     println!("{}: {} pending, {} dead", row.dest, row.pending, row.dead);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestError`] if a partition could not be asked: there are no sums without it. It changes
    /// nothing, and can be repeated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes the questions back.
    pub async fn destinations(
        &self,
        filter: impl Into<DestinationFilter>,
    ) -> Result<Destinations, RequestError> {
        let DestinationFilter { group, app } = filter.into();
        let query = CountsQuery { partition: 0, group, app, after: None, limit: limits::MAX_PAGE };
        let mut answers = self
            .ask_partitions(|partition| self.counts_of_partition(CountsQuery { partition, ..query.clone() }));
        let (mut sums, mut uncounted) = (HashMap::new(), 0u64);
        while let Some(partition) = answers.next().await {
            let partition = partition?;
            uncounted = uncounted.saturating_add(partition.uncounted);
            partition.rows.into_iter().for_each(|row| add(&mut sums, row));
        }
        let mut rows: Vec<_> = sums.into_values().collect();
        rows.sort_unstable_by(|a, b| a.dest.cmp(&b.dest));
        Ok(Destinations { rows, uncounted })
    }

    /// Asks one partition for all its pages.
    async fn counts_of_partition(&self, mut query: CountsQuery) -> Result<Destinations, RequestError> {
        let mut all = Destinations::default();
        loop {
            let answer = self.query(Query::Counts(query.clone())).await?;
            let QueryAnswer::Counts { rows, next, uncounted } = answer else {
                return Err(RequestError::Mismatched);
            };
            if !goes_on(query.after.as_ref(), &rows, next.as_ref()) {
                return Err(RequestError::Mismatched);
            }
            all.rows.extend(rows);
            // The counts are exact if every page says 0.
            all.uncounted = all.uncounted.max(uncounted);
            let Some(next) = next else { return Ok(all) };
            query.after = Some(next);
        }
    }
}

/// Adds a row of a partition to the sums.
fn add(sums: &mut HashMap<Destination, DestinationCounts>, row: DestinationCounts) {
    match sums.get_mut(&row.dest) {
        Some(sum) => sum.add(&row),
        None => _ = sums.insert(row.dest.clone(), row),
    }
}

/// Whether a page is in order, begins behind `after`, and goes on behind that, at its end or later.
fn goes_on(after: Option<&Destination>, rows: &[DestinationCounts], next: Option<&Destination>) -> bool {
    let dests = || rows.iter().map(|row| &row.dest);
    let last = dests().next_back();
    dests().is_sorted_by(|a, b| a < b)
        && dests().next().is_none_or(|first| Some(first) > after)
        && next.is_none_or(|next| Some(next) > after && Some(next) >= last)
}
