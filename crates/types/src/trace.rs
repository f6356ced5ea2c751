//! Trace context: the header by which a timer belongs to a trace.

use std::fmt;

/// Says which trace something belongs to, and below which span, as the header `traceparent` of W3C
/// Trace Context writes it.
///
/// ```
/// use mtimer_types::TraceContext;
///
/// let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
/// let context = TraceContext::parse(text).unwrap();
/// assert!(context.is_sampled());
/// assert_eq!(context.to_string(), text);
/// assert_eq!(TraceContext::parse("00-0af7"), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TraceContext {
    /// The trace. Not 0.
    pub trace: u128,
    /// The parent of the spans that follow. Not 0.
    pub span: u64,
    /// Bit 0: the trace is recorded.
    pub flags: u8,
}

/// Bytes of the form of version 00: `00-`, 32 digits, `-`, 16 digits, `-`, 2 digits.
const LEN: usize = 55;
/// The trace is recorded.
const SAMPLED: u8 = 1;

impl TraceContext {
    /// Reads the value of `traceparent`. `None` if it is not valid: then there is no trace.
    ///
    /// Later versions than 00 are read as far as 00 goes, as W3C asks for.
    pub fn parse(text: &str) -> Option<Self> {
        let (known, more) = text.split_at_checked(LEN)?;
        let mut parts = known.split('-');
        let mut next = |digits: usize| parts.next().filter(|part| part.len() == digits).and_then(hex);
        let (version, trace, span, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
        let ends_well = if version == 0 { more.is_empty() } else { more.is_empty() || more.starts_with('-') };
        let context = Self { trace, span: span as u64, flags: flags as u8 };
        (version != 0xff && trace != 0 && span != 0 && ends_well).then_some(context)
    }

    /// Says whether the trace is recorded.
    pub const fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }
}

/// Lower-case digits only.
fn hex(digits: &str) -> Option<u128> {
    let valid = digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    valid.then(|| u128::from_str_radix(digits, 16).ok()).flatten()
}

/// The value of `traceparent`, in version 00.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn every_part_is_read() {
        let context = TraceContext::parse(VALID).unwrap();
        assert_eq!(context.trace, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        assert_eq!((context.span, context.flags), (0xb7ad_6b71_6920_3331, 1));
        let unsampled = TraceContext::parse(&VALID.replace("-01", "-02")).unwrap();
        assert!(!unsampled.is_sampled() && unsampled.flags == 2);
    }

    #[test]
    fn later_versions_are_read_as_far_as_they_are_known() {
        for text in [VALID.replacen("00", "01", 1), VALID.replacen("00", "cc", 1) + "-more"] {
            assert_eq!(TraceContext::parse(&text), TraceContext::parse(VALID), "{text}");
        }
        assert_eq!(TraceContext::parse(&(VALID.replacen("00", "01", 1) + "more")), None);
    }

    #[test]
    fn what_is_not_valid_is_no_trace() {
        let zero_trace = VALID.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32));
        let zero_span = VALID.replace("b7ad6b7169203331", &"0".repeat(16));
        for text in [
            "",
            "00",
            &VALID[..54],
            &format!("{VALID}-"),
            &format!("{VALID}1"),
            &VALID.replacen("00", "ff", 1),
            &VALID.replace("af", "AF"),
            &VALID.replace("0af7", "+af7"),
            &VALID.replace('-', "_"),
            &VALID.replace("01", "é1"),
            &zero_trace,
            &zero_span,
        ] {
            assert_eq!(TraceContext::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(trace in 1u128.., span in 1u64.., flags: u8) {
            let context = TraceContext { trace, span, flags };
            prop_assert_eq!(TraceContext::parse(&context.to_string()), Some(context));
        }

        #[test]
        fn any_text_is_read_or_is_none(text in ".{0,70}") {
            let _ = TraceContext::parse(&text);
        }
    }
}
