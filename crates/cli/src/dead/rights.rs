//! Checks the token's permissions first, since without them it would look as if there were nothing
//! to do.
//!
//! A broker leaves timers out of a list that the token may not read, so that a list without rows,
//! and a purge that finds none, look like success.

use mtimer_client::{Client, ErrorCode, RequestError, Target, TimerId};

use super::rows::RetainedFilter;
use crate::args::{destination, key};
use crate::exit::Failure;
use crate::output::note;

/// Refuses a replay or purge by a filter, if the token may do neither.
pub(super) async fn to_operate(client: &Client) -> Result<(), Failure> {
    // No timer has the id 0, so nothing is removed.
    let answers = client.purge_all(vec![TimerId::from_u128(0)]).await;
    match answers.into_iter().find_map(Result::err) {
        Some(error) if is_denied(&error) => Err(error.into()),
        // Other errors are met again, and reported, with the first timer.
        _ => Ok(()),
    }
}

/// Says that rows may be missing, because the token may not read all destinations. If it may not
/// read the one that is asked for this is an error.
pub(super) async fn to_read(client: &Client, filter: &RetainedFilter) -> Result<(), Failure> {
    if let (Some(group), Some(app)) = (&filter.group, &filter.app) {
        let key = key("-").map_err(Failure::usage)?;
        return match client.get(Target::Key(destination(group, app)?, key)).await {
            Err(error) if is_denied(&error) => Err(error.into()),
            _ => Ok(()),
        };
    }
    if let Err(error) = client.status().await
        && is_denied(&error)
    {
        note("this token may not read on *: timers of destinations that it may not read are left out");
    }
    Ok(())
}

fn is_denied(error: &RequestError) -> bool {
    matches!(error, RequestError::Refused { code: ErrorCode::Unauthorized, .. })
}
