//! Tests that cannot run everywhere: they say so, and fail where nothing may be skipped.

use std::env;

/// `1`: what cannot run is a failure. Set by tests/run where everything can.
const NO_SKIP: &str = "MTIMER_NO_SKIP";

/// Says on standard error that a test, or a part of one, cannot run here, and why.
///
/// # Panics
///
/// If nothing may be skipped (`MTIMER_NO_SKIP=1`).
pub fn skip(what: &str, why: &str) {
    match skipped(env::var(NO_SKIP).is_ok_and(|value| value == "1"), what, why) {
        Ok(text) => eprintln!("{text}"),
        Err(text) => panic!("{text}"),
    }
}

fn skipped(is_forbidden: bool, what: &str, why: &str) -> Result<String, String> {
    match is_forbidden {
        false => Ok(format!("SKIPPED {what}: {why}")),
        true => Err(format!("{what} cannot run here, and {NO_SKIP}=1 forbids to skip it: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_skipped_is_told_with_the_reason_and_a_failure_where_that_is_forbidden() {
        assert_eq!(skipped(false, "a test", "no root"), Ok("SKIPPED a test: no root".to_owned()));
        let failure = skipped(true, "a test", "no root").unwrap_err();
        assert!(failure.contains("a test") && failure.contains("no root"), "{failure}");
    }
}
