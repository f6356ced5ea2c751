//! token create, list, revoke: what they print, and what becomes of the file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Ended, Running, end, mtimer, run};

/// A folder with a tokens file.
pub(crate) struct TokensFile {
    pub(crate) dir: TempDir,
}

/// A broker that asks for tokens.
pub(crate) struct Guarded {
    _broker: Running,
    address: String,
}

impl Guarded {
    /// Runs a command with the token in a file.
    pub(crate) fn run(&self, token: &Path, args: &[&str]) -> Ended {
        let connection = ["--broker", &self.address, "--token-file", token.to_str().unwrap()];
        run(&[args, &connection].concat())
    }
}

impl TokensFile {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("tokens.toml")
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        let path = self.path();
        run(&[&["token"], args, &["--file", path.to_str().unwrap()]].concat())
    }

    /// Makes a token; returns what is shown of it.
    pub(crate) fn create(&self, name: &str, grant: &str) -> Value {
        self.run(&["create", "--json", "--name", name, "--grant", grant]).ok().json()
    }

    /// The same with the secret in a private file, whose path it returns.
    pub(crate) fn create_in_file(&self, name: &str, grant: &str) -> (String, PathBuf) {
        let made = self.create(name, grant);
        let path = self.dir.path().join(name);
        write_private(&path, made["token"].as_str().unwrap());
        (made["id"].as_str().unwrap().to_owned(), path)
    }

    /// Starts a broker that asks for tokens of the file.
    pub(crate) fn broker(&self) -> Guarded {
        let (tokens, data) = (self.path(), self.dir.path().join("data"));
        let args = ["dev", "--json", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()];
        let mut broker = Running::start(&[&args[..], &["--tokens", tokens.to_str().unwrap()]].concat());
        let ready: Value = serde_json::from_str(&broker.line()).unwrap();
        let address = ready["listening"].as_str().unwrap().to_owned();
        Guarded { _broker: broker, address }
    }

    fn mode(&self) -> u32 {
        fs::metadata(self.path()).unwrap().permissions().mode() & 0o777
    }
}

/// Puts a text where no one else can read it, all of it at once.
pub(crate) fn write_private(path: &std::path::Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::set_permissions(&new, PermissionsExt::from_mode(0o600)).unwrap();
    fs::rename(new, path).unwrap();
}

#[test]
fn a_token_is_shown_once_and_only_its_hash_is_kept() {
    let file = TokensFile::new();
    let args = ["create", "--name", "shop", "--grant", "schedule,cancel:shop/*", "--grant", "read:*"];
    let token = file.run(&args).ok().out.trim().to_owned();
    let (prefix, secret) = token.rsplit_once('_').unwrap();
    assert_eq!((prefix.len(), secret.len()), (23, 64), "{token}");
    let id = prefix.trim_start_matches("mtimer_");
    let text = fs::read_to_string(file.path()).unwrap();
    assert!(text.contains(id) && !text.contains(secret), "{text}");
    assert_eq!(file.mode(), 0o600);
    // A broker that reads it as a member of a group still can.
    fs::set_permissions(file.path(), PermissionsExt::from_mode(0o640)).unwrap();
    let listed = file.run(&["list"]).ok().out;
    assert_eq!(listed.trim(), format!("{id}  shop  schedule,cancel:shop/* read:*  does not expire"));
    let second = file.run(&["create", "--json", "--name", "b", "--grant", "broker:*", "--expires-in", "1h"]);
    let second = second.ok().json();
    assert!(second["expires_ms"].is_u64(), "{second}");
    let expires: jiff::Timestamp = second["expires"].as_str().unwrap().parse().unwrap();
    assert_eq!(second["expires_ms"], expires.as_millisecond());
    let listed = file.run(&["list"]).ok().out;
    assert!(listed.contains(&format!("b  broker:*  expires {expires:.3}\n")), "{listed}");
    assert_eq!(file.run(&["list", "--json"]).ok().lines().len(), 2);
    let unasked = file.run(&["revoke", id]).code(2).err;
    assert!(
        unasked.contains(&format!("this revokes token {id} (shop)")) && unasked.contains("--yes"),
        "{unasked}"
    );
    assert_eq!(file.run(&["list", "--json"]).ok().lines().len(), 2, "nothing was done");
    assert_eq!(file.run(&["revoke", id, "--yes"]).ok().out.trim(), format!("revoked {id}"));
    file.run(&["revoke", id, "--yes"]).code(5);
    let left = file.run(&["list", "--json"]).ok().lines();
    assert_eq!(file.mode(), 0o640);
    assert!(left.len() == 1 && left[0]["id"] == second["id"] && left[0].get("token").is_none(), "{left:?}");
    let files: Vec<_> = fs::read_dir(file.dir.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert_eq!(files, ["tokens.toml"], "nothing else is left behind");
}

#[test]
fn commands_at_the_same_time_lose_no_token() {
    let file = TokensFile::new();
    std::thread::scope(|scope| {
        for n in 0..8 {
            let file = &file;
            scope.spawn(move || file.create(&format!("t{n}"), "read:*"));
        }
    });
    assert_eq!(file.run(&["list", "--json"]).ok().lines().len(), 8);
}

#[test]
fn files_that_others_can_reach_are_refused() {
    let file = TokensFile::new();
    let (_, secret) = file.create_in_file("shop", "read:*");
    fs::set_permissions(file.path(), PermissionsExt::from_mode(0o644)).unwrap();
    let create = ["create", "--name", "x", "--grant", "read:*"];
    for args in [&create[..], &["list"], &["revoke", "0000000000000000"]] {
        let refused = file.run(args).code(2).err;
        assert!(refused.contains("mode 0644") && refused.contains("chmod 600"), "{refused}");
    }
    let tokens = file.path();
    let data = file.dir.path().join("data");
    let broker = ["broker", "--tokens", tokens.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let broker = [&broker[..], &["--data", data.to_str().unwrap()]].concat();
    assert!(run(&broker).code(2).err.contains("mode 0644"));
    fs::set_permissions(&secret, PermissionsExt::from_mode(0o640)).unwrap();
    let ping = ["ping", "--broker", "127.0.0.1:1", "--token-file", secret.to_str().unwrap()];
    run(&ping).code(3);
    fs::set_permissions(&secret, PermissionsExt::from_mode(0o604)).unwrap();
    let refused = run(&ping).code(2).err;
    assert!(refused.contains("the token file") && refused.contains("mode 0604"), "{refused}");
}

#[test]
fn help_says_who_sees_a_token() {
    let help = run(&["schedule", "--help"]).ok().out;
    assert!(
        help.contains("--token-file") && help.contains("`ps`") && help.contains("MTIMER_TOKEN"),
        "{help}"
    );
    let mut command = mtimer(&["ping", "--help"]);
    command.env("MTIMER_TOKEN", "PLANTED");
    assert!(!end(command, b"").ok().out.contains("PLANTED"));
}

#[test]
fn help_says_who_sees_the_password_of_redis() {
    let help = run(&["broker", "--help"]).ok().out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        help.contains("`ps` shows flags: put an address with a password into the settings file"),
        "{help}"
    );
}

#[test]
fn limits_are_stored_shown_and_checked() {
    let file = TokensFile::new();
    let create = ["create", "--name", "shop", "--grant", "schedule:shop/*"];
    let limits = ["--limit", "schedules=100,burst=20", "--limit", "payload=4096"];
    file.run(&[&create[..], &limits].concat()).ok();
    let listed = file.run(&["list"]).ok().out;
    let shown = "does not expire  limits schedules=100,burst=20,payload=4096";
    assert!(listed.trim().ends_with(shown), "{listed}");
    let json = file.run(&["list", "--json"]).ok().json();
    assert_eq!(json["limits"], serde_json::json!({ "schedules": 100, "burst": 20, "payload": 4096 }));
    for (limit, part) in [
        ("speed=1", "is no limit: write schedules=NUMBER"),
        ("payload=4KiB", "is no limit"),
        ("burst=5", "a burst is given without schedules"),
        ("payload=70000", "the limit payload is 70000, allowed is 0 to 65536"),
        ("connections=0", "the limit connections is 0"),
    ] {
        let refused = file.run(&[&create[..], &["--limit", limit]].concat()).code(2).err;
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!(file.run(&["list", "--json"]).ok().lines().len(), 1, "nothing was added");
}

#[test]
fn a_token_is_granted_more_and_rotated_and_the_file_keeps_what_people_wrote() {
    let file = TokensFile::new();
    let made = file.create("shop", "schedule:shop/*");
    let id = made["id"].as_str().unwrap();
    let limited = ["create", "--json", "--name", "mails", "--grant", "read:*", "--expires-in", "1h"];
    let expires = file.run(&[&limited[..], &["--limit", "payload=5"]].concat()).ok().json();
    let expires = expires["id"].as_str().unwrap();
    let text = format!("# Ask alice.\n\n# The shop's.\n{}", fs::read_to_string(file.path()).unwrap());
    write_private(&file.path(), &text);
    fs::set_permissions(file.path(), PermissionsExt::from_mode(0o640)).unwrap();

    let granted =
        file.run(&["grant", id, "--grant", "read:*", "--grant", "schedule:shop/*", "--json"]).ok().json();
    assert_eq!(granted["grants"], serde_json::json!(["schedule:shop/*", "read:*"]));
    file.run(&["grant", "0000000000000000", "--grant", "read:*"]).code(5);
    file.run(&["grant", id, "--grant", "fly:*"]).code(2);

    let rotated = file.run(&["rotate", id, "--json", "--old-expires-in", "1h"]).ok().json();
    assert_eq!((&rotated["name"], &rotated["grants"]), (&granted["name"], &granted["grants"]));
    assert!(rotated["expires"].is_null() && rotated["replaces"] == id && rotated["id"] != id, "{rotated}");
    let refused = file.run(&["rotate", expires]).code(2).err;
    assert!(refused.contains("such as --expires-in 30d"), "{refused}");
    let rotated = file.run(&["rotate", expires, "--expires-in", "1d", "--json"]).ok().json();
    assert_eq!(rotated["limits"]["payload"], 5);
    assert!(file.run(&["rotate", rotated["id"].as_str().unwrap(), "--expires-in", "1d"]).ok().err.is_empty());
    let new = file.create("other", "read:*");
    let kept = file.run(&["rotate", new["id"].as_str().unwrap()]).ok();
    let hint =
        format!("mtimer token revoke --file {} {}", file.path().display(), new["id"].as_str().unwrap());
    assert!(kept.out.starts_with("mtimer_") && kept.err.contains(&hint), "{kept:?}");

    let all = file.run(&["list", "--json"]).ok().lines();
    assert_eq!(all.len(), 7);
    assert!(all[0]["id"] == id && all[0]["expires"].is_string(), "{all:?}");
    assert_eq!(file.mode(), 0o640);
    let text = fs::read_to_string(file.path()).unwrap();
    assert!(text.starts_with("# Ask alice.\n\n# The shop's.\n[[token]]\n"), "{text}");
}
