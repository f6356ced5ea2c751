//! The guarantees of a connection for pipelines.

use std::sync::Arc;

use futures_util::future::join_all;

use super::*;

#[tokio::test]
async fn an_error_inside_a_pipeline_is_the_answer_to_its_command_alone() {
    let server = Server::start();
    let connection = open(server.url()).await.unwrap();
    let commands = [set("k", "v"), incr("k"), get("k"), cmd("NONSENSE"), get("none")];
    let answers = connection.call(pipeline(commands)).await.unwrap();
    assert_eq!((&answers[0], &answers[2], &answers[4]), (&Value::Okay, &bulk("v"), &Value::Nil));
    assert!(answers[1].refusal().unwrap().starts_with("ERR value is not an integer"));
    assert!(answers[3].refusal().unwrap().starts_with("ERR unknown command"));
    assert_eq!(connection.call(Pipeline::new()).await, Ok(vec![]));
    let script = connection.ask(Script::RaiseTerm.command(&["term:{t}"])).await.unwrap();
    assert!(script.number().is_some(), "scripts are loaded: {script:?}");
}

/// Calls are made one after the other, from any thread; their answers are asked for in any order or
/// not at all. Calls that nobody waits for need not be sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelines_are_sent_in_the_order_of_calls_even_if_nobody_waits_for_them() {
    const TASKS: usize = 16;
    const CALLS: usize = 500;
    let server = Server::start();
    let connection = Arc::new(open(server.url()).await.unwrap());
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let tasks = (0..TASKS).map(|task| {
        let (connection, order) = (connection.clone(), order.clone());
        tokio::spawn(async move {
            let mut answers = Vec::new();
            for n in 0..CALLS {
                let name = format!("{task}.{n}");
                let push = |part: &str| cmd("RPUSH").arg("log").arg(format!("{name}.{part}")).to_owned();
                let commands = pipeline([push("a"), push("b")]);
                let called = {
                    let mut order = order.lock().unwrap();
                    order.extend([format!("{name}.a"), format!("{name}.b")]);
                    connection.call(commands)
                };
                match n % 3 {
                    0 => drop(called),
                    1 => answers.push(called),
                    _ => assert_eq!(called.await.unwrap().len(), 2),
                }
                if n % 7 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            answers.reverse();
            for answer in join_all(answers).await {
                assert_eq!(answer.unwrap().len(), 2);
            }
        })
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    connection.ask(cmd("PING")).await.unwrap();
    let log: Vec<String> = server.call(&["LRANGE", "log", "0", "-1"]);
    let sent: std::collections::HashSet<_> = log.iter().collect();
    let is_abandoned = |name: &str| name.split('.').nth(1).unwrap().parse::<usize>().unwrap() % 3 == 0;
    let mut order = order.lock().unwrap().clone();
    order.retain(|name| sent.contains(name) || !is_abandoned(name));
    assert_eq!(log, order);
}

/// More than may be under way, and more than fits into any buffer.
#[tokio::test]
async fn what_waits_for_its_turn_is_sent_in_order_too() {
    let server = Server::start();
    let connection = open(server.url()).await.unwrap();
    let payload = vec![b'x'; 2_000];
    let calls: Vec<_> = (0..5_000)
        .map(|_| {
            let echo = cmd("ECHO").arg(&payload).to_owned();
            connection.call(pipeline([incr("n"), echo]))
        })
        .collect();
    for (n, call) in (1..).zip(calls) {
        assert_eq!(call.await.unwrap()[0], Value::Int(n));
    }
}

#[tokio::test]
async fn resp3_answers_have_the_shape_of_resp2() {
    let server = Server::start();
    let resp3 = open(format!("{}?protocol=resp3", server.url())).await.unwrap();
    let resp2 = open(server.url()).await.unwrap();
    server.call::<()>(&["HSET", "h", "a", "1"]);
    server.call::<()>(&["ZADD", "z", "1790000000000", "m", "0.5", "n"]);
    let reads = || {
        pipeline([
            cmd("HGETALL").arg("h").to_owned(),
            cmd("ZRANGE").arg(&["z", "0", "-1"]).to_owned(),
            cmd("HMGET").arg(&["h", "a", "none"]).to_owned(),
            cmd("ZSCORE").arg(&["z", "m"]).to_owned(),
            cmd("CLUSTER").arg("SLOTS").to_owned(),
        ])
    };
    let answers = resp3.call(reads()).await.unwrap();
    assert_eq!(answers, resp2.call(reads()).await.unwrap());
    assert_eq!(answers[0], Value::Array(vec![bulk("a"), bulk("1")]));
    let client = resp3.ask(cmd("CLIENT").arg("INFO").to_owned()).await.unwrap();
    assert!(
        client.text().unwrap().contains("resp=3")
            || resp3.info().get::<String>("redis_version").unwrap().starts_with("7.0")
    );
    let proto = resp3.ask(cmd("HELLO")).await.unwrap();
    let items = proto.items();
    let at = items.iter().position(|item| item.text() == Some("proto")).unwrap();
    assert_eq!(items[at + 1].number(), Some(3));
}
