use mtimer_protocol::frame_codec;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::codec::FramedRead;

use super::*;
use crate::router::tests::welcome;

pub(crate) async fn connection(listener: &TcpListener) -> BrokerConnection {
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (read, write) = mtimer_tls::Stream::Plain(stream).into_split();
    let frames = FramedRead::new(read, frame_codec(crate::limits::MAX_FRAME));
    let now = Instant::now();
    BrokerConnection { broker: "fake".into(), welcome: welcome(), sent: now, received: now, frames, write }
}

#[tokio::test]
async fn the_end_is_the_last_word_about_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let now = Instant::now();
    let state =
        ClientState::new(Settings::default(), ClientClock::new(welcome().now, now, now), "fake", &welcome());
    let connected = state.connected.subscribe();
    let first = state.opened(&connection(&listener).await);
    let second = state.opened(&connection(&listener).await);
    assert!(*connected.borrow());
    state.closed(&first, "gone");
    assert!(*connected.borrow());
    state.stop();
    assert!(!*connected.borrow());
    // One that was being made, or was there, as the client stopped.
    state.opened(&connection(&listener).await);
    assert!(!*connected.borrow());
    state.closed(&second, "gone");
    assert!(!*connected.borrow());
    tokio::time::timeout(Duration::from_secs(60), state.close()).await.expect("it ends").unwrap();
}
