//! `mtimer token`: makes, lists, changes and revokes the tokens of a tokens file.
//!
//! Invariant: a new token goes to standard output once and is written nowhere; the file is replaced
//! as a whole, keeps owner, group and mode, and the comments in it stay. A new file is readable by
//! its owner only.

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
use super::output::{Output, note, shell_quoted};

/// Tokens of a file that brokers are given with --tokens
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:\n  \
    mtimer token create --file tokens.toml --name shop --grant schedule,cancel,register,read:shop/*\n  \
    mtimer token list --file tokens.toml")]
pub(crate) enum TokenCommand {
    Create(Create),
    List(TokenList),
    Grant(GrantMore),
    Rotate(Rotate),
    Revoke(Revoke),
}

/// Make a token; it is shown once, and only its hash is stored
///
/// A token allows what its grants say and nothing else. A grant is VERBS:PATTERNS. Verbs are
/// schedule, cancel (reschedule, extend-deadline), register (take callbacks), read, operate
/// (replay, purge, drain), and broker (join the cluster as a broker). A pattern is group/app,
/// group/*, or *. What names a timer by its id alone (cancel ID, dead replay, dead purge), and what
/// concerns the whole cluster (status, cluster status, drain), needs the verb on *.
///
/// Limits are counted at each broker by itself. schedules=N is a rate per second, burst=N how many
/// may come at once after a pause (without it N of schedules), pending=N how many timers its
/// destinations may have in memory or parked, payload=N the bytes of a payload and its
/// headers, connections=N how many there may be.
///
/// `mtimer token grant` lets a token do more, `mtimer token rotate` replaces it by another with the
/// same grants. Running brokers read the file again within seconds.
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

/// Let a token do more
///
/// Adds grants to a token, which stays the same: whoever has it need not do anything. Running
/// brokers read the file again within seconds, and sessions that are open have the new grants then.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    mtimer token grant --file tokens.toml 3f9a0c5512de7b88 --grant 'read:*'\n  \
    mtimer token grant --file tokens.toml 3f9a0c5512de7b88 --grant 'schedule,cancel:mails/*'")]
pub(crate) struct GrantMore {
    #[command(flatten)]
    file: FileArgs,
    /// The token's id: the 16 digits after mtimer_
    id: String,
    /// What it is to be allowed besides, VERBS:PATTERNS; may be given several times
    #[arg(long = "grant", value_name = "GRANT", required = true)]
    grants: Vec<Grant>,
}

/// Make another token in place of one, with the same name, grants and limits
///
/// It is shown once. The old one stays valid, so that no call fails: give the new one to everybody
/// who has the old one, then revoke that; or let it end by itself with --old-expires-in.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    mtimer token rotate --file tokens.toml 3f9a0c5512de7b88 > shop-token\n  \
    mtimer token rotate --file tokens.toml 3f9a0c5512de7b88 --old-expires-in 24h > shop-token")]
pub(crate) struct Rotate {
    #[command(flatten)]
    file: FileArgs,
    /// The old token's id: the 16 digits after mtimer_
    id: String,
    /// How long the new one is valid; without it until it is revoked. Needed if the old one expires
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = moment::span)]
    expires_in: Option<Duration>,
    /// How long the old one stays valid; without it as long as it is now
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = moment::span)]
    old_expires_in: Option<Duration>,
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
            Self::Grant(grant) => grant.run(out),
            Self::Rotate(rotate) => rotate.run(out),
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
        let expires_ms = self.expires_in.map(expiry);
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
            out.either(&to_json(entry), || line(entry))?;
        }
        Ok(())
    }
}

impl GrantMore {
    fn run(self, out: Output) -> Result<(), Failure> {
        let _lock = self.file.lock(false)?;
        let mut entries = self.file.read()?.entries().to_vec();
        let entry = self.file.find(&mut entries, &self.id)?;
        let more = self.grants.into_iter().filter(|grant| !entry.grants.contains(grant));
        let more: Vec<Grant> = more.collect();
        entry.grants.extend(more);
        let entry = entry.clone();
        self.file.write(entries)?;
        out.either(&to_json(&entry), || line(&entry))
    }
}

impl Rotate {
    fn run(self, out: Output) -> Result<(), Failure> {
        let _lock = self.file.lock(false)?;
        let mut entries = self.file.read()?.entries().to_vec();
        let old = self.file.find(&mut entries, &self.id)?;
        if old.expires_ms.is_some() && self.expires_in.is_none() {
            return Err(Failure::usage(format!(
                "token {} expires: say how long the new one is to be valid, such as --expires-in 30d",
                self.id
            )));
        }
        if let Some(span) = self.old_expires_in {
            let sooner = old.expires_ms.map_or(expiry(span), |at| at.min(expiry(span)));
            old.expires_ms = Some(sooner);
        }
        let (token, left) = (Token::from_random(rand::random(), rand::random()), old.expires_ms);
        let entry = TokenEntry {
            id: token.id().to_owned(),
            sha256: token.hash(),
            expires_ms: self.expires_in.map(expiry),
            ..old.clone()
        };
        let mut shown = to_json(&entry);
        entries.push(entry);
        self.file.write(entries)?;
        shown["token"] = json!(token.reveal());
        shown["replaces"] = json!(self.id);
        out.either(&shown, || token.reveal())?;
        if !out.json && left.is_none() {
            note(&format!(
                "the old token stays valid; once nobody uses it: mtimer token revoke --file {} {}",
                shell_quoted(&self.file.file.display().to_string()),
                self.id
            ));
        }
        Ok(())
    }
}

impl Revoke {
    fn run(self, out: Output) -> Result<(), Failure> {
        // Other commands can use the file while somebody is asked.
        let tokens = self.file.read()?;
        let name = &tokens.entry(&self.id).ok_or_else(|| self.file.unknown())?.name;
        self.yes.confirm(&format!("this revokes token {} ({name}), and ends its sessions", self.id))?;
        let _lock = self.file.lock(false)?;
        let mut entries = self.file.read()?.entries().to_vec();
        let before = entries.len();
        entries.retain(|entry| entry.id != self.id);
        if entries.len() == before {
            return Err(self.file.unknown());
        }
        self.file.write(entries)?;
        out.either(&json!({ "revoked": self.id }), || format!("revoked {}", self.id))
    }
}

impl FileArgs {
    fn find<'a>(&self, entries: &'a mut [TokenEntry], id: &str) -> Result<&'a mut TokenEntry, Failure> {
        entries.iter_mut().find(|entry| entry.id == id).ok_or_else(|| self.unknown())
    }

    /// A whole token may have been given by mistake: it is not shown.
    fn unknown(&self) -> Failure {
        let file = self.file.display().to_string();
        let message = format!(
            "{file} has no token of this id: they are listed by `mtimer token list --file {}`",
            shell_quoted(&file)
        );
        Failure::new(Exit::NotFound, message)
    }

    fn read(&self) -> Result<Tokens, Failure> {
        Tokens::parse(&self.text()?).map_err(|error| self.invalid(&error))
    }

    fn text(&self) -> Result<String, Failure> {
        read_private(&self.file, MAX_FILE_BYTES as u64).map_err(|error| exposed(&error))
    }

    fn invalid(&self, error: &mtimer_access::InvalidTokens) -> Failure {
        Failure::usage(format!("the tokens file {} is not valid: {error}", self.file.display()))
    }

    /// Opens the file, and makes it if that is wanted. Other commands cannot change it until the
    /// result is dropped.
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
        replace(&self.file, &tokens.update(&self.text()?))
            .map_err(|error| Failure::file("write", &self.file, &error))
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
    keep_owner(file.as_file(), path)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    #[cfg(unix)]
    File::open(folder)?.sync_all()?;
    Ok(())
}

/// Gives the file owner, group and mode of the one that it replaces: a broker may have its tokens
/// as their owner, while root changes them, or as a member of that group.
#[cfg(unix)]
fn keep_owner(file: &File, replaced: &Path) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, fchown};
    let Ok(old) = fs::metadata(replaced) else { return Ok(()) };
    let is_own = file.metadata()?.uid() == old.uid();
    // Who may not give it to that group must not open it to another one. A broker that is no longer
    // its owner could not read it: then nothing is replaced.
    match fchown(file, (!is_own).then_some(old.uid()), Some(old.gid())) {
        Ok(()) => file.set_permissions(old.permissions()),
        Err(_) if is_own => Ok(()),
        Err(error) => Err(error),
    }
}

/// A token in one line, for people.
fn line(entry: &TokenEntry) -> String {
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
}

/// End of a validity from now of so long, in ms since 1970.
fn expiry(span: Duration) -> u64 {
    moment::millis(since_1970() + span)
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The fields of a token to show. Its hash is of no use to anybody.
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
