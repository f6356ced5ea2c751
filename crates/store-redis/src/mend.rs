//! What a lane does about a script that was not run: the carrying out of [`crate::fault`]'s table.
//!
//! Not in here: lost answers ([`crate::recovery`]).

use mtimer_store::{Answer, LaneError, Op, Refusal};
use tokio::time::Instant;

use crate::fault::{Remedy, remedy};
use crate::lane::Engine;
use crate::window::{Item, Work};

impl Engine {
    /// Another owner, or nobody: what it means.
    pub(crate) async fn fenced(&mut self, stored: u64) -> Result<(), LaneError> {
        if self.asking.take().is_some() && stored == 0 {
            // The owner record has not migrated yet.
            self.down("a hash slot is being migrated");
            self.backoff.wait().await;
            return Ok(());
        }
        if stored < self.facts.epoch.0 {
            return Err(LaneError::RolledBack(self.partition));
        }
        let stored = mtimer_types::Epoch(stored);
        Err(LaneError::Fenced { partition: self.partition, stored, ours: self.facts.epoch })
    }

    /// Redis has refused to run the script at the front.
    pub(crate) async fn mend(&mut self, error: &str) -> Result<(), LaneError> {
        self.hints.endings.lose(Instant::now());
        let conn = self.asking.as_ref().or(self.conn.as_ref()).cloned();
        let address = conn.as_ref().map_or_else(String::new, |c| c.address.to_string());
        match remedy(error, &address) {
            Remedy::Follow(address) => {
                self.shared.topology.moved(self.hash_slot, &address);
                (self.asking, self.conn) = (None, None);
                // A live node has said so: its successor has another run id, and the count tells whether it has all.
                self.run_id = "".into();
                self.recover(error).await
            }
            Remedy::Ask(address) => {
                self.backoff.wait().await;
                self.asking = self.shared.pool.get(&address).await.ok();
                Ok(())
            }
            Remedy::LoadScripts => match conn {
                Some(conn) => {
                    self.backoff.wait().await;
                    // If this fails the next script will tell.
                    let _ = conn.load_scripts().await;
                    Ok(())
                }
                None => Ok(()),
            },
            Remedy::OutOfMemory if self.front_adds() => self.refuse_front(Refusal::OutOfMemory),
            Remedy::NoWrites(why) if self.front_adds() => {
                self.down(&why);
                self.refuse_front(Refusal::ReadOnly)
            }
            Remedy::OutOfMemory => self.hold("the store is out of memory").await,
            Remedy::Wait(why) | Remedy::NoWrites(why) => self.hold(&why).await,
            Remedy::Rediscover(why) => {
                (self.asking, self.conn) = (None, None);
                self.recover(&why).await
            }
            Remedy::Broken(why) => Err(LaneError::Broken(why)),
        }
    }

    /// Waits a little before everything is sent again.
    async fn hold(&mut self, why: &str) -> Result<(), LaneError> {
        self.asking = None;
        self.down(why);
        self.backoff.wait().await;
        Ok(())
    }

    fn front_adds(&self) -> bool {
        matches!(self.window.front(), Some(Item { work: Work::Ops(run), .. }) if run.ops.iter().all(Op::adds))
    }

    /// Answers the operations at the front with a refusal. A claim that came with them is still made.
    fn refuse_front(&mut self, refusal: Refusal) -> Result<(), LaneError> {
        let Some(mut item) = self.window.pop_front() else { return Ok(()) };
        self.filed_nothing(&mut item);
        let Work::Ops(run) = &item.work else { return Ok(()) };
        let (answers, claim) = (vec![Answer::Refused(refusal); run.ops.len()], run.claim);
        self.answered(item.call, &run.places, answers);
        match claim {
            Some(until) => {
                item.work = Work::Claim { until, held: false };
                self.window.push_front(item);
            }
            None => self.done(item.call),
        }
        Ok(())
    }
}
