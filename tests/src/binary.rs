//! Where the binary under test is.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// The path of `mtimer`: `MTIMER_BIN`, or the one next to the test's own executable, built if it is
/// missing or older than its sources.
pub fn mtimer() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| match std::env::var_os("MTIMER_BIN") {
        Some(path) => PathBuf::from(path),
        None => build_if_needed(),
    })
}

/// Keeps the settings of whoever runs the tests, which are variables, from a process.
pub fn without_settings(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("MTIMER_")) {
            command.env_remove(name);
        }
    }
    command
}

/// The path of the broker that can be broken on purpose (`tests/src/bin/broken-broker`). Cargo
/// builds it with the tests.
pub(crate) fn breakable() -> PathBuf {
    let exe = std::env::current_exe().expect("the test's own path");
    // target/<profile>/deps/<test>
    exe.ancestors().nth(2).expect("a target folder").join("broken-broker")
}

fn build_if_needed() -> PathBuf {
    let exe = std::env::current_exe().expect("the test's own path");
    // target/<profile>/deps/<test>
    let folder = exe.ancestors().nth(2).expect("a target folder").to_owned();
    let binary = folder.join("mtimer");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let built = binary.metadata().and_then(|m| m.modified()).ok();
    let folders = ["broker", "client-sdk", "crates"];
    let newest = folders.iter().filter_map(|folder| newest(&sources.join(folder))).max();
    if built.is_none() || built < newest {
        build(sources, &folder);
    }
    assert!(binary.exists(), "{} is not there: cargo build -p mtimer, or set MTIMER_BIN", binary.display());
    binary
}

fn build(workspace: &Path, folder: &Path) {
    let profile = match folder.file_name().and_then(|n| n.to_str()) {
        Some("debug") | None => "dev",
        Some(other) => other,
    };
    cargo_build(workspace, folder.parent().expect("a target folder"), profile);
}

fn cargo_build(workspace: &Path, target: &Path, profile: &str) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "-p", "mtimer", "--profile", profile, "--target-dir"])
        .arg(target)
        .current_dir(workspace)
        .status()
        .expect("cargo runs");
    assert!(status.success(), "cargo build -p mtimer: {status}");
}

/// The latest change of a source file below `folder`.
fn newest(folder: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(folder).ok()?;
    let of = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.ok()?.path();
        if path.is_dir() {
            // Tests do not go into the binary.
            return if path.ends_with("tests") { None } else { newest(&path) };
        }
        let source = path.extension().is_some_and(|e| e == "rs" || e == "lua" || e == "toml");
        if source { path.metadata().ok()?.modified().ok() } else { None }
    };
    entries.filter_map(of).max()
}
