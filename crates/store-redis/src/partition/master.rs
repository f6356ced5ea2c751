//! The connection to the master that has a partition, wherever that is by now.
//!
//! Not in here: when to try again ([`super::writer`]).

use std::sync::Arc;

use mtimer_store::LaneError;
use redis::{Pipeline, Value};

use crate::wire::{Lost, Network, RedisNode, Remedy, Reply, asking, load_all, remedy, shown};

/// See the module.
pub(super) struct Master {
    network: Arc<dyn Network>,
    hash_slot: u16,
    /// `None`: it has to be found.
    node: Option<Arc<dyn RedisNode>>,
}

/// Why commands have no answer.
pub(super) struct Unanswered {
    /// They may have been carried out. Otherwise there was no connection to send them on.
    pub(super) may_have_run: bool,
    pub(super) why: String,
}

impl Master {
    pub(super) const fn new(network: Arc<dyn Network>, hash_slot: u16) -> Self {
        Self { network, hash_slot, node: None }
    }

    /// Whether it may evict keys.
    pub(super) fn may_evict(&self) -> bool {
        self.network.may_evict(self.hash_slot)
    }

    /// Where it is, as far as is known.
    pub(super) fn address(&self) -> &str {
        self.node.as_ref().map_or("", |node| node.address())
    }

    /// Prepares another attempt after a refusal, and returns the error.
    ///
    /// # Errors
    ///
    /// No attempt can succeed.
    pub(super) async fn apply_remedy(&mut self, remedy: Remedy, error: String) -> Result<String, LaneError> {
        match remedy {
            Remedy::Follow(address) => {
                self.network.moved(self.hash_slot, &address);
                self.node = None;
            }
            // A master that has lost its replicas may have been replaced by one of them.
            Remedy::Rediscover | Remedy::NoWrites => {
                let node = self.node.take();
                // If this fails the next attempt tells.
                let _ = self.network.rediscover(node.as_ref().map(|node| node.address())).await;
            }
            Remedy::LoadScripts => {
                if let Some(node) = &self.node
                    && node.call(load_all()).await.is_err()
                {
                    self.node = None;
                }
            }
            Remedy::Broken => return Err(LaneError::Broken(shown(&error))),
            Remedy::Ask(_) | Remedy::Wait | Remedy::OutOfMemory => {}
        }
        Ok(error)
    }

    /// Sends commands; follows `ASK` for those that were answered so, which is rare: the commands
    /// are made a second time then.
    pub(super) async fn send(
        &mut self,
        commands: impl Fn() -> Pipeline + Send + Sync,
    ) -> Result<Vec<Value>, Unanswered> {
        let node = match &self.node {
            // A former master may not know that it is none any more.
            Some(node) if !node.is_over() && self.is_master(node.address()) => node.clone(),
            _ => self.connect().await.map_err(|Lost(why)| Unanswered { may_have_run: false, why })?,
        };
        let lost = |Lost(why)| Unanswered { may_have_run: true, why };
        let mut values = match node.call(commands()).await {
            Ok(values) => values,
            Err(why) => {
                self.node = None;
                return Err(lost(why));
            }
        };
        for (at, value) in values.iter_mut().enumerate() {
            if let Some(error) = value.refusal()
                && let Remedy::Ask(address) = remedy(&error, node.address())
                && let Some(command) = commands().cmd_iter().nth(at)
            {
                *value = asking(&*self.network, &address, command).await.map_err(lost)?;
            }
        }
        Ok(values)
    }

    fn is_master(&self, address: &str) -> bool {
        broken!(MasterKept) || self.network.leads_to(self.hash_slot, address)
    }

    async fn connect(&mut self) -> Result<Arc<dyn RedisNode>, Lost> {
        let node = match self.network.master(self.hash_slot).await {
            Ok(node) => node,
            Err(_) => {
                self.network.rediscover(None).await?;
                self.network.master(self.hash_slot).await?
            }
        };
        Ok(self.node.insert(node).clone())
    }
}
