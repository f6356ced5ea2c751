//! Handshakes over loopback sockets, with good and bad certificates.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ProtocolVersion, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

use crate::test_support::{Authority, Issued};
use crate::{
    AcceptError, ClientCertificate, ClientFiles, ClientPem, ClientTls, ClientTlsOptions, Identity, Pem,
    ServerFiles, ServerTls, Stream, TlsConnectError, TlsError, pem, provider,
};

const WITHIN: Duration = Duration::from_secs(30);

fn server(issued: &Issued, client_ca: Option<PathBuf>) -> ServerTls {
    let (certificate, key) = (issued.certificate.clone(), issued.key.clone());
    ServerTls::open(ServerFiles { certificate, key, client_ca }).unwrap()
}

fn options(authority: &Authority) -> ClientTlsOptions {
    ClientTlsOptions { authorities: Pem::File(authority.certificate()), identity: None, server_name: None }
}

fn identity(issued: &Issued) -> Option<Identity> {
    let file = |path: &PathBuf| Pem::File(path.clone());
    Some(Identity { certificate: file(&issued.certificate), key: file(&issued.key) })
}

async fn pair() -> (TcpStream, TcpStream, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let client = TcpStream::connect(&address).await.unwrap();
    (client, listener.accept().await.unwrap().0, address)
}

type Sides = (Result<Stream, TlsConnectError>, Result<Stream, AcceptError>);

/// Shakes hands; with TLS 1.3 the client learns by its first read whether it was let in.
async fn shake(server: &ServerTls, client: &ClientTls, clients: ClientCertificate) -> Sides {
    let (to_server, to_client, address) = pair().await;
    let connecting = async {
        let mut stream = client.connect(to_server, &address, WITHIN).await?;
        let mut byte = [0];
        match stream.read_exact(&mut byte).await {
            Ok(_) => Ok(stream),
            Err(error) => Err(client.explain(error).unwrap_or_else(TlsConnectError::Lost)),
        }
    };
    let accepting = async {
        let mut stream = server.accept(to_client, clients, WITHIN).await?;
        stream.write_all(b"!").await.unwrap();
        stream.flush().await.unwrap();
        Ok(stream)
    };
    tokio::join!(connecting, accepting)
}

async fn refused(server: &ServerTls, client: &ClientTls) -> String {
    let (client, server) = shake(server, client, ClientCertificate::Required).await;
    let error = client.expect_err("the client is not connected");
    assert!(!error.is_retryable(), "{error}");
    assert!(matches!(server, Err(AcceptError::Failed(_))), "{server:?}");
    error.to_string()
}

#[tokio::test]
async fn both_halves_carry_bytes_both_ways() {
    let authority = Authority::new();
    let server = server(&authority.issue("server"), None);
    let client = ClientTls::open(&options(&authority)).unwrap();
    let (client, server) = shake(&server, &client, ClientCertificate::Required).await;
    let ((mut read, mut write), (mut read2, mut write2)) =
        (client.unwrap().into_split(), server.unwrap().into_split());
    let sent = vec![7; 1 << 20];
    let upward = async {
        write.write_all(&sent).await.unwrap();
        write.flush().await.unwrap();
        write.shutdown().await.unwrap();
    };
    let downward = async {
        let mut received = Vec::new();
        read2.read_to_end(&mut received).await.unwrap();
        write2.write_all(&received).await.unwrap();
        write2.shutdown().await.unwrap();
    };
    let mut back = Vec::new();
    let (_, _, result) = tokio::join!(upward, downward, read.read_to_end(&mut back));
    result.unwrap();
    assert_eq!(back, sent);
}

#[tokio::test]
async fn both_versions_are_spoken() {
    let authority = Authority::new();
    let server = server(&authority.issue("server"), None);
    let of = |version: &'static SupportedProtocolVersion| {
        let text = std::fs::read(authority.certificate()).unwrap();
        let roots = pem::authorities("authority", "ca.pem", &text).unwrap();
        ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth()
    };
    for (version, spoken) in [(&TLS12, ProtocolVersion::TLSv1_2), (&TLS13, ProtocolVersion::TLSv1_3)] {
        let (to_server, to_client, _) = pair().await;
        let connector = TlsConnector::from(Arc::new(of(version)));
        let name = "127.0.0.1".try_into().unwrap();
        let (client, server) = tokio::join!(
            connector.connect(name, to_server),
            server.accept(to_client, ClientCertificate::Required, WITHIN)
        );
        assert_eq!(client.unwrap().get_ref().1.protocol_version(), Some(spoken));
        assert!(!server.unwrap().has_peer_certificate());
    }
}

#[tokio::test]
async fn a_server_that_is_not_the_right_one_is_refused_with_what_to_do() {
    let (authority, other) = (Authority::new(), Authority::new());
    let client = ClientTls::open(&options(&authority)).unwrap();
    let foreign = refused(&server(&other.issue("server"), None), &client).await;
    assert!(foreign.contains("ca.pem: give the file of the authority that signed it"), "{foreign}");
    let expired = refused(&server(&authority.issue_expired("old"), None), &client).await;
    assert!(expired.contains("it has expired: renew it"), "{expired}");
    let misnamed = refused(&server(&authority.issue_for("else", &["b9"]), None), &client).await;
    assert!(misnamed.contains("b9") && misnamed.contains("not to 127.0.0.1"), "{misnamed}");
    let named = ClientTlsOptions { server_name: Some("b9".to_owned()), ..options(&authority) };
    let named = ClientTls::open(&named).unwrap();
    let server = server(&authority.issue_for("else", &["b9"]), None);
    shake(&server, &named, ClientCertificate::Required).await.0.unwrap();
}

#[tokio::test]
async fn clients_show_a_certificate_if_they_are_asked_for_one() {
    let (authority, clients, other) = (Authority::new(), Authority::new(), Authority::new());
    let server = server(&authority.issue("server"), Some(clients.certificate()));
    let with = |issued: Option<&Issued>| {
        let identity = issued.and_then(identity);
        ClientTls::open(&ClientTlsOptions { identity, ..options(&authority) }).unwrap()
    };
    let good = with(Some(&clients.issue("client")));
    let (client, accepted) = shake(&server, &good, ClientCertificate::Required).await;
    client.unwrap();
    assert!(accepted.unwrap().has_peer_certificate());
    let none = refused(&server, &with(None)).await;
    assert!(none.contains("none was given: give certificate and key"), "{none}");
    let foreign = refused(&server, &with(Some(&other.issue("client")))).await;
    assert!(foreign.contains("none of the authorities that the server trusts"), "{foreign}");
    let expired = refused(&server, &with(Some(&clients.issue_expired("old")))).await;
    assert!(expired.contains("it has expired"), "{expired}");
    // Where certificates are optional, a wrong one is still refused.
    let (client, accepted) = shake(&server, &with(None), ClientCertificate::Optional).await;
    client.unwrap();
    assert!(!accepted.unwrap().has_peer_certificate());
    let wrong = with(Some(&other.issue("client")));
    assert!(shake(&server, &wrong, ClientCertificate::Optional).await.1.is_err());
}

#[tokio::test]
async fn a_health_check_that_sends_nothing_is_no_failure() {
    let server = server(&Authority::new().issue("server"), None);
    let (to_server, to_client, _) = pair().await;
    drop(to_server);
    let accepted = server.accept(to_client, ClientCertificate::Required, WITHIN).await;
    assert!(matches!(accepted, Err(AcceptError::Ended)), "{accepted:?}");
}

#[tokio::test]
async fn plain_and_encrypted_do_not_hang_on_each_other() {
    let authority = Authority::new();
    let server = server(&authority.issue("server"), None);
    let (mut to_server, to_client, _) = pair().await;
    to_server.write_all(b"\0\0\0\x08").await.unwrap();
    let accepted = server.accept(to_client, ClientCertificate::Required, WITHIN).await;
    let Err(AcceptError::NotTls(mut socket)) = accepted else { panic!("{accepted:?}") };
    // Nothing of it was taken.
    let mut first = [9; 4];
    socket.read_exact(&mut first).await.unwrap();
    assert_eq!(first, [0, 0, 0, 8]);

    let client = ClientTls::open(&options(&authority)).unwrap();
    let (to_server, mut to_client, address) = pair().await;
    let answer = async {
        to_client.write_all(b"\0\0\0\x08refused!").await.unwrap();
        to_client
    };
    let (error, _) = tokio::join!(client.connect(to_server, &address, WITHIN), answer);
    assert!(matches!(error, Err(TlsConnectError::NotTls)), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_stands_still_ends_in_time() {
    let authority = Authority::new();
    let server = server(&authority.issue("server"), None);
    let client = ClientTls::open(&options(&authority)).unwrap();
    // Silent from the beginning, silent in the middle, and a silent server.
    let (_silent, to_client, _) = pair().await;
    let error = server.accept(to_client, ClientCertificate::Required, WITHIN).await;
    assert!(matches!(error, Err(AcceptError::Timeout(WITHIN))), "{error:?}");
    let (mut half, to_client, _) = pair().await;
    half.write_all(&[0x16, 3, 1, 2]).await.unwrap();
    let error = server.accept(to_client, ClientCertificate::Required, WITHIN).await;
    assert!(matches!(error, Err(AcceptError::Timeout(WITHIN))), "{error:?}");
    let (to_server, _silent, address) = pair().await;
    let error = client.connect(to_server, &address, WITHIN).await.unwrap_err();
    assert!(matches!(error, TlsConnectError::Timeout(WITHIN)) && error.is_retryable(), "{error}");
}

#[tokio::test]
async fn whoever_drops_a_connection_says_so() {
    let authority = Authority::new();
    let server = server(&authority.issue("server"), None);
    let client = ClientTls::open(&options(&authority)).unwrap();
    let read_to_the_end = async |mut stream: Stream| {
        let mut rest = Vec::new();
        // It fails if the connection ends without a word.
        stream.read_to_end(&mut rest).await.unwrap();
        rest
    };
    let both = async || {
        let (client, server) = shake(&server, &client, ClientCertificate::Required).await;
        (client.unwrap(), server.unwrap())
    };
    let (client, server) = both().await;
    drop(client);
    assert_eq!(read_to_the_end(server).await, b"");
    let (client, server) = both().await;
    drop(server);
    assert_eq!(read_to_the_end(client).await, b"");
    // Also in two halves, with something written before, and after a shutdown.
    let (client, server) = both().await;
    let (read, mut write) = client.into_split();
    write.write_all(b"last").await.unwrap();
    drop((read, write));
    assert_eq!(read_to_the_end(server).await, b"last");
    let (mut client, server) = both().await;
    client.shutdown().await.unwrap();
    drop(client);
    assert_eq!(read_to_the_end(server).await, b"");
}

#[tokio::test]
async fn new_files_are_used_by_new_connections_and_broken_ones_change_nothing() {
    let authority = Authority::new();
    let issued = authority.issue("server");
    let server = server(&issued, None);
    let client = ClientTls::open(&options(&authority)).unwrap();
    let served = async || {
        let (client, _) = shake(&server, &client, ClientCertificate::Required).await;
        let Stream::Tls(stream) = client.unwrap() else { panic!("plain") };
        stream.get_ref().1.peer_certificates().unwrap()[0].as_ref().to_vec()
    };
    let in_file = || {
        let text = std::fs::read(&issued.certificate).unwrap();
        pem::certificates("certificate", "server.pem", &text).unwrap()[0].as_ref().to_vec()
    };
    let first = in_file();
    assert_eq!(served().await, first);
    authority.issue("server");
    assert_eq!(served().await, first, "nothing is read before it is asked to");
    server.reload().unwrap();
    let second = in_file();
    assert!(first != second && served().await == second);

    // A key that belongs to another certificate, and a file that is none.
    std::fs::copy(authority.issue("other").key, &issued.key).unwrap();
    let error = server.reload().unwrap_err().to_string();
    assert!(error.contains("server.pem") && error.contains("server.key is not the one"), "{error}");
    std::fs::write(&issued.certificate, "nonsense").unwrap();
    let error = server.reload().unwrap_err().to_string();
    assert!(error.contains("server.pem has no PEM section \"CERTIFICATE\""), "{error}");
    assert_eq!(served().await, second);
}

#[tokio::test]
async fn new_authorities_of_clients_count_from_a_reload_on() {
    let (authority, old, new) = (Authority::new(), Authority::new(), Authority::new());
    let file = authority.dir().join("clients.pem");
    let trust = |authorities: &[&Authority]| {
        let texts = authorities.iter().map(|of| std::fs::read_to_string(of.certificate()).unwrap());
        std::fs::write(&file, texts.collect::<String>()).unwrap();
    };
    trust(&[&old]);
    let server = server(&authority.issue("server"), Some(file.clone()));
    let client = |of: &Authority| {
        let identity = identity(&of.issue("client"));
        ClientTls::open(&ClientTlsOptions { identity, ..options(&authority) }).unwrap()
    };
    let (of_old, of_new) = (client(&old), client(&new));
    let both = [ClientCertificate::Required, ClientCertificate::Optional];
    let enters = async |client: &ClientTls| {
        for clients in both {
            let (client, accepted) = shake(&server, client, clients).await;
            client.unwrap();
            assert!(accepted.unwrap().has_peer_certificate());
        }
    };
    let is_foreign = async |client: &ClientTls| {
        for clients in both {
            let (client, accepted) = shake(&server, client, clients).await;
            let error = client.expect_err("the client is not connected").to_string();
            assert!(error.contains("none of the authorities that the server trusts"), "{error}");
            assert!(matches!(accepted, Err(AcceptError::Failed(_))), "{accepted:?}");
        }
    };
    enters(&of_old).await;
    is_foreign(&of_new).await;

    // As an authority is replaced: both for a while, then the new one alone.
    trust(&[&old, &new]);
    is_foreign(&of_new).await;
    server.reload().unwrap();
    enters(&of_old).await;
    enters(&of_new).await;
    trust(&[&new]);
    enters(&of_old).await;
    server.reload().unwrap();
    // The session that it had is not resumed.
    is_foreign(&of_old).await;
    enters(&of_new).await;

    // A file without an authority changes nothing.
    std::fs::write(&file, "nonsense").unwrap();
    let error = server.reload().unwrap_err().to_string();
    assert!(error.contains("authorities of clients") && error.contains("clients.pem"), "{error}");
    is_foreign(&of_old).await;
    enters(&of_new).await;
}

#[test]
fn what_is_wrong_with_a_file_is_said_without_what_is_in_it() {
    let authority = Authority::new();
    let issued = authority.issue("server");
    let open = |certificate: &PathBuf, key: &PathBuf, client_ca: Option<PathBuf>| {
        let files = ServerFiles { certificate: certificate.clone(), key: key.clone(), client_ca };
        ServerTls::open(files).unwrap_err().to_string()
    };
    let missing = authority.dir().join("none.pem");
    assert!(open(&missing, &issued.key, None).starts_with("cannot read the certificate "));
    let swapped = open(&issued.certificate, &issued.certificate, None);
    assert!(swapped.contains("the private key ") && swapped.contains("\"PRIVATE KEY\""), "{swapped}");
    let ca = open(&issued.certificate, &issued.key, Some(missing));
    assert!(ca.contains("authorities of clients"), "{ca}");
    let large = authority.dir().join("large.pem");
    std::fs::write(&large, vec![b'a'; 1024 * 1024 + 1]).unwrap();
    assert!(open(&large, &issued.key, None).contains("more than 1048576 bytes"));

    let text = std::fs::read_to_string(&issued.key).unwrap();
    let secret = text.lines().nth(1).unwrap();
    let damaged = authority.dir().join("damaged.key");
    std::fs::write(&damaged, format!("-----BEGIN PRIVATE KEY-----\n{secret}\n-----BEGIN {secret}")).unwrap();
    let error = open(&issued.certificate, &damaged, None);
    assert!(error.contains("damaged.key") && !error.contains(secret), "{error}");
    let identity = Identity { certificate: Pem::Text(Vec::new()), key: Pem::Text(text.clone().into()) };
    let shown = format!("{identity:?} {:?}", server(&issued, None));
    assert!(!shown.contains(secret), "{shown}");
    let nothing = ClientTlsOptions { identity: Some(identity), ..options(&authority) };
    assert!(matches!(ClientTls::open(&nothing), Err(TlsError::Pem { what: "certificate", .. })));
}

#[cfg(unix)]
#[test]
fn what_is_wrong_with_the_files_of_a_client_names_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let authority = Authority::new();
    let (one, other) = (authority.issue("one"), authority.issue("other"));
    let files = |certificate: &PathBuf, key: &PathBuf| ClientFiles {
        authorities: Some(authority.certificate()),
        certificate: Some(certificate.clone()),
        key: Some(key.clone()),
    };
    let read = files(&one.certificate, &one.key).read().unwrap();
    let text = |path: &PathBuf| std::fs::read(path).unwrap();
    assert!(read.authorities == Some(text(&authority.certificate())));
    assert!(read.identity == Some((text(&one.certificate), text(&one.key))));
    assert!(ClientFiles::default().read().unwrap() == ClientPem { authorities: None, identity: None });
    let why = |files: ClientFiles| files.read().map(drop).unwrap_err().to_string();
    let told = why(files(&one.certificate, &other.key));
    assert!(told.contains("one.pem") && told.contains("give the two that belong together"), "{told}");
    let told = why(ClientFiles { key: None, ..files(&one.certificate, &one.key) });
    assert!(told.contains("give both, or none"), "{told}");
    let told = why(ClientFiles { authorities: Some(one.key.clone()), ..ClientFiles::default() });
    assert!(told.contains("one.key has no PEM section \"CERTIFICATE\""), "{told}");
    std::fs::set_permissions(&one.key, PermissionsExt::from_mode(0o644)).unwrap();
    let told = why(files(&one.certificate, &one.key));
    assert!(told.contains("one.key has mode 0644"), "{told}");
}
