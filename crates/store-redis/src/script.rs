//! The scripts: one file each in `lua/`, put together with the parts they include.

use redis::Script as Lua;

macro_rules! scripts {
    ($($name:ident = $file:literal),* $(,)?) => {
        /// Every script, by its file's name.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub(crate) enum Script { $($name),* }

        impl Script {
            pub(crate) const ALL: &[Self] = &[$(Self::$name),*];

            /// The file's name without its ending.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$name => $file),* }
            }

            const fn file(self) -> &'static str {
                match self { $(Self::$name => include_str!(concat!("../../../lua/", $file, ".lua"))),* }
            }
        }
    };
}

scripts! {
    Ack = "ack",
    Acquire = "acquire",
    Campaign = "campaign",
    Cancel = "cancel",
    Claim = "claim",
    CountRest = "count_rest",
    CountSlots = "count_slots",
    Destinations = "destinations",
    File = "file",
    Found = "found",
    Get = "get",
    Ids = "ids",
    Indexes = "indexes",
    Listing = "listing",
    Load = "load",
    Park = "park",
    ParkedDestinations = "parked_destinations",
    Peek = "peek",
    Publish = "publish",
    Purge = "purge",
    RaiseTerm = "raise_term",
    Recover = "recover",
    Release = "release",
    Renew = "renew",
    Replay = "replay",
    Reschedule = "reschedule",
    Resign = "resign",
    Schedule = "schedule",
    Settle = "settle",
    Split = "split",
    Take = "take",
    Trim = "trim",
    Unload = "unload",
    Unpark = "unpark",
}

const PRELUDE: &str = include_str!("../../../lua/prelude.lua");
const RECORDS: &str = include_str!("../../../lua/records.lua");
const SLOTS: &str = include_str!("../../../lua/slots.lua");
const TIMERS: &str = include_str!("../../../lua/timers.lua");

impl Script {
    /// The text as Redis gets it: included parts in their places, no comments.
    pub(crate) fn text(self) -> String {
        let mut text = String::new();
        put_together(self.file(), &mut text);
        text
    }

    /// Whether it changes anything (a script that does not says so in its flags).
    pub(crate) fn writes(self) -> bool {
        !self.file().starts_with("#!lua flags=no-writes")
    }

    /// The SHA-1 of its text, as EVALSHA takes it.
    pub(crate) fn sha(self) -> &'static str {
        use std::sync::OnceLock;
        static SHAS: OnceLock<Vec<String>> = OnceLock::new();
        let shas = SHAS
            .get_or_init(|| Self::ALL.iter().map(|s| Lua::new(&s.text()).get_hash().to_owned()).collect());
        // `ALL` holds every variant in the order of declaration.
        &shas[self as usize]
    }
}

fn put_together(file: &str, text: &mut String) {
    for line in file.lines() {
        match line.trim_start() {
            #[cfg(feature = "sabotage")]
            "--@include prelude" => put_together(&crate::sabotage::prelude(PRELUDE), text),
            #[cfg(not(feature = "sabotage"))]
            "--@include prelude" => put_together(PRELUDE, text),
            "--@include records" => put_together(RECORDS, text),
            "--@include slots" => put_together(SLOTS, text),
            "--@include timers" => put_together(TIMERS, text),
            comment if comment.starts_with("--") => {}
            _ => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_as_they_must_be() {
        for script in Script::ALL {
            let first = script.file().lines().next().unwrap_or_default();
            let expected = match script {
                Script::File | Script::Schedule | Script::Reschedule | Script::Replay => "#!lua",
                s if s.writes() => "#!lua flags=allow-oom",
                _ => "#!lua flags=no-writes",
            };
            assert_eq!(first, expected, "{}", script.name());
            assert!(script.text().starts_with(expected));
        }
    }

    #[test]
    fn every_file_lists_its_keys_and_answers() {
        for script in Script::ALL {
            let header: String =
                script.file().lines().take_while(|l| l.starts_with('#') || l.starts_with("--")).collect();
            assert!(header.contains("KEYS[1"), "{} lists no keys", script.name());
            assert!(header.contains("Answers:"), "{} lists no answers", script.name());
        }
    }

    #[test]
    fn every_script_has_its_place_in_all() {
        assert!(Script::ALL.iter().enumerate().all(|(i, s)| *s as usize == i));
    }
}
