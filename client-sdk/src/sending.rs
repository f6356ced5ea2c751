//! Operations and questions on their way in: permits for them, one by one or many together.

use std::collections::VecDeque;
use std::sync::Arc;

use mtimer_protocol::ops::Operation;
use mtimer_protocol::{OpReply, Query, QueryAnswer, RequestOp, Role};
use mtimer_types::PartitionId;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use crate::RequestError;
use crate::batch::{BatchAnswers, batch};
use crate::call::{PendingOp, ReplyTarget, Waiter};
use crate::queries::PendingQuery;
use crate::router::{ClientStage, Router};
use crate::routes::Goal;
use crate::state::ClientState;
use crate::sync::Locked;

/// Bytes of an operation that need one more permit.
const PERMIT_BYTES: usize = 4 * 1024;
/// Operations that [`ClientState::request_all`] hands over at once.
const CHUNK: usize = 500;

/// An operation that a client can ask for.
pub(crate) trait ClientOperation: Operation<Reply: TryFrom<OpReply>> + Into<RequestOp> {}

impl<O: Operation<Reply: TryFrom<OpReply>> + Into<RequestOp>> ClientOperation for O {}

/// The reply as one to this operation; [`Requests::reply`](crate::requests::Requests::reply) has
/// refused others.
fn reply_of<O: ClientOperation>(reply: OpReply) -> Result<O::Reply, RequestError> {
    O::Reply::try_from(reply).map_err(|_| RequestError::Mismatched)
}

impl ClientState {
    /// Sends one operation and waits for its answer.
    pub(crate) async fn request<O: ClientOperation>(&self, op: O) -> Result<O::Reply, RequestError> {
        self.request_any(op.into()).await.and_then(reply_of::<O>)
    }

    /// Sends many operations of a kind and waits for their answers, which come in the same order.
    pub(crate) async fn request_all<O: ClientOperation>(
        &self,
        ops: impl Iterator<Item = O>,
    ) -> impl Iterator<Item = Result<O::Reply, RequestError>> {
        let answers = self.request_all_any(ops.map(Into::into)).await;
        answers.into_iter().map(|answer| answer.and_then(reply_of::<O>))
    }

    async fn request_any(&self, op: RequestOp) -> Result<OpReply, RequestError> {
        if self.settings.role != Role::Client {
            return Err(RequestError::Observer);
        }
        let permits = self.acquire(weight(&op)).await?;
        let (reply, answer) = oneshot::channel();
        let waiter =
            Waiter::new(ReplyTarget::Alone(reply, permits), Instant::now(), self.settings.request_timeout);
        let call = PendingOp::new(op, self.partitions, waiter);
        self.hand_over(|router| router.request([call]))?;
        answer.await.unwrap_or(Err(RequestError::Closed))
    }

    async fn request_all_any(
        &self,
        ops: impl Iterator<Item = RequestOp>,
    ) -> Vec<Result<OpReply, RequestError>> {
        if self.settings.role != Role::Client {
            return ops.map(|_| Err(RequestError::Observer)).collect();
        }
        let mut ops = ops.peekable();
        let mut answers = Vec::with_capacity(ops.size_hint().0);
        let mut asked = VecDeque::new();
        while ops.peek().is_some() {
            let most = ops.size_hint().0.clamp(1, CHUNK);
            let (mut chunk, mut weights, mut total) = (Vec::with_capacity(most), Vec::with_capacity(most), 0);
            while let Some(op) = ops.next_if(|op| {
                let more = total + weight(op).min(self.capacity);
                chunk.is_empty() || (chunk.len() < CHUNK && more <= self.capacity)
            }) {
                let weight = weight(&op).min(self.capacity);
                total += weight;
                chunk.push(op);
                weights.push(weight);
            }
            let waiting = chunk.len();
            match self.acquire(total).await.and_then(|permits| self.hand_over_all(chunk, &weights, permits)) {
                Ok(waiting) => asked.push_back(waiting),
                Err(error) => {
                    // What was handed over before is answered before it.
                    collect(&mut asked, &mut answers, 0).await;
                    answers.extend(std::iter::repeat_n(Err(error), waiting));
                }
            }
            collect(&mut asked, &mut answers, self.capacity as usize).await;
        }
        collect(&mut asked, &mut answers, 0).await;
        answers
    }

    fn hand_over_all(
        &self,
        chunk: Vec<RequestOp>,
        weights: &[u32],
        permits: OwnedSemaphorePermit,
    ) -> Result<BatchAnswers, RequestError> {
        let (now, timeout) = (Instant::now(), self.settings.request_timeout);
        let (parts, answers) = batch(weights, permits);
        let calls = chunk.into_iter().zip(parts).map(|(op, part)| {
            PendingOp::new(op, self.partitions, Waiter::new(ReplyTarget::Together(part), now, timeout))
        });
        self.hand_over(|router| router.request(calls))?;
        Ok(answers)
    }

    /// Asks a broker that can know and waits for the answer.
    pub(crate) async fn query(&self, query: Query) -> Result<QueryAnswer, RequestError> {
        let goal = match &query {
            Query::Get(target) => Goal::Partition(target.partition(self.partitions)),
            Query::Dead { cursor, .. } | Query::Unconfirmed { cursor, .. } => {
                Goal::Partition(PartitionId(cursor.map_or(0, |(partition, _)| partition)))
            }
            Query::Drain { .. } => Goal::Leader,
            Query::Status | Query::Cluster | Query::Broker | Query::Ready => Goal::Informed,
        };
        self.query_of(query, goal).await
    }

    /// Asks a question and waits for its answer.
    pub(crate) async fn query_of(&self, query: Query, goal: Goal) -> Result<QueryAnswer, RequestError> {
        let permit = self.acquire(1).await?;
        let (reply, answer) = oneshot::channel();
        let asked = PendingQuery::new(query, goal, reply, permit, self.settings.request_timeout);
        self.hand_over(|router| router.ask(asked))?;
        answer.await.unwrap_or(Err(RequestError::Closed))
    }

    async fn acquire(&self, weight: u32) -> Result<OwnedSemaphorePermit, RequestError> {
        let permits = Arc::clone(&self.permits).acquire_many_owned(weight.min(self.capacity)).await;
        permits.map_err(|_| RequestError::Closed)
    }

    fn hand_over(&self, push: impl FnOnce(&mut Router)) -> Result<(), RequestError> {
        let mut router = self.router.locked();
        if router.stage == ClientStage::Closed {
            return Err(RequestError::Closed);
        }
        push(&mut router);
        let wake = !std::mem::replace(&mut router.ticking, true);
        drop(router);
        if wake {
            self.busy.notify_one();
        }
        Ok(())
    }
}

/// Waits for the oldest answers, until no more than `rest` are left to wait for.
async fn collect(
    asked: &mut VecDeque<BatchAnswers>,
    answers: &mut Vec<Result<OpReply, RequestError>>,
    rest: usize,
) {
    let mut waiting: usize = asked.iter().map(BatchAnswers::len).sum();
    while waiting > rest {
        let Some(oldest) = asked.pop_front() else { break };
        waiting -= oldest.len();
        answers.extend(oldest.all().await);
    }
}

/// How many permits an operation takes.
fn weight(op: &RequestOp) -> u32 {
    1 + (op.bytes() / PERMIT_BYTES) as u32
}
