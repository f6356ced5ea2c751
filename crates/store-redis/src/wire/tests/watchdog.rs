//! Connections that break or fall silent.

use std::time::Instant;

use futures_util::future::join_all;

use super::*;

const SHORT_TIMEOUT: Use = Use { answer_within: Duration::from_millis(300), ..LONG_TIMEOUT };

#[tokio::test]
async fn a_connection_that_is_silent_while_an_answer_is_due_is_over() {
    let server = Server::start();
    let connection = open_with(RedisOptions::new([server.url()], "t"), SHORT_TIMEOUT).await.unwrap();
    // Silence is no fault while nothing is asked.
    tokio::time::sleep(SHORT_TIMEOUT.answer_within * 2).await;
    let began = Instant::now();
    connection.ask(cmd("PING")).await.unwrap();
    // The connection's own question may be under way already.
    server.freeze();
    let calls: Vec<_> = (0..3).map(|_| connection.call(pipeline([incr("n"), incr("n")]))).collect();
    let lost = Lost(format!("{}: no answer within 300 ms", server.address()));
    for answer in join_all(calls).await {
        assert_eq!(answer, Err(lost.clone()));
    }
    assert!((SHORT_TIMEOUT.answer_within..Duration::from_secs(10)).contains(&began.elapsed()));
    server.thaw();
    // Once over, it stays over, and nothing more is sent.
    assert_eq!(connection.ask(incr("n")).await, Err(lost));
    assert!(connection.is_over());
    until("the server sees the connection end", || {
        // This one is the caller's.
        server.call::<String>(&["CLIENT", "LIST"]).lines().count() == 1
    })
    .await;
    let n: Option<u64> = server.call(&["GET", "n"]);
    assert!(n.is_none_or(|n| n == 6), "what was sent before is carried out once, or not at all: {n:?}");
}

/// Callers may give up before the connection does, and ask again and again.
#[tokio::test]
async fn a_silent_server_is_noticed_although_every_caller_gives_up_before() {
    let server = Server::start();
    let connection = open_with(RedisOptions::new([server.url()], "t"), SHORT_TIMEOUT).await.unwrap();
    server.freeze();
    let began = Instant::now();
    while !connection.is_over() {
        assert!(began.elapsed() < Duration::from_secs(20), "the connection is not given up");
        let gave_up =
            tokio::time::timeout(SHORT_TIMEOUT.answer_within / 3, connection.ask(cmd("PING"))).await;
        assert!(gave_up.is_err() || connection.is_over());
        tokio::time::sleep(SHORT_TIMEOUT.answer_within / 6).await;
    }
    server.thaw();
}

/// An answer is due all the time, for longer than the limit, but each comes well within it.
#[tokio::test]
async fn a_server_that_is_slow_but_answers_is_not_lost() {
    let server = Server::start();
    let limit = Use { answer_within: Duration::from_secs(1), ..LONG_TIMEOUT };
    let connection = open_with(RedisOptions::new([server.url()], "t"), limit).await.unwrap();
    let sleeps = || async {
        for _ in 0..6 {
            let sleep = cmd("DEBUG").arg(&["SLEEP", "0.1"]).to_owned();
            assert_eq!(connection.ask(sleep).await, Ok(Value::Okay));
        }
    };
    tokio::join!(sleeps(), sleeps());
}

#[tokio::test]
async fn a_lost_connection_fails_everything_unanswered_and_sends_nothing_twice() {
    let server = Server::start();
    let proxy = Proxy::start(&server.address()).await;
    for (round, lose) in [Proxy::lose_answer, Proxy::lose_call].into_iter().enumerate() {
        let connection = open(proxy.url()).await.unwrap();
        lose(&proxy, &format!("n{round}"));
        let calls: Vec<_> =
            (0..50).map(|_| connection.call(pipeline([incr(&format!("n{round}"))]))).collect();
        let mut answers = join_all(calls).await.into_iter();
        let answered = answers.by_ref().take_while(Result::is_ok).count();
        assert!(answers.all(|answer| answer.is_err()), "nothing is answered behind a lost answer");
        assert!(connection.ask(cmd("PING")).await.is_err() && connection.is_over());
        assert_eq!(proxy.lost(), round + 1);
        let n: Option<usize> = server.call(&["GET", &format!("n{round}")]);
        assert!(
            (answered..=50).contains(&n.unwrap_or(0)),
            "{n:?} of 50 were carried out, {answered} answered"
        );
    }
}

#[tokio::test]
async fn a_pool_opens_a_connection_anew_and_does_not_hammer_a_server_that_refuses() {
    let mut server = Server::start();
    let pool = pool(ServerAccess::default());
    let address = server.address();
    let first = pool.get(&address, LONG_TIMEOUT).await.unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &pool.get(&address, LONG_TIMEOUT).await.unwrap()));
    server.kill();
    assert!(first.ask(cmd("PING")).await.is_err());
    let began = Instant::now();
    let refused = pool.get(&address, LONG_TIMEOUT).await.unwrap_err();
    assert!(refused.0.starts_with(&address), "{refused}");
    // A caller that asks at once gets the same refusal, unless this took longer than a refusal
    // counts.
    let again = pool.get(&address, LONG_TIMEOUT).await.unwrap_err();
    assert!(again == refused || began.elapsed() > Duration::from_millis(30));
    server.restart();
    let mut second = pool.get(&address, LONG_TIMEOUT).await;
    while second.is_err() && began.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_millis(5)).await;
        second = pool.get(&address, LONG_TIMEOUT).await;
    }
    assert_eq!(second.unwrap().ask(incr("n")).await, Ok(Value::Int(1)));
    assert!(first.is_over());
}

#[tokio::test]
async fn a_connection_that_is_dropped_answers_what_it_was_asked_and_closes() {
    let server = Server::start();
    let connection = open(server.url()).await.unwrap();
    let call = connection.call(pipeline([incr("n")]));
    drop(connection);
    assert_eq!(call.await, Ok(vec![Value::Int(1)]));
    until("the connection is closed", || server.call::<String>(&["CLIENT", "LIST"]).lines().count() == 1)
        .await;
}
