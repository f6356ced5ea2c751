//! The embedded store passes the conformance suite, at both durability levels.

#![allow(clippy::unwrap_used, reason = "this is a test")]

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use mtimer_store::Store;
use mtimer_store::conformance::{Harness, Site, Unsupported};
use mtimer_store_embedded::{Durability, EmbeddedStore, Options};

/// Makes stores in temporary folders.
struct Embedded {
    durability: Durability,
}

/// One data directory. It can be open only once, so everybody shares the open store.
struct Directory {
    folder: tempfile::TempDir,
    partitions: u16,
    durability: Durability,
    open: Option<Arc<EmbeddedStore>>,
}

impl Directory {
    fn store(&mut self) -> Arc<EmbeddedStore> {
        let options =
            Options { durability: self.durability, ..Options::new(self.folder.path(), self.partitions) };
        let open = || Arc::new(EmbeddedStore::open(options).expect("the data directory opens"));
        self.open.get_or_insert_with(open).clone()
    }
}

impl Harness for Embedded {
    fn fresh(&self, partitions: u16) -> BoxFuture<'_, Box<dyn Site>> {
        let folder = tempfile::tempdir().expect("there is room for a temporary folder");
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
}

mod sync {
    use super::*;

    mtimer_store::conformance_tests!(|| Embedded { durability: Durability::Sync });
}

mod fast {
    use super::*;

    mtimer_store::conformance_tests!(|| Embedded {
        durability: Durability::Fast { every: Duration::from_millis(5) },
    });
}
