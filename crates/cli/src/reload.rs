//! HUP at a broker: files that are read again, settings that need a restart.
//!
//! Invariant: HUP never ends a broker, with any settings, and a file that cannot be read again
//! changes nothing.
//! Not in here: reading the files of tokens and certificates ([`mtimer_broker::Broker::reload`]),
//! and the password of Redis ([`Opened::reload`]).

use mtimer_broker::Broker;
use mtimer_broker::config::{Config, PartialConfig, SETTINGS, Setting};

use super::exit::{Exit, Failure};
use super::settings::Source;
use super::signals::Hangups;
use super::store::Opened;

/// State that a HUP reloads. From when this exists on, no HUP ends the process.
pub(crate) struct Reload {
    hangups: Hangups,
    source: Source,
    /// The settings in use.
    used: PartialConfig,
    /// The files that the broker reads again, by their settings.
    files: Vec<String>,
}

impl Reload {
    pub(crate) fn watch(source: Source, config: &Config) -> Result<Self, Failure> {
        let hangups = Hangups::watch()?;
        Ok(Self { hangups, source, used: config.settings().clone(), files: files(config.settings()) })
    }

    /// Where the settings come from.
    pub(crate) fn source(&self) -> Source {
        self.source.clone()
    }

    /// Reloads at each HUP, without an end.
    pub(crate) async fn at_each_hangup(mut self, broker: &Broker, opened: &Opened) {
        loop {
            self.hangups.next().await;
            match self.files.is_empty() {
                true => tracing::info!("HUP: there are no tokens and no certificates to read again"),
                false => tracing::info!(files = self.files.join(", "), "HUP: reads these again"),
            }
            broker.reload();
            opened.reload().await;
            self.look_at_settings().await;
        }
    }

    /// Says which settings have changed and wait for a restart.
    async fn look_at_settings(&self) {
        let source = self.source.clone();
        // An address to listen on may be a name that has to be looked up.
        let reading = tokio::task::spawn_blocking(move || source.read());
        let read = reading.await.unwrap_or_else(|e| Err(Failure::new(Exit::Failed, e.to_string())));
        match read.map(|config| changed(&self.used, config.settings())) {
            Ok(changed) if changed.is_empty() => {}
            Ok(changed) => tracing::warn!(
                settings = changed.join(", "),
                "these settings have changed and count from the next start on: restart this broker"
            ),
            Err(error) => {
                tracing::warn!(%error, "the settings are not valid any more: a restart would fail");
            }
        }
    }
}

/// The files that are read again, by the settings that name them.
fn files(settings: &PartialConfig) -> Vec<String> {
    let read_again = |setting: &&Setting| setting.reread && setting.show(settings).is_some();
    SETTINGS.iter().filter(read_again).map(Setting::name).collect()
}

/// The names of the settings that differ.
fn changed(used: &PartialConfig, now: &PartialConfig) -> Vec<String> {
    let differs = |setting: &&Setting| setting.show(used) != setting.show(now);
    let mut names: Vec<String> = SETTINGS.iter().filter(differs).map(Setting::name).collect();
    let tables = [
        ("destination", used.destination != now.destination),
        ("group-limit", used.group_limit != now.group_limit),
    ];
    names.extend(tables.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name.to_owned()));
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(toml: &str) -> PartialConfig {
        toml::from_str::<PartialConfig>(toml).unwrap().resolve().unwrap().settings().clone()
    }

    #[test]
    fn settings_that_differ_are_named() {
        let used = settings("memory = \"64MiB\"\n[[group-limit]]\ngroup = \"g\"\npending = 5");
        assert_eq!(changed(&used, &used), [""; 0]);
        let now = settings("listen = \"127.0.0.1:7500\"\nmemory = \"65MiB\"");
        assert_eq!(changed(&used, &now), ["group-limit", "listen", "memory"]);
    }

    #[test]
    fn only_what_there_is_is_read_again() {
        assert_eq!(files(&settings("")), [""; 0]);
        let with = "tokens = \"t\"\ntls-cert = \"c\"\ntls-key = \"k\"";
        assert_eq!(files(&settings(with)), ["tokens", "tls-cert"]);
    }
}
