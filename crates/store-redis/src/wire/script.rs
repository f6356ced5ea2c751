//! The scripts: one file each in the repository's folder `lua`.
//!
//! Each begins with `#!lua` and its flags, and documents its keys, arguments and answers. Two come
//! from one file, `apply.lua`: [`Script::Apply`], which a full server refuses, and
//! [`Script::ApplyFreeing`], which it runs.

use std::sync::OnceLock;

use redis::{Cmd, Pipeline, ToRedisArgs};

macro_rules! scripts {
    ($($name:ident = $text:literal in $file:literal),* $(,)?) => {
        /// Every script.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub(crate) enum Script { $($name),* }

        impl Script {
            pub(crate) const ALL: &[Self] = &[$(Self::$name),*];

            /// The script's name in tests.
            #[cfg(any(test, feature = "test-support"))]
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }

            const fn file(self) -> &'static str {
                match self { $(Self::$name => include_str!(concat!("../../../../lua/", $file))),* }
            }
        }
    };
}

scripts! {
    Acquire = "acquire" in "acquire.lua",
    Apply = "apply" in "apply.lua",
    ApplyFreeing = "apply_freeing" in "apply.lua",
    Campaign = "campaign" in "campaign.lua",
    Facts = "facts" in "facts.lua",
    Holder = "holder" in "holder.lua",
    Publish = "publish" in "publish.lua",
    RaiseTerm = "raise_term" in "raise_term.lua",
    Renew = "renew" in "renew.lua",
    Resign = "resign" in "resign.lua",
    Touch = "touch" in "touch.lua",
}

impl Script {
    /// The text that servers get: the file without its lines of comment.
    pub(crate) fn text(self) -> &'static str {
        &self.loaded().0
    }

    /// The SHA-1 of the text, in hexadecimal, as EVALSHA takes it.
    pub(crate) fn sha1(self) -> &'static str {
        &self.loaded().1
    }

    /// EVALSHA with these keys. Arguments follow.
    pub(crate) fn command<K: ToRedisArgs>(self, keys: &[K]) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(self.sha1()).arg(keys.len()).arg(keys);
        command
    }

    fn loaded(self) -> &'static (String, String) {
        static ALL: OnceLock<Vec<(String, String)>> = OnceLock::new();
        let load = |script: &Self| {
            let lines = script.file().lines().filter(|line| !line.trim_start().starts_with("--"));
            let text: String = lines.flat_map(|line| [line, "\n"]).collect();
            let text = match script {
                Self::ApplyFreeing => text.replacen("#!lua", "#!lua flags=allow-oom", 1),
                _ => text,
            };
            #[cfg(feature = "test-support")]
            let text = if crate::test_support::fence_is_cut() {
                crate::test_support::without_fence(&text)
            } else {
                text
            };
            let sha1 = redis::Script::new(&text).get_hash().to_owned();
            (text, sha1)
        };
        // `ALL` holds every variant in the order of declaration.
        &ALL.get_or_init(|| Self::ALL.iter().map(load).collect())[self as usize]
    }
}

/// SCRIPT LOAD of every script. Idempotent.
pub(crate) fn load_all() -> Pipeline {
    let mut load = Pipeline::with_capacity(Script::ALL.len());
    for script in Script::ALL {
        load.cmd("SCRIPT").arg("LOAD").arg(script.text());
    }
    load
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_says_what_its_flags_keys_and_answers_are() {
        for script in Script::ALL {
            let file = script.file();
            let header: String =
                file.lines().take_while(|l| l.starts_with('#') || l.starts_with("--")).collect();
            assert!(header.starts_with("#!lua"), "{} has no flags", script.name());
            assert!(script.text().starts_with("#!lua") && !script.text().contains("--"), "{}", script.name());
            assert!(header.contains("KEYS[1"), "{} lists no keys", script.name());
            assert!(header.contains("Answers:"), "{} lists no answers", script.name());
        }
    }

    #[test]
    fn every_script_has_its_place_in_all() {
        assert!(Script::ALL.iter().enumerate().all(|(i, s)| *s as usize == i));
    }
}
