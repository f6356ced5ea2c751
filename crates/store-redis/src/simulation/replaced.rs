//! A master that was replaced and does not notice it: two masters.
//!
//! It serves its connections as before, beside the replica that was promoted. Sentinels lag: until
//! they say so ([`State::hear`]) everybody is led to the former master.

use std::time::Duration;

use mtimer_store::ops::Schedule;
use mtimer_store::{Answer, Batch, Health, Lane, LaneError, Op, ScheduleAnswer};
use mtimer_types::KeyPolicy;
use redis::{Pipeline, Value};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::arbitrary::PARTITION;
use super::data::Data;
use super::run::{Check, Run, acquire_next, alive, block_on, empty, same, timer};
use super::server::State;
use crate::keyspace::keys::Keyspace;
use crate::partition::handed::HandedOver;
use crate::partition::lane::RedisLane;
use crate::wire::Lost;

/// Longer than it takes to look at replicas and at the master again.
const A_WHILE: Duration = Duration::from_secs(1);

impl State {
    /// The replica becomes a master. The present one does not notice, and Sentinels say nothing for
    /// so many calls.
    pub(super) fn promote_beside(&mut self, unheard: u64) {
        self.promoted = self.replica.take().map(|data| (data, unheard));
    }

    /// Sentinels name the promoted replica.
    pub(super) fn hear(&mut self) {
        let Some((data, _)) = self.promoted.take() else { return };
        self.former = Some(std::mem::replace(&mut self.data, data));
        self.term += 1;
        self.follow_anew();
        // Frames on their way go to the former master.
        self.late.clear();
    }

    /// Calls the master of a term.
    pub(super) fn call_master(
        &mut self,
        term: usize,
        connection: u64,
        commands: &Pipeline,
    ) -> Result<Vec<Value>, Lost> {
        if let Some((_, unheard)) = &mut self.promoted {
            *unheard -= 1;
            if *unheard == 0 {
                self.hear();
            }
        }
        if term == self.term {
            return self.call(connection, commands);
        }
        match self.former.take().filter(|_| term + 1 == self.term) {
            Some(former) => {
                let (present, past) = (std::mem::replace(&mut self.data, former), self.past.clone());
                let offset = self.offset;
                let answers = self.run(commands, usize::MAX, None);
                self.former = Some(std::mem::replace(&mut self.data, present));
                (self.past, self.offset) = (past, offset);
                Ok(answers)
            }
            None => Err(Lost("the former master is gone".into())),
        }
    }
}

/// The sequence number that a server has.
fn sequence(data: &Data, cluster: &str) -> Value {
    let owner = Keyspace::new(cluster, PARTITION).owner();
    data.clone().run(&["HMGET", &owner, "s"].map(|word| word.as_bytes().to_vec()))
}

fn schedule(random: u64) -> Batch {
    let op = Op::Schedule(Schedule::new(timer(random, None).into(), KeyPolicy::Create));
    Batch { ops: vec![op], ..empty() }
}

const fn scheduled(new: bool) -> Answer {
    Answer::Schedule(ScheduleAnswer::Scheduled { new, replaced: None })
}

/// Sentinels promote a replica, and say so later. Writes that the former master has answered
/// meanwhile are applied to the new one.
pub(super) fn lagging_sentinels() -> Check {
    block_on(async {
        let Run { server, shared, owner, .. } = Run::new(1, 0).await?;
        let before = server.state().data.clone();
        server.state().replica = Some(before);
        let (health, _) = watch::channel(Health::Up);
        let (lane, task) = RedisLane::new(owner, health, CancellationToken::new().drop_guard());
        let lane: &dyn Lane = &lane;
        let calls = async {
            same("the first", &alive(lane.apply(schedule(1)).await)?, &vec![scheduled(true)])?;
            sleep(A_WHILE).await;
            server.state().promote_beside(u64::MAX);
            same("the second", &alive(lane.apply(schedule(2)).await)?, &vec![scheduled(true)])?;
            sleep(A_WHILE).await;
            server.state().hear();
            server.state().is_alone = true;
            sleep(A_WHILE).await;
            let (former, present) = {
                let state = server.state();
                let former = state.former.as_ref().ok_or("no master was replaced")?;
                (sequence(former, &shared.cluster), sequence(&state.data, &shared.cluster))
            };
            same("what the new master has", &present, &former)?;
            same("a repeat", &alive(lane.apply(schedule(2)).await)?, &vec![scheduled(false)])
        };
        tokio::select! {
            checked = calls => checked,
            () = task => Err("the lane has ended".into()),
        }
    })
}

/// Another owner acquires the partition at the new master: the former one is fenced there, though
/// the former master would accept its writes.
pub(super) fn another_owner() -> Check {
    block_on(async {
        let Run { server, shared, mut owner, mut random, .. } = Run::new(1, 0).await?;
        alive(owner.apply(schedule(1), HandedOver::now()).await)?;
        let data = server.state().data.clone();
        server.state().replica = Some(data);
        server.state().promote_beside(u64::MAX);
        alive(owner.apply(schedule(2), HandedOver::now()).await)?;
        server.state().hear();
        let epoch = owner.epoch();
        let _next = acquire_next(&server, &shared, epoch, epoch, &mut random).await?;
        match owner.apply(schedule(3), HandedOver::now()).await {
            Err(LaneError::Fenced { .. }) => Ok(()),
            other => Err(format!("the owner at the former master was answered {other:?}")),
        }
    })
}
