//! The store passes the conformance suite on a Redis Cluster of three masters.

mod support;

use std::sync::Arc;

use mtimer_store_redis_next::test_support::TestCluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_masters() {
    let harness = support::Clustered { cluster: Arc::new(TestCluster::start()) };
    mtimer_store::conformance::run_all(&harness).await;
}
