//! The store passes the conformance suite on a Redis Cluster of three masters.

mod support;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_masters() {
    mtimer_store::conformance::run_all(&support::Clustered::start()).await;
}
