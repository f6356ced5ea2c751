use std::io::{self, Write};

use tokio::net::TcpListener;

use super::*;
use crate::clock::ClientClock;
use crate::router::tests::welcome;
use crate::settings::Settings;
use crate::state::tests::connection;

/// What is logged at level warn and above.
#[derive(Clone, Default)]
struct Warnings(Arc<std::sync::Mutex<Vec<u8>>>);

impl Write for Warnings {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Warnings {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[tokio::test]
async fn a_connection_that_the_client_closes_is_not_called_lost() {
    let warnings = Warnings::default();
    let writer = warnings.clone();
    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_ansi(false);
    let _log = tracing::subscriber::set_default(log.with_writer(move || writer.clone()).finish());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for stops in [false, true] {
        let (settings, now) = (Settings::default(), Instant::now());
        let seeds = DialPlan::new(&Settings { brokers: vec!["fake:1".into()], ..settings.clone() }).unwrap();
        let clock = ClientClock::new(welcome().now, now, now);
        let state = Arc::new(ClientState::new(settings, clock, "fake", &welcome()));
        let first = connection(&listener).await;
        let handle = state.opened(&first);
        let address = first.broker;
        let open = OpenConnection { name: None, address, since: now, target: DialTarget::Seed };
        let mut pool = Pool {
            state: Arc::clone(&state),
            tasks: JoinSet::new(),
            open: BTreeMap::from([(handle.session, open)]),
            links: BTreeMap::new(),
            trying: BTreeMap::new(),
            failed: BTreeSet::new(),
            seeds,
            alone_since: None,
        };
        if stops {
            state.stop();
        }
        // As the session of a client that has stopped ends.
        pool.handle(PoolEvent::Ended(handle, LinkError::Left));
        let said = warnings.text().contains("the last connection is lost");
        assert_eq!(said, !stops, "{}", warnings.text());
        warnings.0.lock().unwrap().clear();
    }
}
