use std::path::PathBuf;

use super::*;

fn why(options: &RedisOptions) -> String {
    options.check().unwrap_err().to_string()
}

fn login(user: Option<&str>, password: Option<&str>) -> Login {
    Login { user: user.map(str::to_owned), password: password.map(str::to_owned) }
}

#[test]
fn addresses_are_read() {
    let options = RedisOptions::new(["redis://u:p@10.0.0.1:7000/3", "redis://u:p@[::1]/3"], "c");
    let (seeds, access) = options.check().unwrap();
    assert_eq!(seeds, Seeds::Servers(["10.0.0.1:7000", "[::1]:6379"].map(str::to_owned).to_vec()));
    assert_eq!((access.login.current(), access.db), (login(Some("u"), Some("p")), 3));
    assert!(!access.resp3 && access.tls.is_none());
    let (seeds, access) = RedisOptions::new(["unix:///run/r.sock?db=2&pass=p"], "c").check().unwrap();
    assert_eq!((seeds, access.db), (Seeds::Servers(vec!["/run/r.sock".to_owned()]), 2));
    assert_eq!(access.login.current(), login(None, Some("p")));
    let (_, access) = RedisOptions::new(["rediss://h:1?protocol=resp3"], "c").check().unwrap();
    assert!(access.resp3 && access.tls.is_some());
}

#[test]
fn addresses_of_sentinels_are_read() {
    let read = |urls: &[&str]| RedisOptions::new(urls.iter().copied(), "c").check().unwrap();
    let sentinels =
        |all: &[&str]| Seeds::Sentinels(all.iter().map(|a| (*a).to_owned()).collect(), "shop".to_owned());
    let (seeds, access) =
        read(&["redis-sentinel://s1?master=shop", "redis-sentinel://[::1]:5000?master=shop"]);
    assert_eq!(seeds, sentinels(&["s1:26379", "[::1]:5000"]));
    assert!(access.login.current() == login(None, None) && access.tls.is_none());
    let (seeds, access) = read(&["rediss-sentinel://u:p%3F@[::1]/3?protocol=resp3&master=shop"]);
    assert_eq!(seeds, sentinels(&["[::1]:26379"]));
    assert_eq!(access.login.current(), login(Some("u"), Some("p?")));
    assert!(access.db == 3 && access.resp3 && access.tls.is_some());
    for url in ["redis-sentinel://s1", "redis-sentinel://u:secret@s1/1?master=&protocol=resp3"] {
        let why = why(&RedisOptions::new([url], "c"));
        assert!(why.contains("s1") && why.contains("?master=name") && !why.contains("secret"), "{why}");
    }
    let mixed =
        RedisOptions::new(["redis-sentinel://s1?master=shop", "redis-sentinel://s2?master=other"], "c");
    assert!(why(&mixed).contains("and master in both"), "{}", why(&mixed));
    let mixed = RedisOptions::new(["redis-sentinel://s1?master=shop", "redis://s1"], "c");
    assert!(why(&mixed).contains("differ"), "{}", why(&mixed));
}

#[test]
fn what_cannot_work_is_refused_and_nothing_secret_is_shown() {
    let urls = [
        "http://u:secret@h:1",
        "rediss://u:secret@h:1#insecure",
        "unix://x?pass=secret",
        "redis://u:secret@h:x",
        "redis://u:secret@h:1/x",
        // Parts of an address that was split at a comma in its password, and `@` in passwords.
        "redis://u:secret",
        "secret@h:1",
        "unix://s?pass=a@secret",
        "redis://u:a@secret@h:x",
    ];
    for url in urls {
        let options = RedisOptions::new([url], "c");
        assert!(!why(&options).contains("secret"), "{}", why(&options));
        assert!(!format!("{options:?}").contains("secret"), "{options:?}");
    }
    let options = RedisOptions::new(["unix:///s?pass=a@secret", "unix:///s?pass=b@secret"], "c");
    assert!(
        why(&options).starts_with("unix:///s?pass=*** and unix:///s?pass=*** differ"),
        "{}",
        why(&options)
    );
    assert!(!format!("{options:?}").contains("secret"), "{options:?}");
    assert!(why(&RedisOptions::new(["redis://u:a@b@h:x"], "c")).contains("as %40 %2F"), "percent-encoding");
    let options = RedisOptions::new(["redis://:secret@h:1", "redis://:other@h:2"], "c");
    assert!(why(&options).starts_with("redis://:***@h:1 and redis://:***@h:2 differ"), "{}", why(&options));
    assert!(why(&RedisOptions::new(Vec::<String>::new(), "c")).contains("no Redis address"));
    let partitions = Some(0);
    assert!(why(&RedisOptions { partitions, ..RedisOptions::new(["redis://h"], "c") }).contains("1 to 1024"));
    let durability = RedisDurability::Replicated { replicas: 0, timeout: Duration::from_secs(1) };
    assert!(
        why(&RedisOptions { durability, ..RedisOptions::new(["redis://h"], "c") }).contains("at least 1")
    );
}

#[test]
fn files_for_tls_are_complete_and_used() {
    let with = |url: &str, tls| why(&RedisOptions { tls, ..RedisOptions::new([url], "c") });
    let certificate = Some(PathBuf::from("/nowhere/c.pem"));
    let tls = ClientFiles { certificate, ..ClientFiles::default() };
    assert!(with("rediss://h", tls.clone()).contains("give both"));
    assert!(with("redis://h", tls).contains("rediss://"));
    let tls = ClientFiles { authorities: Some(PathBuf::from("/nowhere/ca.pem")), ..ClientFiles::default() };
    assert!(with("rediss://h", tls).contains("cannot read the authorities of servers /nowhere/ca.pem"));
}

#[cfg(unix)]
#[test]
fn a_key_that_others_can_read_is_refused() {
    let authority = crate::test_support::Authority::new();
    let (certificate, key) = authority.issue("client");
    let tls = ClientFiles { certificate: Some(certificate), key: Some(key.clone()), authorities: None };
    let options = RedisOptions { tls, ..RedisOptions::new(["rediss://h"], "c") };
    let set_mode = |mode| {
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    // As Kubernetes mounts secrets.
    set_mode(0o440);
    options.check().unwrap();
    set_mode(0o644);
    let why = why(&options);
    assert!(why.contains("client.key has mode 0644") && why.contains("run chmod 600"), "{why}");
}

#[test]
fn a_password_that_is_sent_without_encryption_is_named() {
    let exposed = |urls: &[&str]| RedisOptions::new(urls.iter().copied(), "c").unencrypted_password();
    let login = "u:hush@";
    for url in ["h:1", "10.0.0.1", "[::2]:1"] {
        let named = exposed(&[&format!("redis://{login}{url}"), "redis://u:hush@127.0.0.1"]);
        assert!(matches!(&named[..], [one] if one.starts_with(url)), "{named:?}");
        assert_eq!(exposed(&[&format!("redis://{url}"), &format!("rediss://{login}{url}")]), [""; 0]);
    }
    for loopback in ["127.0.0.1", "[::1]:7", "localhost:1"] {
        assert_eq!(exposed(&[&format!("redis://{login}{loopback}")]), [""; 0]);
    }
    assert_eq!(exposed(&["unix:///run/r.sock?pass=hush"]), [""; 0]);
    let sentinels = ["redis-sentinel://:hush@s?master=m", "rediss-sentinel://:hush@s?master=m"];
    assert_eq!(exposed(&sentinels), ["s:26379"]);
}
