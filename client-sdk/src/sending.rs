//! Operations and questions on their way in: permits for them, one by one or many together.

use std::collections::VecDeque;
use std::sync::Arc;

use mtimer_protocol::ops::Operation;
use mtimer_protocol::{OpReply, Query, QueryAnswer, RequestOp, Role};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::RequestError;
use crate::batch::{BatchAnswers, batch};
use crate::machine::Input;
use crate::machine::routes::Goal;
use crate::shell::{AnswerTarget, ReplyTarget};
use crate::state::ClientState;

/// Bytes of an operation that need one more permit.
const PERMIT_BYTES: usize = 4 * 1024;
/// Operations that [`ClientState::request_all`] hands over at once.
const CHUNK: usize = 500;

/// An operation that a client can ask for.
pub(crate) trait ClientOperation: Operation<Reply: TryFrom<OpReply>> + Into<RequestOp> {}

impl<O: Operation<Reply: TryFrom<OpReply>> + Into<RequestOp>> ClientOperation for O {}

/// The reply as one to this operation; the machine has refused others.
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
        self.handle(Input::Call { op, token: ReplyTarget::Alone(reply, permits) });
        self.wait(answer).await
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
        let waiting_for_all = WaitingCall { state: self, over: false };
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
            match self.acquire(total).await.map(|permits| self.hand_over_all(chunk, &weights, permits)) {
                Ok(waiting) => asked.push_back(waiting),
                Err(error) => {
                    // Operations handed over before are answered before it.
                    collect(&mut asked, &mut answers, 0).await;
                    answers.extend(std::iter::repeat_n(Err(error), waiting));
                }
            }
            collect(&mut asked, &mut answers, self.capacity as usize).await;
        }
        collect(&mut asked, &mut answers, 0).await;
        waiting_for_all.end();
        answers
    }

    fn hand_over_all(
        &self,
        chunk: Vec<RequestOp>,
        weights: &[u32],
        permits: OwnedSemaphorePermit,
    ) -> BatchAnswers {
        let (parts, answers) = batch(weights, permits);
        let tokens = parts.map(ReplyTarget::Together);
        self.handle(Input::Calls(chunk.into_iter().zip(tokens).collect()));
        answers
    }

    /// Asks a broker that can know and waits for the answer.
    pub(crate) async fn query(&self, query: Query) -> Result<QueryAnswer, RequestError> {
        self.ask(query, None).await
    }

    /// Asks one broker and waits for the answer.
    pub(crate) async fn query_broker(
        &self,
        query: Query,
        broker: String,
    ) -> Result<QueryAnswer, RequestError> {
        self.ask(query, Some(Goal::Broker(broker))).await
    }

    async fn ask(&self, query: Query, goal: Option<Goal>) -> Result<QueryAnswer, RequestError> {
        let _permit = self.acquire(1).await?;
        let (reply, answer) = oneshot::channel();
        self.handle(Input::Ask { query, goal, token: AnswerTarget { reply, _permit } });
        self.wait(answer).await
    }

    /// Waits for an answer. The machine hears of it if the caller stops waiting.
    async fn wait<T>(&self, answer: oneshot::Receiver<Result<T, RequestError>>) -> Result<T, RequestError> {
        let waiting = WaitingCall { state: self, over: false };
        let answer = answer.await;
        waiting.end();
        answer.unwrap_or(Err(RequestError::Closed))
    }

    async fn acquire(&self, weight: u32) -> Result<OwnedSemaphorePermit, RequestError> {
        let permits = Arc::clone(&self.permits).acquire_many_owned(weight.min(self.capacity)).await;
        permits.map_err(|_| RequestError::Closed)
    }
}

/// A call that waits for answers.
struct WaitingCall<'a> {
    state: &'a ClientState,
    /// They have come.
    over: bool,
}

impl WaitingCall<'_> {
    fn end(mut self) {
        self.over = true;
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.state.handle(Input::Abandoned);
        }
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
