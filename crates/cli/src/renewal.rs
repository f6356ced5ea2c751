//! HUP at a client that stays connected: its token is read again.
//!
//! Invariant: HUP never ends it. A token that cannot be read, or that opens no connection, changes
//! nothing. Certificates need none of this: they are read for every connection.

use mtimer_client::Client;

use super::args::ClientArgs;
use super::exit::Failure;
use super::output::{note, note_error};
use super::signals::Hangups;

/// Looks for HUPs and for the token that they are about.
pub(crate) struct Renewal {
    hangups: Hangups,
    args: ClientArgs,
    /// The token of the connection in use.
    token: String,
    is_due: bool,
}

impl Renewal {
    pub(crate) fn watch(args: &ClientArgs) -> Result<Self, Failure> {
        let (hangups, token) = (Hangups::watch()?, args.token.read()?);
        Ok(Self { hangups, args: args.clone(), token, is_due: false })
    }

    /// Waits for a HUP after which the token is another one. Nothing is lost if this is dropped.
    pub(crate) async fn wanted(&mut self) {
        while !self.is_due {
            self.hangups.next().await;
            match self.args.token.read() {
                Ok(token) => self.is_due = token != self.token,
                Err(failure) => note_error(&format!("HUP: {failure}; the token in use stays")),
            }
            match self.is_due {
                true => note("HUP: the token has changed: connects again once running handlers have ended"),
                false => note("HUP: goes on: no other token to connect with"),
            }
        }
    }

    /// Connects with the new token if there is one, and closes the old connection. If that fails
    /// the old one is used on.
    pub(crate) async fn apply(&mut self, client: Client) -> Client {
        if !std::mem::take(&mut self.is_due) {
            return client;
        }
        let renewed = match self.args.token.read() {
            Ok(token) => self.args.connect_again().await.map(|client| (client, token)),
            Err(failure) => Err(failure),
        };
        match renewed {
            Ok((new, token)) => {
                self.token = token;
                if let Err(error) = client.close().await {
                    note_error(&format!("the connection with the old token: {error}"));
                }
                note("connected with the new token");
                new
            }
            Err(failure) => {
                note_error(&format!("not connected with the new token, the old one stays in use: {failure}"));
                client
            }
        }
    }
}
