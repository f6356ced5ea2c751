//! A broker's settings as flags: one for each of [`SETTINGS`].

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser, ValueParser};
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use mtimer_broker::config::{PartialConfig, SETTINGS, Setting, SettingValue};

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
    let arg = Arg::new(setting.field).long(setting.name()).value_name("VALUE");
    let arg = match setting.is_switch {
        true => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        false => arg,
    };
    arg.help(setting.help()).value_parser(value)
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
