use std::io::{self, Write};

use mtimer_protocol::{BrokerEntry, ServerMessage};
use mtimer_types::Term;

use super::*;
use crate::machine::tests::welcome;

/// The log at level warn and above.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<u8>>>);

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

fn state() -> ClientState {
    let settings = Settings { brokers: vec!["a:1".into()], ..Settings::default() };
    ClientState::new(settings).unwrap()
}

/// The connection of this number is there, to a broker of this name.
fn open(state: &ClientState, connection: u64, name: Option<&str>) {
    state.handle(Input::Connected { connection, address: "a:1".into() });
    state.with(|machine, now| machine.poll_transmit(now, connection, &mut Vec::new()));
    let welcome = Welcome { broker: name.map(str::to_owned), ..welcome() };
    state.handle(Input::Frame { connection, message: ServerMessage::Welcome(welcome) });
}

fn close(state: &ClientState, connection: u64) {
    state.handle(Input::Closed { connection, end: LinkError::Closed });
}

#[tokio::test]
async fn the_end_is_the_last_word_about_the_connection() {
    let state = state();
    let connected = state.connected();
    open(&state, 1, Some("a:1"));
    let entry = |address: &str| BrokerEntry { address: address.into(), draining: false };
    let topology = Topology {
        term: Term(1),
        version: 1,
        leader: "a:1".into(),
        brokers: vec![entry("a:1"), entry("b:1")],
        owners: vec![Some(0)],
    };
    state.handle(Input::Frame { connection: 1, message: ServerMessage::Topology(topology) });
    open(&state, 2, Some("b:1"));
    assert!(*connected.borrow());
    close(&state, 1);
    assert!(*connected.borrow());
    state.stop();
    assert!(!*connected.borrow());
    // One that was being made, or was there, as the client stopped.
    open(&state, 3, Some("a:1"));
    assert!(!*connected.borrow());
    close(&state, 2);
    assert!(!*connected.borrow());
    tokio::time::timeout(Duration::from_secs(60), state.close()).await.expect("it ends").unwrap();
}

#[tokio::test]
async fn a_connection_that_the_client_closes_is_not_called_lost() {
    let warnings = Warnings::default();
    let writer = warnings.clone();
    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_ansi(false);
    let _log = tracing::subscriber::set_default(log.with_writer(move || writer.clone()).finish());
    for stops in [false, true] {
        let state = state();
        open(&state, 1, None);
        if stops {
            state.stop();
        }
        close(&state, 1);
        let said = warnings.text().contains("the last connection is lost");
        assert_eq!(said, !stops, "{}", warnings.text());
        warnings.0.lock().unwrap().clear();
    }
}
