//! A password of Redis that changes while the store is in use.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use std::sync::{Arc, Mutex};

use mtimer_store::{Answer, ScheduleAnswer};
use mtimer_store_redis::RedisOptions;
use mtimer_store_redis::test_support::{Server, ServerOptions};
use support::owner::{Owner, connect, now, schedule, timer};
use support::until;

const NEW: Answer = Answer::Schedule(ScheduleAnswer::Scheduled { new: true, replaced: None });

/// A server with a user of the store, and a file with the address.
struct Site {
    server: Server,
    address: Arc<Mutex<Result<String, String>>>,
}

impl Site {
    fn start() -> Self {
        let user = ["--user", "mtimer", "on", ">one", "~*", "+@all"].map(str::to_owned).to_vec();
        let server = Server::start_with(ServerOptions { extra: user, ..ServerOptions::default() });
        let address = Arc::new(Mutex::new(Ok(Self::url(&server, "one"))));
        Self { server, address }
    }

    fn url(server: &Server, password: &str) -> String {
        server.url().replacen("://", &format!("://mtimer:{password}@"), 1)
    }

    fn options(&self) -> RedisOptions {
        let address = self.address.clone();
        let read = move || address.lock().unwrap().clone().map(|url| vec![url]);
        let urls = [Self::url(&self.server, "one")];
        RedisOptions { read_urls: Some(Arc::new(read)), ..RedisOptions::new(urls, "t") }
    }

    fn write(&self, password: &str) {
        *self.address.lock().unwrap() = Ok(Self::url(&self.server, password));
    }

    /// The server takes another password, and all clients have to log in again.
    fn change(&self, password: &str) {
        self.server.call::<()>(&["ACL", "SETUSER", "mtimer", "resetpass", &format!(">{password}")]);
        self.server.call::<()>(&["CLIENT", "KILL", "USER", "mtimer"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_is_refused_is_read_again() {
    let site = Site::start();
    let owner = Owner::of(connect(site.options()).await).await;
    let one = || async { owner.one(schedule(&timer(now() + 60_000, 5))).await };
    assert_eq!(one().await, NEW);
    site.write("two");
    site.change("two");
    assert_eq!(one().await, NEW);
    // The server is changed first, and the file later.
    site.change("three");
    let waiting = one();
    let later = async {
        let refused =
            || format!("{:?}", site.server.call::<redis::Value>(&["ACL", "LOG"])).contains("mtimer");
        until("the old password is refused", refused).await;
        site.write("three");
    };
    assert_eq!(tokio::join!(waiting, later).0, NEW);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_read_again_when_that_is_asked_for() {
    let site = Site::start();
    let owner = Owner::of(connect(site.options()).await).await;
    assert_eq!(owner.store.reload(), Ok(false));
    *site.address.lock().unwrap() = Err("no such file".into());
    assert!(owner.store.reload().unwrap_err().to_string().contains("no such file"));
    site.write("t/o");
    let refused = owner.store.reload().unwrap_err().to_string();
    assert!(refused.contains("%2F") && !refused.contains("t/o"), "{refused}");
    site.write("two");
    assert_eq!(owner.store.reload(), Ok(true));
    // Connections that exist stay.
    assert_eq!(owner.one(schedule(&timer(now() + 60_000, 5))).await, NEW);
}
