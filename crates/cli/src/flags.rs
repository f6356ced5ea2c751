//! A broker's settings as flags: one for each of [`SETTINGS`].

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser, ValueParser};
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use mtimer_broker::config::{Durability, PartialConfig, SETTINGS, Setting, SettingValue};

/// The settings that flags give.
#[derive(Clone, Debug, Default)]
pub(crate) struct SettingFlags(pub(crate) PartialConfig);

impl Args for SettingFlags {
    fn augment_args(command: Command) -> Command {
        command.args(SETTINGS.iter().map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        for setting in SETTINGS {
            if let Some(text) = matches.get_one::<String>(setting.field) {
                let invalid = |why| Error::raw(clap::error::ErrorKind::ValueValidation, why);
                setting.read(&mut self.0, text).map_err(invalid)?;
            }
        }
        Ok(())
    }
}

fn flag(setting: &'static Setting) -> Arg {
    let value = if setting.choices.is_empty() {
        // Read here as well, so that an error names the flag.
        ValueParser::new(|text: &str| {
            setting.read(&mut PartialConfig::default(), text).map(|()| text.to_owned())
        })
    } else {
        names(setting.choices).into()
    };
    let arg = Arg::new(setting.field).long(setting.name()).value_name(setting.value);
    let arg = match setting.is_switch {
        true => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        // `--memory -5` is refused by the parser of the value, which names the fault. Paths and
        // texts may begin with a hyphen, but `--data --json` more likely lacks its value.
        false => arg.allow_hyphen_values(setting.read(&mut PartialConfig::default(), "-").is_err()),
    };
    arg.help(setting.help()).help_heading(setting.group).value_parser(value)
}

/// The command without the flags about other brokers or Redis, which `dev` has not. It is hidden
/// only, so that somebody who gives such a flag is still told why it is refused.
pub(crate) fn without_cluster(command: Command) -> Command {
    let embedded = Durability::CHOICES.iter().copied().filter(|(name, _)| name.starts_with("embedded"));
    let embedded: Vec<_> = embedded.collect();
    let all = SETTINGS.iter().filter(|setting| setting.shared);
    all.fold(command, |command, setting| command.mut_arg(setting.field, |arg| arg.hide(true)))
        .mut_arg("durability", |arg| arg.value_parser(names(&embedded)))
}

/// Takes one of the values that a setting can have.
pub(crate) fn one_of<T: SettingValue + Clone + Send + Sync + 'static>() -> impl TypedValueParser<Value = T> {
    names(T::CHOICES).try_map(|name| T::read(&name))
}

fn names(choices: &[(&'static str, &'static str)]) -> PossibleValuesParser {
    let value =
        |&(name, help): &(&'static str, &'static str)| PossibleValue::new(name).help(help.trim_start());
    PossibleValuesParser::new(choices.iter().map(value))
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use crate::described;

    /// The commands that have no others below them, as they are typed.
    fn leaves(command: &clap::Command, path: &[String]) -> Vec<(Vec<String>, clap::Command)> {
        let path = [path, &[command.get_name().to_owned()]].concat();
        if !command.has_subcommands() {
            return vec![(path, command.clone())];
        }
        command.get_subcommands().flat_map(|below| leaves(below, &path)).collect()
    }

    #[test]
    fn every_flag_that_takes_a_duration_says_that_it_is_negative() {
        let all = described();
        let mut seen = Vec::new();
        for (path, command) in leaves(&all, &[]) {
            for flag in command.get_arguments().filter_map(clap::Arg::get_long) {
                let flag = format!("--{flag}");
                let error = |more: &[&str]| {
                    let args = path.iter().map(String::as_str).chain(more.iter().copied());
                    all.clone().try_get_matches_from(args).err()
                };
                let is_bad = |text: &str| {
                    error(&[&format!("{flag}={text}")])
                        .is_some_and(|error| error.kind() == ErrorKind::ValueValidation)
                };
                if is_bad("5s") || !is_bad("x") {
                    continue;
                }
                seen.push(format!("{} {flag}", path[1..].join(" ")));
                let together = format!("{flag}=-5s");
                let refused = error(&[&together]).into_iter();
                // It may stand alone, so the next argument can be another flag.
                let apart = if flag == "--watch" { None } else { error(&[&flag, "-5s"]) };
                for error in refused.chain(apart) {
                    let text = error.to_string();
                    assert_eq!(error.kind(), ErrorKind::ValueValidation, "{path:?} {flag}: {text}");
                    assert!(text.contains("\"-5s\" is negative: a duration is 0s or longer"), "{text}");
                    assert!(text.contains(&flag), "{text}");
                }
            }
        }
        for flag in [
            "cluster status --watch",
            "bench idle --for",
            "schedule --in",
            "schedule --retry",
            "schedule --deadline",
            "broker --retry",
            "dev --drain-timeout",
        ] {
            assert!(seen.iter().any(|known| known == flag), "{flag}: {seen:?}");
        }
    }
}
