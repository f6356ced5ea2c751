//! The embedded store passes the conformance suite, at both durability levels.

#![allow(clippy::unwrap_used, reason = "this is a test")]

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use mtimer_store::Store;
use mtimer_store::conformance::{Fault, Harness, Site, Unsupported};
use mtimer_store_embedded::{EmbeddedDurability, EmbeddedOptions, EmbeddedStore, SpaceLimits};

/// How full the disk of the machine is does not matter.
const ANY_SPACE: SpaceLimits = SpaceLimits { watermark: 0, reserve: 0 };

/// Makes stores in temporary folders.
struct Embedded {
    durability: EmbeddedDurability,
}

/// One data directory. It can be open only once, so everybody shares the open store.
struct Directory {
    folder: tempfile::TempDir,
    partitions: u16,
    durability: EmbeddedDurability,
    open: Option<Arc<EmbeddedStore>>,
}

impl Directory {
    fn store(&mut self) -> Arc<EmbeddedStore> {
        let options = EmbeddedOptions {
            durability: self.durability,
            space: ANY_SPACE,
            ..EmbeddedOptions::new(self.folder.path(), self.partitions)
        };
        let open = || Arc::new(EmbeddedStore::open(options).expect("the data directory opens"));
        self.open.get_or_insert_with(open).clone()
    }
}

impl Harness for Embedded {
    fn fresh(&self, partitions: u16) -> BoxFuture<'_, Box<dyn Site>> {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let site = Directory { folder, partitions, durability: self.durability, open: None };
        Box::pin(async move { Box::new(site) as Box<dyn Site> })
    }
}

impl Site for Directory {
    fn open(&mut self) -> BoxFuture<'_, Arc<dyn Store>> {
        let store = self.store();
        Box::pin(async move { store as Arc<dyn Store> })
    }

    fn restart(&mut self) -> BoxFuture<'_, Result<(), Unsupported>> {
        Box::pin(async {
            if let Some(store) = self.open.take() {
                store.close().await;
            }
            Ok(())
        })
    }

    fn fault(&mut self, fault: Fault) -> BoxFuture<'_, Result<(), Unsupported>> {
        let store = self.store();
        Box::pin(async move {
            match fault {
                // It goes by the time of the batches, which the test moves.
                Fault::ForgetEnded => Ok(()),
                Fault::OutOfMemory(is_full) => {
                    let reserve = if is_full { u64::MAX } else { 0 };
                    store.limit_space(SpaceLimits { watermark: 0, reserve }).await.map_err(|_| Unsupported)
                }
                // There is no network in between.
                Fault::LoseNextAnswer(_) | Fault::LoseNextCall(_) | Fault::GoDown | Fault::ComeUp => {
                    Err(Unsupported)
                }
            }
        })
    }
}

mod sync {
    use super::*;

    mtimer_store::conformance_tests!(|| Embedded { durability: EmbeddedDurability::Sync });
}

/// The levels differ only in when a group is synced, so at the other one those tests suffice that
/// come back to the directory, and the random sequences.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fast() {
    let harness = Embedded { durability: EmbeddedDurability::Fast { every: Duration::from_millis(5) } };
    let names = mtimer_store::conformance::names();
    let chosen: Vec<_> =
        names.filter(|name| name.contains("restart") || name.starts_with("random")).collect();
    assert!(chosen.len() > 3, "{chosen:?}");
    for name in chosen {
        mtimer_store::conformance::run(name, &harness).await.unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}
