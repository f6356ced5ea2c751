//! A type of settings: how its values are read and shown.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A type of settings: how a value is read from a flag or a variable, and shown as there. In files
/// it is what serde makes of it.
pub trait SettingValue: Sized + Serialize + DeserializeOwned {
    /// What can be written, and what each means; empty if the values cannot be listed.
    const CHOICES: &'static [(&'static str, &'static str)] = &[];
    /// Whether it is true or false.
    const IS_SWITCH: bool = false;
    /// What stands for its value in the help of a flag.
    const VALUE: &'static str = "TEXT";
    /// A value as a file has it, to show how one is written.
    const EXAMPLE: &'static str = "\"TEXT\"";

    /// Reads a value.
    ///
    /// # Errors
    ///
    /// What is wrong with the text, and what to write.
    fn read(text: &str) -> Result<Self, String>;

    /// Returns it as it is read, but for passwords.
    fn show(&self) -> String;
}

/// A setting's text cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is {problem}")]
pub struct InvalidValue {
    text: String,
    problem: String,
}

impl InvalidValue {
    pub(super) fn new(text: &str, expected: impl fmt::Display) -> Self {
        Self::because(text, format!("not {expected}"))
    }

    pub(super) fn because(text: &str, problem: impl Into<String>) -> Self {
        Self { text: text.chars().take(80).collect(), problem: problem.into() }
    }
}

impl SettingValue for String {
    fn read(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }

    fn show(&self) -> String {
        self.clone()
    }
}

impl SettingValue for bool {
    const IS_SWITCH: bool = true;
    const VALUE: &'static str = "true|false";
    const EXAMPLE: &'static str = "true";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| format!("{text:?} is not true or false"))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for PathBuf {
    const VALUE: &'static str = "FILE";
    const EXAMPLE: &'static str = "\"/etc/mtimer/FILE\"";

    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("it is empty: write a path".to_owned()) } else { Ok(Self::from(text)) }
    }

    fn show(&self) -> String {
        self.display().to_string()
    }
}

macro_rules! numbers {
    ($($ty:ty),*) => { $(
        impl SettingValue for $ty {
            const VALUE: &'static str = "N";
            const EXAMPLE: &'static str = "16";

            fn read(text: &str) -> Result<Self, String> {
                let what = || format!("a number from 0 to {}", Self::MAX);
                text.parse().map_err(|_| InvalidValue::new(text, what()).to_string())
            }

            fn show(&self) -> String {
                self.to_string()
            }
        }
    )* };
}
numbers!(u8, u16, u32, u64, usize);
