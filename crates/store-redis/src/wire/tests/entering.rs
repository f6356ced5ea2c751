//! TLS, users, passwords, Unix sockets, databases, and the errors about servers that cannot be
//! used.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mtimer_store::StoreError;

use super::*;

fn tls_server(authority: &Arc<Authority>, clients_too: bool) -> Server {
    let tls = Some(TlsPort { authority: authority.clone(), clients_too });
    Server::start_with(ServerOptions { tls, ..ServerOptions::default() })
}

async fn open_tls(url: String, tls: ClientFiles) -> Result<RedisConnection, Lost> {
    open_with(RedisOptions { tls, ..RedisOptions::new([url], "t") }, LONG_TIMEOUT).await
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn trusting(authority: &Authority) -> ClientFiles {
    ClientFiles { authorities: Some(authority.certificate()), ..ClientFiles::default() }
}

/// The advice that an operator gets.
fn advice(refused: Result<RedisConnection, Lost>) -> String {
    match explain(refused.map(drop).unwrap_err()) {
        StoreError::Unusable(text) => text,
        StoreError::Unavailable(text) => panic!("no advice: {text}"),
    }
}

#[tokio::test]
async fn tls_with_an_authority_of_ones_own() {
    let authority = Arc::new(Authority::new());
    let server = tls_server(&authority, false);
    let connection = open_tls(server.tls_url(), trusting(&authority)).await.unwrap();
    assert_eq!(connection.ask(incr("n")).await, Ok(Value::Int(1)));
    let other = Authority::new();
    let told = advice(open_tls(server.tls_url(), trusting(&other)).await);
    assert!(told.contains("does not trust the server's certificate"), "{told}");
    let told = advice(open_tls(server.tls_url(), ClientFiles::default()).await);
    assert!(told.contains("does not trust the server's certificate"), "{told}");
    let by_name = server.tls_url().replace("127.0.0.1", "localhost");
    let told = advice(open_tls(by_name, trusting(&authority)).await);
    assert!(told.contains("host name"), "{told}");
}

#[tokio::test]
async fn tls_with_a_client_certificate() {
    let authority = Arc::new(Authority::new());
    let server = tls_server(&authority, true);
    let with = |(certificate, key): (PathBuf, PathBuf)| ClientFiles {
        certificate: Some(certificate),
        key: Some(key),
        ..trusting(&authority)
    };
    let connection = open_tls(server.tls_url(), with(authority.issue("client"))).await.unwrap();
    assert_eq!(connection.ask(incr("n")).await, Ok(Value::Int(1)));
    let told = advice(open_tls(server.tls_url(), trusting(&authority)).await);
    assert!(told.contains("give the client certificate"), "{told}");
    let other = Authority::new();
    let told = advice(open_tls(server.tls_url(), with(other.issue("client"))).await);
    assert!(told.contains("give the client certificate"), "{told}");
    let (certificate, _) = authority.issue("client");
    set_mode(&certificate, 0o600);
    let tls = with((certificate.clone(), certificate));
    let told = RedisOptions { tls, ..RedisOptions::new([server.tls_url()], "t") }.check().unwrap_err();
    assert!(told.to_string().contains("no PEM section \"PRIVATE KEY\""), "{told}");
}

/// The files as they are count for the next connection; while they cannot be used, the contents
/// read last count.
#[tokio::test]
async fn a_renewed_client_certificate_is_shown_without_a_restart() {
    let (authority, other) = (Arc::new(Authority::new()), Authority::new());
    let server = tls_server(&authority, true);
    let (certificate, key) = authority.issue("client");
    let tls = ClientFiles {
        certificate: Some(certificate.clone()),
        key: Some(key.clone()),
        ..trusting(&authority)
    };
    let authorities = tls.authorities.clone().unwrap();
    let (_, access) = RedisOptions { tls, ..RedisOptions::new([server.tls_url()], "t") }.check().unwrap();
    let address = server.tls_url().trim_start_matches("rediss://").to_owned();
    let tasks = TaskTracker::new();
    let open = async || RedisConnection::open(&address, &access, LONG_TIMEOUT, &tasks).await;
    open().await.unwrap();
    let replace = |(new_certificate, new_key): &(PathBuf, PathBuf)| {
        std::fs::copy(new_certificate, &certificate).unwrap();
        std::fs::copy(new_key, &key).unwrap();
    };
    replace(&other.issue("stranger"));
    let told = advice(open().await);
    assert!(told.contains("give the client certificate"), "what is there now is shown: {told}");
    let renewed = authority.issue("renewed");
    replace(&renewed);
    open().await.unwrap();
    std::fs::copy(authority.issue("next").0, &certificate).unwrap();
    open().await.expect("a certificate without its key is not used");
    std::fs::remove_file(&key).unwrap();
    open().await.expect("a key that is not there changes nothing");
    std::fs::copy(&renewed.1, &key).unwrap();
    set_mode(&key, 0o644);
    open().await.expect("nor does one that others can read");
    let pem = std::fs::read(&authorities).unwrap();
    for damaged in [&pem[..0], &pem[..pem.len() / 2]] {
        std::fs::write(&authorities, damaged).unwrap();
        open().await.expect("authorities that are cut off are not used");
    }
}

#[tokio::test]
async fn tls_and_plain_ports_that_are_confused() {
    let authority = Arc::new(Authority::new());
    let server = tls_server(&authority, false);
    let refused = open_tls(server.url().replace("redis:", "rediss:"), trusting(&authority)).await;
    assert!(advice_free(refused).contains("is it a TLS port?"));
    let refused = open(server.tls_url().replace("rediss:", "redis:")).await.map(drop).unwrap_err();
    assert!(!refused.0.is_empty());
}

#[tokio::test]
async fn a_user_with_few_rights() {
    let extra = user_with(&documented_rights("t"));
    let server = Server::start_with(ServerOptions { extra, ..ServerOptions::default() });
    let url = |login: &str| format!("redis://{login}@{}", server.address());
    let connection = open(url("mtimer:hush")).await.unwrap();
    check_server(&server.address(), &connection).unwrap();
    assert!(connection.ask(Script::RaiseTerm.command(&["term:{t}"])).await.unwrap().number().is_some());
    for refused in [cmd("FLUSHALL"), incr("n:{t}"), get("n"), get("term:{other}"), get("owner:{0}:other")] {
        let said = connection.ask(refused.clone()).await.unwrap();
        assert!(said.refusal().is_some_and(|why| why.starts_with("NOPERM")), "{refused:?}: {said:?}");
    }
    let told = advice(open(url("mtimer:wrong")).await);
    assert!(told.contains("WRONGPASS") && !told.contains("wrong@"), "{told}");
    server.call::<()>(&["ACL", "SETUSER", "mtimer", "-info"]);
    let told = advice(open(url("mtimer:hush")).await);
    assert!(told.contains("ACL SETUSER") && !told.contains("hush"), "{told}");
}

#[tokio::test]
async fn a_password_and_a_database() {
    let extra = ["--requirepass", "hush", "--databases", "4"].map(str::to_owned).to_vec();
    let server = Server::start_with(ServerOptions { extra, ..ServerOptions::default() });
    let url = |rest: &str| format!("redis://:hush@{}{rest}", server.address());
    let connection = open(url("/3")).await.unwrap();
    connection.ask(set("k", "v")).await.unwrap();
    assert_eq!(open(url("/3?protocol=resp3")).await.unwrap().ask(get("k")).await, Ok(bulk("v")));
    assert_eq!(open(url("")).await.unwrap().ask(get("k")).await, Ok(Value::Nil));
    let told = advice(open(url("/7")).await);
    assert!(told.contains("leave the database number out"), "{told}");
    let told = advice(open(server.url()).await);
    assert!(told.contains("give user and password") && told.contains("`ps` shows"), "{told}");
    assert!(told.contains("write @ / ? # , % in a user or password as %40 %2F %3F %23 %2C %25"), "{told}");
    let open_to_all = Server::start();
    let told = advice(open(format!("redis://:hush@{}", open_to_all.address())).await);
    assert!(told.contains("leave it out") && !told.contains("hush"), "{told}");
}

#[tokio::test]
async fn a_unix_socket() {
    let server = Server::start_with(ServerOptions { unix_socket: true, ..ServerOptions::default() });
    let servers = discover(vec![server.unix_url()]).await;
    let master = servers.master(7).await.unwrap();
    assert!(master.address().ends_with("redis.sock"));
    assert_eq!(master.call(pipeline([incr("n")])).await, Ok(vec![Value::Int(1)]));
}

#[tokio::test]
async fn servers_that_cannot_be_used_are_refused_with_advice() {
    let evicting = ["--maxmemory-policy", "allkeys-lru"].map(str::to_owned).to_vec();
    let server = Server::start_with(ServerOptions { extra: evicting, ..ServerOptions::default() });
    let connection = open(server.url()).await.unwrap();
    let told = check_server(&server.address(), &connection).unwrap_err().to_string();
    assert!(told.contains("noeviction"), "{told}");
    let web = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", web.local_addr().unwrap());
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut socket, _) = web.accept().await.unwrap();
        let mut request = [0; 1_024];
        let _ = socket.read(&mut request).await;
        let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        std::future::pending::<()>().await;
    });
    let told = advice(open(url).await);
    assert!(told.contains("it is not Redis"), "{told}");
    let nobody = advice_free(open("redis://127.0.0.1:1".into()).await);
    assert!(nobody.contains("127.0.0.1:1: ") && nobody.contains("refused"), "{nobody}");
}

/// The text of an error that waiting may mend.
fn advice_free(refused: Result<RedisConnection, Lost>) -> String {
    match explain(refused.map(drop).unwrap_err()) {
        StoreError::Unavailable(text) => text,
        StoreError::Unusable(text) => panic!("{text}"),
    }
}
