//! Flags that several commands share.

use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use mtimer_broker::{check_private, read_private};
use mtimer_client::{Client, ClientBuilder, Destination, Key, Target, TimerId, TlsOptions, When};

use super::exit::{Exit, Failure};
use super::logging::LogArgs;
use super::moment;

/// Who the broker is told that we are.
pub(crate) const SOFTWARE: &str = concat!("mtimer/", env!("CARGO_PKG_VERSION"));

/// The broker of this machine.
pub(crate) const DEFAULT_BROKER: &str = "127.0.0.1:7400";

/// Most bytes of a file with a token in it.
const MAX_TOKEN_FILE: u64 = 4 * 1024;

/// How to reach a broker.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientArgs {
    /// Addresses of brokers, host:port, separated by commas; one that answers is enough to find the
    /// others of its cluster
    #[arg(
        long,
        value_name = "ADDR",
        env = "MTIMER_BROKER",
        default_value = DEFAULT_BROKER,
        help_heading = "Connection"
    )]
    pub(crate) broker: String,
    #[command(flatten)]
    pub(crate) token: TokenArgs,
    #[command(flatten)]
    pub(crate) tls: ConnectTlsArgs,
    /// How long to try to connect; each address has a second at least
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = moment::span, default_value = "5s")]
    #[arg(help_heading = "Connection")]
    pub(crate) connect_timeout: Duration,
    /// How long a request may wait for its answer, or for a broker that cannot do it yet; up to 30s
    /// for its answer
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = moment::timeout, default_value = "10s")]
    #[arg(help_heading = "Connection")]
    pub(crate) request_timeout: Duration,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// The token to show to a broker.
#[derive(Args, Clone)]
pub(crate) struct TokenArgs {
    /// The token to show to the broker. Other users of this machine see it in `ps`: rather give
    /// --token-file, or the variable
    #[arg(long, env = "MTIMER_TOKEN", hide_env_values = true, default_value = "", hide_default_value = true)]
    #[arg(value_name = "TOKEN", help_heading = "Connection")]
    token: String,
    /// A file with nothing but the token in it, which only its owner and group may read; goes
    /// before --token
    #[arg(long, value_name = "FILE", env = "MTIMER_TOKEN_FILE", help_heading = "Connection")]
    token_file: Option<PathBuf>,
}

/// Shows no secret.
impl fmt::Debug for TokenArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenArgs").field("token_file", &self.token_file).finish_non_exhaustive()
    }
}

impl TokenArgs {
    /// Returns the token; empty if there is none.
    pub(crate) fn read(&self) -> Result<String, Failure> {
        let Some(file) = &self.token_file else { return Ok(self.token.clone()) };
        let text = read_private(file, MAX_TOKEN_FILE)
            .map_err(|error| Failure::usage(format!("the token file: {error}")))?;
        Ok(text.trim().to_owned())
    }
}

/// TLS of the connection to a broker.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConnectTlsArgs {
    /// PEM file of the authorities that sign the brokers' certificates: connect with TLS
    #[arg(long, value_name = "FILE", env = "MTIMER_TLS_CA", help_heading = "Connection")]
    tls_ca: Option<PathBuf>,
    /// PEM file of the certificate to show to brokers that ask for one, and its chain
    #[arg(long, value_name = "FILE", env = "MTIMER_TLS_CERT", help_heading = "Connection")]
    tls_cert: Option<PathBuf>,
    /// PEM file of the key of that certificate, which only its owner and group may read
    #[arg(long, value_name = "FILE", env = "MTIMER_TLS_KEY", help_heading = "Connection")]
    tls_key: Option<PathBuf>,
    /// The name in the brokers' certificates, if it is not the host connected to
    #[arg(long, value_name = "NAME", env = "MTIMER_TLS_SERVER_NAME", help_heading = "Connection")]
    tls_server_name: Option<String>,
}

impl ConnectTlsArgs {
    /// Adds it to a client's settings.
    pub(crate) fn apply(&self, builder: ClientBuilder) -> Result<ClientBuilder, Failure> {
        let Self { tls_ca, tls_cert, tls_key, tls_server_name } = self;
        let Some(ca) = tls_ca else {
            let other = [("--tls-cert", tls_cert.is_some()), ("--tls-key", tls_key.is_some())];
            let other = other.into_iter().chain([("--tls-server-name", tls_server_name.is_some())]);
            return match other.into_iter().find(|(_, given)| *given) {
                None => Ok(builder),
                Some((flag, _)) => Err(Failure::usage(format!(
                    "{flag} is given, but not who signs the brokers' certificates: give --tls-ca, too"
                ))),
            };
        };
        let mut tls = TlsOptions::ca_file(ca);
        match (tls_cert, tls_key) {
            (None, None) => {}
            (Some(certificate), Some(key)) => {
                let file = File::open(key).map_err(|error| Failure::file("read", key, &error))?;
                check_private(&file, key)
                    .map_err(|error| Failure::usage(format!("the private key: {error}")))?;
                tls = tls.certificate_files(certificate, key);
            }
            _ => {
                return Err(Failure::usage(
                    "a certificate and its key go together: give --tls-cert and --tls-key",
                ));
            }
        }
        if let Some(name) = tls_server_name {
            tls = tls.server_name(name);
        }
        Ok(builder.tls(tls))
    }
}

impl ClientArgs {
    /// Starts the log and connects.
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        self.log.start()?;
        self.connect_again().await
    }

    /// Connects with the present contents of the files of token and certificates.
    pub(crate) async fn connect_again(&self) -> Result<Client, Failure> {
        Ok(self.builder()?.connect().await?)
    }

    fn builder(&self) -> Result<ClientBuilder, Failure> {
        let builder = Client::builder()
            .brokers([self.broker.clone()])
            .token(self.token.read()?)
            .software(SOFTWARE)
            .connect_timeout(self.connect_timeout)
            .request_timeout(self.request_timeout)
            .answer_timeout(self.request_timeout);
        self.tls.apply(builder)
    }

    /// Connects, does the work, and closes the connection gracefully however the work has gone.
    pub(crate) async fn with<T>(
        &self,
        work: impl AsyncFnOnce(&Client) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        finish(self.connect().await?, work).await
    }

    /// The same as an observer, who is let in by a broker that is full of clients.
    pub(crate) async fn looking<T>(
        &self,
        look: impl AsyncFnOnce(&Client) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.log.start()?;
        finish(self.builder()?.observer().connect().await?, look).await
    }

    /// The same with a connection to one broker only, also if it is one of a cluster.
    pub(crate) async fn looking_at_one<T>(
        &self,
        look: impl AsyncFnOnce(&Client) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.log.start()?;
        finish(self.builder()?.observer().one_broker(true).connect().await?, look).await
    }
}

async fn finish<T>(
    client: Client,
    work: impl AsyncFnOnce(&Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let result = work(&client).await;
    if let Err(failure) = &result
        && failure.exit == Exit::Unknown
    {
        // The time is up, and closing would wait once more for the broker that gave no answer.
        return result;
    }
    let closed = client.close().await;
    let value = result?;
    closed?;
    Ok(value)
}

/// One timer.
#[derive(Args, Clone, Debug)]
pub(crate) struct TargetArgs {
    /// The timer's id: 26 characters
    #[arg(required_unless_present = "key", conflicts_with_all = ["key", "group", "app"])]
    id: Option<TimerId>,
    /// The timer's key; needs --group and --app
    #[arg(long, requires = "group", requires = "app", value_parser = key)]
    key: Option<Key>,
    /// The group key of the timer's destination
    #[arg(long, requires = "key")]
    group: Option<String>,
    /// The app key of the timer's destination
    #[arg(long, requires = "key")]
    app: Option<String>,
}

impl TargetArgs {
    pub(crate) fn target(&self) -> Result<Target, Failure> {
        match (self.id, &self.key, &self.group, &self.app) {
            (Some(id), ..) => Ok(Target::Id(id)),
            (None, Some(key), Some(group), Some(app)) => {
                Ok(Target::Key(destination(group, app)?, key.clone()))
            }
            _ => Err(Failure::usage("name a timer: give its id, or --group, --app and --key")),
        }
    }
}

/// When a timer is due.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct WhenArgs {
    /// Due so long from now: 250ms, 5s, 2h 30m
    #[arg(long = "in", value_name = "DURATION", allow_hyphen_values = true, value_parser = moment::span, conflicts_with = "at")]
    after: Option<Duration>,
    /// Due then: RFC 3339, or milliseconds since 1970; a time in the past is due at once
    #[arg(long, value_name = "TIME", value_parser = moment::time)]
    at: Option<mtimer_client::Time>,
}

impl WhenArgs {
    pub(crate) fn when(self) -> Option<When> {
        self.at.map(When::At).or(self.after.map(When::After))
    }

    pub(crate) fn required(self) -> Result<When, Failure> {
        self.when().ok_or_else(|| {
            Failure::usage("when? Give --in such as --in 5s, or --at such as --at 2030-01-31T12:00:00Z")
        })
    }
}

/// Group and app as a destination.
pub(crate) fn destination(group: &str, app: &str) -> Result<Destination, Failure> {
    Destination::new(group, app).map_err(|e| Failure::usage(e.to_string()))
}

/// Reads `name=value`.
pub(crate) fn name_and_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it has no \"=\": give NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// A key from a flag.
pub(crate) fn key(text: &str) -> Result<Key, String> {
    Key::new(text).map_err(|e| e.to_string())
}
