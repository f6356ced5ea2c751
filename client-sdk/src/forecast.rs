//! How many timers are due when: every partition is asked for pages, and their spans are added up.
//!
//! Not in here: which broker is asked about a partition (the machine's routes).

use std::collections::BTreeMap;

use futures_util::StreamExt;
use mtimer_protocol::{ForecastQuery, Query, QueryAnswer};
use mtimer_types::{DueSpan, Time, TimerId};

use crate::answer::{Forecast, ForecastRequest};
use crate::{Client, RequestError};

/// Timers by the beginning and the end of their span.
type Sums = BTreeMap<(Time, Time), u64>;

impl Client {
    /// Returns how many timers are delivered next when: a histogram of what is to come.
    ///
    /// On Redis no timers are read: brokers know how many are in each slot. The embedded store reads
    /// the timers up to `until`, a few thousand at a time.
    ///
    /// ```no_run
    /// # use mtimer_client::{Client, DestinationFilter, ForecastRequest, RequestError};
    /// # async fn example(client: &Client) -> Result<(), RequestError> {
    /// let (until, step_ms) = (client.now() + 3_600_000, 60_000);
    /// let filter = DestinationFilter::default();
    /// for span in client.forecast(ForecastRequest { filter, until, step_ms }).await?.spans {
    ///     println!("{} to {}: {} timers", span.begin, span.end, span.timers);
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
    pub async fn forecast(&self, request: ForecastRequest) -> Result<Forecast, RequestError> {
        let ForecastRequest { filter, until, step_ms } = request;
        let from = (Time::ZERO, TimerId::from_u128(0));
        let (group, app) = (filter.group, filter.app);
        let query = ForecastQuery { partition: 0, group, app, from, until, step_ms };
        let mut answers = self.ask_partitions(|partition| {
            self.forecast_of_partition(ForecastQuery { partition, ..query.clone() })
        });
        let (mut sums, mut uncounted) = (Sums::new(), 0u64);
        while let Some(partition) = answers.next().await {
            let (spans, more) = partition?;
            uncounted = uncounted.saturating_add(more);
            spans.into_iter().for_each(|(span, timers)| add(&mut sums, span, timers));
        }
        let span = |((begin, end), timers)| DueSpan { begin, end, timers };
        Ok(Forecast { spans: sums.into_iter().map(span).collect(), uncounted })
    }

    /// Asks one partition for all its pages.
    async fn forecast_of_partition(&self, mut query: ForecastQuery) -> Result<(Sums, u64), RequestError> {
        let (mut sums, mut most_uncounted) = (Sums::new(), 0);
        loop {
            let answer = self.query(Query::Forecast(query.clone())).await?;
            let QueryAnswer::Forecast { spans, next, uncounted } = answer else {
                return Err(RequestError::Mismatched);
            };
            spans.into_iter().for_each(|span| add(&mut sums, (span.begin, span.end), span.timers));
            most_uncounted = uncounted.max(most_uncounted);
            match next {
                None => return Ok((sums, most_uncounted)),
                Some(next) if next > query.from => query.from = next,
                Some(_) => return Err(RequestError::Mismatched),
            }
        }
    }
}

fn add(sums: &mut Sums, span: (Time, Time), timers: u64) {
    let sum = sums.entry(span).or_default();
    *sum = sum.saturating_add(timers);
}
