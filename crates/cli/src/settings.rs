//! A broker's settings as the command line sees them: reading the layers, and showing the result.

use std::path::{Path, PathBuf};

use mtimer_broker::config::{Config, PartialConfig, SETTINGS};
use serde_json::Value;

use super::exec::is_child_variable;
use super::exit::{Exit, Failure};
use super::logging;

/// Variables that clients have, too, and that say nothing of a broker to play with.
pub(crate) const OF_CLIENTS: &[&str] = &["MTIMER_TLS_CA", "MTIMER_TLS_CERT", "MTIMER_TLS_KEY"];

/// Flags over environment over file over defaults. `but`: variables that are not looked at.
pub(crate) fn read(flags: PartialConfig, file: Option<&Path>, but: &[&str]) -> Result<Config, Failure> {
    // Commands that `listen --exec` runs may start a broker: the variables of their callback are no
    // settings.
    let ours = |name: &str| name == "MTIMER_LOG" || is_child_variable(name);
    // A variable that is not UTF-8 is none of ours either.
    let vars = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| !ours(name) && !but.contains(&name.as_str()));
    let mut layers = PartialConfig::layered(flags, vars, file)?;
    layers.log_level = layers.log_level.or_else(logging::from_env);
    Ok(layers.resolve()?)
}

/// Where the settings of a broker come from, so that they can be read again.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) flags: PartialConfig,
    pub(crate) file: Option<PathBuf>,
}

impl Source {
    pub(crate) fn read(&self) -> Result<Config, Failure> {
        read(self.flags.clone(), self.file.as_deref(), &[])
    }
}

/// The settings as JSON, under the names that they have in the file.
pub(crate) fn as_json(settings: &PartialConfig) -> Result<Value, Failure> {
    let wrong = |e| Failure::new(Exit::Failed, format!("cannot write the settings: {e}"));
    serde_json::to_value(settings).map_err(wrong)
}

/// The command with the default and the variable of every setting in its help; the defaults of
/// `but` are told elsewhere, and the variables `no_variables` are not looked at.
pub(crate) fn described(command: clap::Command, but: &[&str], no_variables: &[&str]) -> clap::Command {
    let Ok(config) = PartialConfig::default().resolve() else { return command };
    SETTINGS.iter().fold(command, |command, setting| {
        let (name, variable) = (setting.name(), setting.variable());
        let default = setting.show(config.settings()).filter(|_| !but.contains(&name.as_str()));
        command.mut_arg(setting.field, |arg| {
            let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            if let Some(default) = default.filter(|_| !help.contains("[default: ")) {
                help += &format!(" [default: {default}]");
            }
            if !no_variables.contains(&variable.as_str()) {
                help += &format!(" [env: {variable}]");
            }
            arg.help(help)
        })
    })
}

#[cfg(test)]
mod tests {
    use clap::Args;

    use super::*;
    use crate::flags::SettingFlags;

    #[test]
    fn every_setting_that_has_a_default_shows_it_in_its_help() {
        let flags = SettingFlags::augment_args(clap::Command::new("mtimer"));
        let without: Vec<String> = described(flags, &[], &[])
            .get_arguments()
            .filter(|arg| !arg.get_help().is_some_and(|help| help.to_string().contains("[default: ")))
            .filter_map(|arg| arg.get_long().map(str::to_owned))
            .collect();
        let tls = ["redis-tls-ca", "redis-tls-cert", "redis-tls-key"];
        let without_default = [
            &[
                "tokens",
                "peer-token-file",
                "tls-cert",
                "tls-key",
                "tls-client-ca",
                "tls-ca",
                "advertise",
                "redis",
            ],
            &tls[..],
            &["replicas", "replicas-within", "partitions"],
        ];
        assert_eq!(without, without_default.concat());
    }

    #[test]
    fn no_default_is_told_twice_and_every_setting_has_its_variable() {
        let flags = SettingFlags::augment_args(clap::Command::new("mtimer"));
        for arg in described(flags, &[], &["MTIMER_TLS_CA"]).get_arguments() {
            let help = arg.get_help().unwrap().to_string();
            assert!(help.matches("[default: ").count() <= 1, "{help}");
            assert_eq!(help.contains("[env: MTIMER_"), arg.get_id() != "tls_ca", "{help}");
        }
    }
}
