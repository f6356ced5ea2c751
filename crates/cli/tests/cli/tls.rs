//! Brokers and clients over TLS: who is let in, what is said about the rest, renewal under load,
//! and a cluster in which brokers check each other.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mtimer_store_redis::test_support::{Server, ServerOptions};
use mtimer_tls::test_support::{Authority, Issued};
use mtimer_tls::{ClientTls, ClientTlsOptions, Identity, Pem, Stream};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{Ended, Running, end, mtimer, run, wait_for, while_calling};

const SCHEDULE: [&str; 7] = ["schedule", "--group", "g", "--app", "a", "--in", "1h"];
const WITHIN: Duration = Duration::from_secs(30);

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Flags of a broker with this certificate.
fn flags<'a>(issued: &'a Issued, more: &[&'a str]) -> Vec<&'a str> {
    [&["--tls-cert", text(&issued.certificate), "--tls-key", text(&issued.key)][..], more].concat()
}

struct Broker {
    running: Running,
    addr: String,
    http: String,
    log: PathBuf,
}

impl Broker {
    /// Starts a broker, of its own store unless `args` say otherwise; its files are in `dir`.
    fn start(dir: &Path, args: &[&str]) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let (log, data) = (dir.join(format!("log-{n}")), dir.join(format!("data-{n}")));
        let mut all = vec!["broker", "--json", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
        all.extend(args);
        if !args.contains(&"--redis") {
            all.extend(["--data", text(&data)]);
        }
        let mut running = Running::spawn_logging_to(File::create(&log).unwrap(), mtimer(&all));
        let line = running.line();
        let ready: Value = serde_json::from_str(&line)
            .unwrap_or_else(|e| panic!("{e}: {line:?} {}", fs::read_to_string(&log).unwrap()));
        let address = |name: &str| ready[name].as_str().unwrap().to_owned();
        Self { running, addr: address("listening"), http: address("http"), log }
    }

    fn run(&self, authority: Option<&Path>, args: &[&str]) -> Ended {
        let ca: Vec<&str> = authority.iter().flat_map(|path| ["--tls-ca", text(path)]).collect();
        run(&[args, &["--broker", &self.addr, "--connect-timeout", "1s"], &ca].concat())
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

pub(crate) async fn connect(address: &str, authority: &Authority, identity: Option<&Issued>) -> Stream {
    let file = |path: &PathBuf| Pem::File(path.clone());
    let identity =
        identity.map(|issued| Identity { certificate: file(&issued.certificate), key: file(&issued.key) });
    let options =
        ClientTlsOptions { authorities: file(&authority.certificate()), identity, server_name: None };
    let socket = TcpStream::connect(address).await.unwrap();
    ClientTls::open(&options).unwrap().connect(socket, address, WITHIN).await.unwrap()
}

/// The status line of the answer to a GET over TLS.
fn get(address: &str, path: &str, authority: &Authority, identity: Option<&Issued>) -> String {
    block_on(async {
        let mut stream = connect(address, authority, identity).await;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: b\r\n\r\n").as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let mut answer = Vec::new();
        // Some servers end without saying goodbye.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
    })
}

/// The certificate that a port shows.
fn served(address: &str, authority: &Authority) -> Vec<u8> {
    block_on(async {
        match connect(address, authority, None).await {
            Stream::Tls(stream) => stream.get_ref().1.peer_certificates().unwrap()[0].as_ref().to_vec(),
            Stream::Plain(_) => panic!("not encrypted"),
        }
    })
}

#[test]
fn calls_are_encrypted_and_what_is_wrong_is_said() {
    let (authority, other) = (Authority::new(), Authority::new());
    let issued = authority.issue("broker");
    let broker = Broker::start(authority.dir(), &flags(&issued, &[]));
    let ca = authority.certificate();
    let id = broker.run(Some(&ca), &SCHEDULE).ok().out;
    broker.run(Some(&ca), &["get", id.trim()]).ok();
    assert_eq!(get(&broker.http, "/healthz", &authority, None), "HTTP/1.1 200 OK");
    let foreign = broker.run(Some(&other.certificate()), &SCHEDULE).code(4).err;
    assert!(foreign.contains("give the file of the authority that signed it"), "{foreign}");
    let plain = broker.run(None, &SCHEDULE).err;
    assert!(plain.contains("this broker speaks TLS") && plain.contains("--tls-ca"), "{plain}");
    let misnamed = broker.run(Some(&ca), &[&SCHEDULE[..], &["--tls-server-name", "b9"]].concat()).code(4).err;
    assert!(misnamed.contains("not to b9"), "{misnamed}");
    let alone = broker.run(None, &[&SCHEDULE[..], &["--tls-server-name", "b9"]].concat()).code(2).err;
    assert!(alone.contains("give --tls-ca, too"), "{alone}");

    let unencrypted = Broker::start(authority.dir(), &[]);
    let not_tls = unencrypted.run(Some(&ca), &SCHEDULE).code(4).err;
    assert!(not_tls.contains("it does not speak TLS"), "{not_tls}");
}

#[test]
fn whoever_has_no_certificate_is_refused_where_they_are_asked_for() {
    let (authority, clients, other) = (Authority::new(), Authority::new(), Authority::new());
    let (issued, client_ca) = (authority.issue("broker"), clients.certificate());
    let broker = Broker::start(authority.dir(), &flags(&issued, &["--tls-client-ca", text(&client_ca)]));
    let ca = authority.certificate();
    let with = |issued: &Issued| {
        let more = flags(issued, &[]);
        broker.run(Some(&ca), &[&SCHEDULE[..], &more].concat())
    };
    let good = clients.issue("shop");
    with(&good).ok();
    let none = broker.run(Some(&ca), &SCHEDULE).code(4).err;
    assert!(none.contains("give certificate and key"), "{none}");
    let foreign = with(&other.issue("shop")).code(4).err;
    assert!(foreign.contains("none of the authorities that the server trusts"), "{foreign}");
    let expired = with(&clients.issue_expired("old")).code(4).err;
    assert!(expired.contains("it has expired"), "{expired}");
    assert_eq!(get(&broker.http, "/healthz", &authority, None), "HTTP/1.1 200 OK", "probes have none");
    assert_eq!(get(&broker.http, "/metrics", &authority, None), "HTTP/1.1 403 Forbidden");
    assert_eq!(get(&broker.http, "/metrics", &authority, Some(&good)), "HTTP/1.1 200 OK");
    for wrong in [other.issue("shop"), clients.issue_expired("old")] {
        for path in ["/metrics", "/healthz"] {
            assert_eq!(get(&broker.http, path, &authority, Some(&wrong)), "", "its handshake is refused");
        }
    }
}

#[test]
fn certificates_are_renewed_under_load_without_a_failed_call() {
    let authority = Authority::new();
    let issued = authority.issue("broker");
    let broker = Broker::start(authority.dir(), &flags(&issued, &[]));
    let ca = authority.certificate();
    let is_renewed = |port: &str, before: &[u8]| (served(port, &authority) != before).then_some(());
    while_calling(
        || _ = broker.run(Some(&ca), &SCHEDULE).ok(),
        |more_calls| {
            more_calls(2);
            let first = served(&broker.addr, &authority);
            assert_eq!(served(&broker.http, &authority), first);
            // Nothing but the change of the files can be the reason.
            authority.issue("broker");
            wait_for("renewed", || is_renewed(&broker.addr, &first));
            let second = served(&broker.addr, &authority);
            authority.issue("broker");
            broker.running.signal("HUP");
            wait_for("renewed on HUP", || is_renewed(&broker.addr, &second));
            more_calls(2);
        },
    );
    // One that is none changes nothing.
    let last = served(&broker.addr, &authority);
    fs::write(&issued.certificate, "nonsense").unwrap();
    broker.running.signal("HUP");
    let told = "the certificates were not read again";
    wait_for("told of", || broker.log().contains(told).then_some(()));
    assert_eq!(served(&broker.addr, &authority), last);
}

#[test]
fn a_client_that_ends_says_so() {
    let authority = Authority::new();
    let issued = authority.issue("broker");
    let broker = Broker::start(authority.dir(), &flags(&issued, &["--log-level", "debug"]));
    let ca = authority.certificate();
    broker.run(Some(&ca), &SCHEDULE).ok();
    let ping = ["ping", "--broker", &broker.addr, "--tls-ca", text(&ca)];
    run(&ping).ok();
    let ends = || {
        let log = broker.log();
        let ends: Vec<String> =
            log.lines().filter(|line| line.contains("session closed")).map(str::to_owned).collect();
        (ends.len() == 2).then_some(ends)
    };
    for end in wait_for("both sessions have ended", ends) {
        assert!(end.contains("closed by the client"), "{end}");
    }
}

#[test]
fn a_connection_that_says_nothing_holds_nobody_up() {
    let authority = Authority::new();
    let issued = authority.issue("broker");
    let broker = Broker::start(authority.dir(), &flags(&issued, &[]));
    let silent: Vec<_> = (0..20).map(|_| std::net::TcpStream::connect(&broker.addr).unwrap()).collect();
    broker.run(Some(&authority.certificate()), &SCHEDULE).ok();
    drop(silent);
}

#[test]
fn brokers_check_each_other() {
    let redis = Server::start_with(ServerOptions::default());
    let (authority, other) = (Authority::new(), Authority::new());
    let (url, ca) = (redis.url(), authority.certificate());
    let trusting = ["--redis", &url, "--tls-ca", text(&ca), "--tls-client-ca", text(&ca)];
    let member = |file: &str| Broker::start(authority.dir(), &flags(&authority.issue(file), &trusting));
    let client = authority.issue("client");
    let ready = |broker: &Broker| {
        let args = [&["ping", "--ready"][..], &flags(&client, &[])].concat();
        let ca = ["--tls-ca", text(&ca), "--broker", &broker.addr];
        (run(&[&args[..], &ca].concat()).code == 0).then_some(())
    };
    let first = member("b1");
    wait_for("a leader", || ready(&first));
    let second = member("b2");
    wait_for("joined", || ready(&second));
    // One whose certificate another authority has signed gets no link to the leader.
    let stranger = other.issue("stranger");
    let log = other.dir().join("log");
    let args = ["broker", "--listen", "127.0.0.1:0", "--http", "off", "--log-level", "debug"];
    let third = mtimer(&[&args[..], &flags(&stranger, &trusting)].concat());
    let _third = Running::spawn_logging_to(File::create(&log).unwrap(), third);
    let refused = "none of the authorities";
    let told = || fs::read_to_string(&log).unwrap().contains(refused).then_some(());
    wait_for("refused by the leader", told);
    let args = [&["cluster", "status", "--json"][..], &flags(&client, &[])].concat();
    let view = first.run(Some(&ca), &args).ok().json();
    assert_eq!(view["brokers"].as_array().unwrap().len(), 2, "{view}");
}

/// Certificates and authority are replaced by another authority's, in the order in which an
/// operator does it.
#[test]
fn the_brokers_certificates_are_replaced_in_a_cluster_that_is_in_use() {
    let redis = Server::start_with(ServerOptions::default());
    let (old, new) = (Authority::new(), Authority::new());
    let (url, trusted, both) = (redis.url(), old.dir().join("trusted.pem"), old.dir().join("both.pem"));
    let texts = [&old, &new].map(|of| fs::read_to_string(of.certificate()).unwrap());
    fs::write(&both, texts.concat()).unwrap();
    replace(&old.certificate(), &trusted);
    let trusting = ["--redis", &url, "--tls-ca", text(&trusted), "--tls-client-ca", text(&trusted)];
    let files = [old.issue("b1"), old.issue("b2")];
    let start = |issued: &Issued| Broker::start(old.dir(), &flags(issued, &trusting));
    let [of_old, of_new] = [&old, &new].map(|of| of.issue("client"));
    let runs = |broker: &Broker, ca: &Path, client: &Issued, args: &[&str]| {
        run(&[args, &["--broker", &broker.addr, "--tls-ca", text(ca)], &flags(client, &[])].concat())
    };
    let ready = |broker: &Broker, client: &Issued| {
        (runs(broker, &both, client, &["ping", "--ready"]).code == 0).then_some(())
    };
    let mut brokers: Vec<Broker> = Vec::new();
    for issued in &files {
        brokers.push(start(issued));
        wait_for("joined", || ready(brokers.last().unwrap(), &of_old));
    }
    let everywhere = |what: &str, ca: &Path, client: &Issued, code: i32| {
        for broker in &brokers {
            broker.running.signal("HUP");
            let is_so = || (runs(broker, ca, client, &["ping"]).code == code).then_some(());
            wait_for(what, is_so);
        }
    };
    let shown = Mutex::new(&of_old);
    while_calling(
        || {
            let client = *shown.lock().unwrap();
            runs(&brokers[0], &both, client, &SCHEDULE).ok();
        },
        |more_calls| {
            more_calls(2);
            replace(&both, &trusted);
            everywhere("the new authority is trusted, too", &both, &of_new, 0);
            for (file, issued) in files.iter().zip(["b1", "b2"].map(|name| new.issue(name))) {
                replace(&issued.certificate, &file.certificate);
                replace(&issued.key, &file.key);
            }
            everywhere("the new certificate is served", &new.certificate(), &of_new, 0);
            *shown.lock().unwrap() = &of_new;
            // The call that began before shows the old one.
            more_calls(2);
            replace(&new.certificate(), &trusted);
            everywhere("the old authority is not trusted", &both, &of_old, 4);
            more_calls(2);
        },
    );

    // The first one, which leads, is started again: whoever leads then, one of the two connects to
    // the other, and one of them has run all the time.
    let first = brokers.remove(0);
    first.running.signal("TERM");
    assert_eq!(first.running.wait().0, 0);
    let again = start(&files[0]);
    wait_for("joined again", || ready(&again, &of_new));
    let view = runs(&again, &both, &of_new, &["cluster", "status", "--json"]).ok().json();
    assert_eq!(view["brokers"].as_array().unwrap().len(), 2, "{view}");
    // One with a certificate of the old authority gets no link.
    let stranger = old.issue("b3");
    let log = old.dir().join("stranger");
    let args = ["broker", "--listen", "127.0.0.1:0", "--log-level", "debug", "--redis", &url];
    let own = ["--tls-ca", text(&both), "--tls-client-ca", text(&both)];
    let third = mtimer(&[&args[..], &flags(&stranger, &own)].concat());
    let _third = Running::spawn_logging_to(File::create(&log).unwrap(), third);
    let refused = "none of the authorities that the server trusts";
    let told = || fs::read_to_string(&log).unwrap().contains(refused).then_some(());
    wait_for("refused by the leader", told);
}

/// Puts a copy of a file in the place of another, all of it at once.
fn replace(from: &Path, to: &Path) {
    let new = to.with_extension("copy");
    fs::copy(from, &new).unwrap();
    fs::rename(new, to).unwrap();
}

#[test]
fn a_key_is_shown_nowhere_and_not_to_others() {
    use std::os::unix::fs::PermissionsExt;

    let authority = Authority::new();
    let issued = authority.issue("broker");
    let broker = Broker::start(authority.dir(), &flags(&issued, &["--log-level", "debug"]));
    broker.run(Some(&authority.certificate()), &SCHEDULE).ok();
    let config = run(&[&["broker", "--print-config"][..], &flags(&issued, &[])].concat()).ok();
    let key = fs::read_to_string(&issued.key).unwrap();
    let secret = key.lines().nth(1).unwrap();
    assert!(config.out.contains(text(&issued.key)), "{config:?}");
    for shown in [config.out + &config.err, broker.log()] {
        assert!(!shown.contains(secret), "{shown}");
    }
    fs::set_permissions(&issued.key, fs::Permissions::from_mode(0o644)).unwrap();
    let data = authority.dir().join("other");
    let args = flags(&issued, &["--data", text(&data), "--listen", "127.0.0.1:0", "--http", "off"]);
    let refused = end(mtimer(&[&["broker"][..], &args].concat()), b"").code(2).err;
    assert!(refused.contains("the private key") && refused.contains(text(&issued.key)), "{refused}");
}

#[test]
fn a_certificate_that_has_expired_is_warned_of_once() {
    let authority = Authority::new();
    let issued = authority.issue_expired("old");
    let broker = Broker::start(authority.dir(), &flags(&issued, &[]));
    let warnings = || {
        let log = fs::read_to_string(&broker.log).unwrap();
        log.matches("this broker's certificate expires soon, or has: renew it").count()
    };
    wait_for("the warning", || (warnings() == 1).then_some(()));
    // Read again, it is the same: that was said.
    broker.running.signal("HUP");
    let reread = || fs::read_to_string(&broker.log).unwrap().contains("the certificates were read again");
    wait_for("read again", || reread().then_some(()));
    assert_eq!(warnings(), 1);
}
