//! `mtimer token`: makes, lists and revokes the tokens of a tokens file.
//!
//! Invariant: a new token goes to standard output once and is written nowhere; the file is replaced
//! as a whole, readable by its owner only.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use mtimer_access::{Grant, InvalidLimit, Limits, MAX_FILE_BYTES, Token, TokenEntry, Tokens};
use mtimer_broker::{PrivateFileError, check_private, read_private};
use mtimer_types::Time;
use serde_json::{Value, json};

use super::confirm::Yes;
use super::exit::{Exit, Failure};
use super::moment;
use super::output::Output;

/// Tokens of a file that brokers are given with --tokens
#[derive(Subcommand, Debug)]
pub(crate) enum TokenCommand {
    Create(Create),
    List(TokenList),
    Revoke(Revoke),
}

/// Make a token; it is shown once, and only its hash is stored
///
/// A token allows what its grants say and nothing else. A grant is VERBS:PATTERNS. Verbs are
/// schedule, cancel (and reschedule), register (take callbacks), read, operate (replay, purge,
/// drain), and broker (join the cluster as a broker). A pattern is group/app, group/*, or *. What
/// names a timer by its id alone (cancel ID, dead replay, dead purge), and what concerns the whole
/// cluster (status, cluster show, drain), needs the verb on *.
///
/// Limits are counted at each broker by itself. schedules=N is a rate per second, burst=N how many
/// may come at once after a pause (without it N of schedules), pending=N how many timers its
/// destinations may have in memory or parked, payload=N the bytes of a payload and its
/// headers, connections=N how many there may be.
///
/// For a rotation make a second token with the same grants, give it to everybody, then revoke the
/// first one. Running brokers read the file again within seconds.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    mtimer token create --file tokens.toml --name shop --grant schedule,cancel,register,read:shop/*\n  \
    mtimer token create --file tokens.toml --name mails --grant schedule:mails/* --limit schedules=200,burst=1000\n  \
    mtimer token create --file tokens.toml --name oncall --grant read,operate:* --expires-in 12h\n  \
    mtimer token create --file tokens.toml --name brokers --grant broker,read:* > peer-token")]
pub(crate) struct Create {
    #[command(flatten)]
    file: FileArgs,
    /// Whose it is, for people
    #[arg(long)]
    name: String,
    /// What it allows, VERBS:PATTERNS; may be given several times
    #[arg(long = "grant", value_name = "GRANT", required = true)]
    grants: Vec<Grant>,
    /// How much it may do at each broker, NAME=NUMBER; may be given several times, or with commas
    #[arg(long = "limit", value_name = "LIMIT", value_delimiter = ',', value_parser = one_limit)]
    limits: Vec<String>,
    /// How long it is valid; without it: until it is revoked
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = moment::span)]
    expires_in: Option<Duration>,
}

/// List the tokens of a file: ids, names, grants, expiry, limits; never a secret
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  mtimer token list --file tokens.toml\n  mtimer token list --file tokens.toml --json"
)]
pub(crate) struct TokenList {
    #[command(flatten)]
    file: FileArgs,
}

/// Remove a token from a file, for good
///
/// Running brokers close its sessions within seconds, or at once on HUP.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  mtimer token revoke --file tokens.toml 3f9a0c5512de7b88\n  \
    mtimer token revoke --file tokens.toml 3f9a0c5512de7b88 --yes      without being asked")]
pub(crate) struct Revoke {
    #[command(flatten)]
    file: FileArgs,
    /// The token's id: the 16 digits after mtimer_
    id: String,
    #[command(flatten)]
    yes: Yes,
}

#[derive(Args, Debug)]
struct FileArgs {
    /// The tokens file
    #[arg(long, value_name = "FILE", env = "MTIMER_TOKENS")]
    file: PathBuf,
}

impl TokenCommand {
    pub(crate) fn run(self, out: Output) -> Result<(), Failure> {
        match self {
            Self::Create(create) => create.run(out),
            Self::List(list) => list.run(out),
            Self::Revoke(revoke) => revoke.run(out),
        }
    }
}

impl Create {
    fn run(self, out: Output) -> Result<(), Failure> {
        let limits = joined(&self.limits).map_err(|error| Failure::usage(error.to_string()))?;
        let _lock = self.file.lock(true)?;
        let mut entries = self.file.read()?.entries().to_vec();
        let token = Token::from_random(rand::random(), rand::random());
        let expires_ms = self.expires_in.map(|span| moment::millis(since_1970() + span));
        let entry = TokenEntry {
            id: token.id().to_owned(),
            name: self.name,
            sha256: token.hash(),
            expires_ms,
            grants: self.grants,
            limits,
        };
        let mut shown = to_json(&entry);
        entries.push(entry);
        self.file.write(entries)?;
        shown["token"] = json!(token.reveal());
        out.either(&shown, || token.reveal())
    }
}

impl TokenList {
    fn run(self, out: Output) -> Result<(), Failure> {
        let tokens = self.file.read()?;
        for entry in tokens.entries() {
            out.either(&to_json(entry), || {
                let grants: Vec<String> = entry.grants.iter().map(ToString::to_string).collect();
                let expiry = match entry.expires() {
                    None => "does not expire".to_owned(),
                    Some(at) if at <= Time::from_ms(moment::millis(since_1970())) => {
                        format!("expired {}", moment::shown(at))
                    }
                    Some(at) => format!("expires {}", moment::shown(at)),
                };
                let mut line = format!("{}  {}  {}  {expiry}", entry.id, entry.name, grants.join(" "));
                if !entry.limits.is_empty() {
                    line += &format!("  limits {}", entry.limits);
                }
                line
            })?;
        }
        Ok(())
    }
}

impl Revoke {
    fn run(self, out: Output) -> Result<(), Failure> {
        // Other commands can use the file while somebody is asked.
        let tokens = self.file.read()?;
        let name = &tokens.entry(&self.id).ok_or_else(|| self.unknown())?.name;
        self.yes.confirm(&format!("this revokes token {} ({name}), and ends its sessions", self.id))?;
        let _lock = self.file.lock(false)?;
        let mut entries = self.file.read()?.entries().to_vec();
        let before = entries.len();
        entries.retain(|entry| entry.id != self.id);
        if entries.len() == before {
            return Err(self.unknown());
        }
        self.file.write(entries)?;
        out.either(&json!({ "revoked": self.id }), || format!("revoked {}", self.id))
    }

    /// A whole token may have been given by mistake: it is not shown.
    fn unknown(&self) -> Failure {
        let message =
            format!("{} has no token of this id: see `mtimer token list`", self.file.file.display());
        Failure::new(Exit::NotFound, message)
    }
}

impl FileArgs {
    fn read(&self) -> Result<Tokens, Failure> {
        let text = read_private(&self.file, MAX_FILE_BYTES as u64).map_err(|error| exposed(&error))?;
        Tokens::parse(&text).map_err(|error| self.invalid(&error))
    }

    fn invalid(&self, error: &mtimer_access::InvalidTokens) -> Failure {
        Failure::usage(format!("the tokens file {} is not valid: {error}", self.file.display()))
    }

    /// Opens the file, and makes it if that is wanted. Other commands cannot change it until what
    /// is returned is dropped.
    fn lock(&self, create: bool) -> Result<File, Failure> {
        loop {
            let file = private()
                .create(create)
                .open(&self.file)
                .map_err(|e| Failure::file("open", &self.file, &e))?;
            file.lock().map_err(|e| Failure::file("lock", &self.file, &e))?;
            check_private(&file, &self.file).map_err(|e| exposed(&e))?;
            // Another command may have replaced it meanwhile.
            if self.is_this(&file).map_err(|e| Failure::file("look at", &self.file, &e))? {
                return Ok(file);
            }
        }
    }

    /// Says whether an open file is still the one of this name.
    #[cfg(unix)]
    fn is_this(&self, file: &File) -> io::Result<bool> {
        use std::os::unix::fs::MetadataExt;
        match fs::metadata(&self.file) {
            Ok(there) => Ok(there.ino() == file.metadata()?.ino()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A locked file cannot be replaced here.
    #[cfg(not(unix))]
    fn is_this(&self, _file: &File) -> io::Result<bool> {
        Ok(true)
    }

    /// Replaces the file as a whole: a broker that reads it meanwhile sees the old one or the new.
    fn write(&self, entries: Vec<TokenEntry>) -> Result<(), Failure> {
        let tokens = Tokens::new(entries).map_err(|error| self.invalid(&error))?;
        replace(&self.file, &tokens.to_toml()).map_err(|error| Failure::file("write", &self.file, &error))
    }
}

/// Checks one `--limit`, so that clap names the flag.
fn one_limit(text: &str) -> Result<String, InvalidLimit> {
    text.parse::<Limits>().map(|_| text.to_owned())
}

fn joined(texts: &[String]) -> Result<Limits, InvalidLimit> {
    let mut limits = Limits::default();
    texts.iter().try_for_each(|text| limits.add(text))?;
    limits.validate()?;
    Ok(limits)
}

fn exposed(error: &PrivateFileError) -> Failure {
    Failure::usage(format!("the tokens file: {error}"))
}

fn private() -> fs::OpenOptions {
    let mut options = File::options();
    options.read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Made with mode 0600 on Unix.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    #[cfg(unix)]
    keep_group(file.as_file(), path)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    #[cfg(unix)]
    File::open(folder)?.sync_all()?;
    Ok(())
}

/// Lets the group of the file that is replaced read the new one, if it could read the old: a broker
/// may have its tokens as a member of that group.
#[cfg(unix)]
fn keep_group(file: &File, replaced: &Path) -> io::Result<()> {
    let Ok(old) = fs::metadata(replaced) else { return Ok(()) };
    // Who may not give it to that group must not open it to another one.
    match std::os::unix::fs::fchown(file, None, Some(std::os::unix::fs::MetadataExt::gid(&old))) {
        Ok(()) => file.set_permissions(old.permissions()),
        Err(_) => Ok(()),
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// What there is to show of a token. Its hash is of no use to anybody.
fn to_json(entry: &TokenEntry) -> Value {
    json!({
        "id": entry.id,
        "name": entry.name,
        "grants": entry.grants.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "expires": entry.expires().map(moment::shown),
        "expires_ms": entry.expires_ms,
        "limits": entry.limits,
    })
}
