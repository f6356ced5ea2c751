//! The rights that operators are told to give mtimer, for tests that have no others.

use std::path::PathBuf;

/// How the user begins in the page; the cluster there is [`CLUSTER`].
const USER: &str = "user mtimer on >PASSWORD ";
const CLUSTER: &str = "shop";

/// The rules that `deploy/README.md` gives the user of a cluster: patterns of keys, and commands.
/// The name may be a pattern.
pub fn documented_rights(cluster: &str) -> Vec<String> {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/README.md");
    let text = std::fs::read_to_string(page).expect("the page is there");
    let rules = text.lines().find_map(|line| line.strip_prefix(USER)).expect("the page has a user");
    let rule =
        |rule: &str| if rule.starts_with('~') { rule.replace(CLUSTER, cluster) } else { rule.to_owned() };
    rules.split_whitespace().map(rule).collect()
}

/// The rules that `docs/operations.md` gives the same user at Sentinels.
pub fn documented_sentinel_rights() -> String {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    let text = std::fs::read_to_string(page).expect("the page is there");
    let rules = text.split('`').find(|code| code.starts_with("+info +sentinel")).expect("the page has rules");
    rules.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Arguments with which a server starts that has the user, with the password `hush`.
pub fn user_with(rights: &[String]) -> Vec<String> {
    ["--user", "mtimer", "on", ">hush"].map(str::to_owned).into_iter().chain(rights.iter().cloned()).collect()
}

/// A server's URL for that user.
pub fn as_user(url: &str) -> String {
    url.replacen("://", "://mtimer:hush@", 1)
}
