//! The fuzzer's own test: a failure that random bytes do not reach, and that coverage and traced
//! comparisons do.

/// Fails for inputs that begin with four certain bytes, and a fifth that is more than the sixth.
pub(crate) fn planted(data: &[u8]) {
    if let Some(rest) = data.strip_prefix(b"mtmr")
        && let [a, b, ..] = rest
    {
        assert!(a <= b, "the planted failure was found");
    }
}
