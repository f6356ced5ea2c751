//! Level `redis-replicated`: a write that is answered is on enough replicas, or the answer says
//! that it is not.
//!
//! Operations that add, take or cancel wait for the replicas, also if they were written earlier
//! (repeats). Settlements do not: if a failover undoes one the timer is delivered again. A claim
//! waits, too, because deliveries begin once it is confirmed; an unconfirmed one is requested again
//! by the caller that needs it.
//!
//! Not in here: the other level, which waits for nothing.

use std::time::Duration;

use mtimer_store::{Answer, LaneError, Op, Refusal};
use tokio::time::{Instant, sleep_until};

use super::owner::Owner;

/// How long a claim takes at least that is not confirmed: the next one follows at once.
const CLAIM_TAKES: Duration = Duration::from_millis(100);
/// How long after a wait in vain replicas are asked again, if nobody has waited meanwhile.
const ASK_AGAIN: Duration = Duration::from_secs(1);

impl Owner {
    /// Waits until the answers to a batch may be given, and refuses those that may not. If it
    /// `claims`, a refusal that follows says that the claim may not be relied on.
    ///
    /// # Errors
    ///
    /// The lane has ended.
    pub(super) async fn confirm(
        &mut self,
        ops: &[Op],
        claims: bool,
        answers: &mut Vec<Answer>,
    ) -> Result<(), LaneError> {
        let waiting =
            ops.iter().zip(&mut *answers).filter(|(op, answer)| op.is().waits && !is_refusal(answer));
        let waiting: Vec<_> = waiting.map(|(_, answer)| answer).collect();
        let is_confirmed = match claims {
            true => self.confirm_claim().await?,
            false => waiting.is_empty() || self.writer.wait_for_replicas().await?,
        };
        if is_confirmed {
            return Ok(());
        }
        for answer in waiting {
            *answer = Answer::Refused(Refusal::NotReplicated);
        }
        answers.extend(claims.then_some(Answer::Refused(Refusal::NotReplicated)));
        Ok(())
    }

    /// Waits until a claim may be relied on, and everything before it; false if it may not.
    ///
    /// # Errors
    ///
    /// The lane has ended.
    pub(super) async fn confirm_claim(&mut self) -> Result<bool, LaneError> {
        let began = Instant::now();
        let is_confirmed = self.writer.wait_for_replicas().await?;
        if !is_confirmed {
            sleep_until(began + CLAIM_TAKES).await;
        }
        Ok(is_confirmed)
    }

    /// Whether it is to be found out if replicas confirm: nobody has waited for them yet, or the
    /// last one in vain.
    pub(crate) fn has_to_ask_replicas(&self) -> bool {
        self.writer.is_short() != Some(false)
    }

    /// Asks whether replicas confirm by now.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: it is asked again.
    pub(crate) async fn ask_replicas(&mut self) {
        if self.writer.is_short().is_some() {
            sleep_until(Instant::now() + ASK_AGAIN).await;
        }
        if self.writer.ask_replicas().await.is_none() {
            self.writer.log().set_behind();
        }
    }
}

/// Whether nothing was done, for a reason of its own.
const fn is_refusal(answer: &Answer) -> bool {
    matches!(answer, Answer::Refused(_))
}
