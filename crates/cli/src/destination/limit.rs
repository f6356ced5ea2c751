//! Limits of a destination, as they are given and shown.

use mtimer_client::{DeliveryLimits, DeliveryRate};
use serde_json::{Map, Value};

use crate::output::grouped;

/// A limit on concurrent deliveries; `None`: there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ConcurrencyArg(pub(super) Option<u32>);

/// A rate, with burst 0 until [`with_burst`]; `None`: there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RateArg(pub(super) Option<DeliveryRate>);

/// Times of a rate, and their letters.
const TIMES: [(&str, u32); 4] = [("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

pub(super) fn concurrency(text: &str) -> Result<ConcurrencyArg, String> {
    if text == "none" {
        return Ok(ConcurrencyArg(None));
    }
    let number = text.parse().map_err(|_| format!("{text:?} is neither a number nor none"))?;
    Ok(ConcurrencyArg(Some(number)))
}

pub(super) fn rate(text: &str) -> Result<RateArg, String> {
    if text == "none" {
        return Ok(RateArg(None));
    }
    let wrong =
        || format!("{text:?} is no rate: give a number and a time, such as 1000/s, 30/m or 5/h, or none");
    let (number, time) = text.split_once('/').ok_or_else(wrong)?;
    let starts = number.trim().parse().map_err(|_| wrong())?;
    let (_, per_ms) = TIMES.into_iter().find(|(letter, _)| *letter == time.trim()).ok_or_else(wrong)?;
    Ok(RateArg(Some(DeliveryRate { starts, per_ms, burst: 0 })))
}

/// A rate with this burst, or with the usual one: what comes in a tenth of a second.
pub(super) fn with_burst(rate: DeliveryRate, burst: Option<u32>) -> DeliveryRate {
    let usual = u64::from(rate.starts) * 100 / u64::from(rate.per_ms);
    let burst = burst.unwrap_or_else(|| u32::try_from(usual).unwrap_or(u32::MAX).max(1));
    DeliveryRate { burst, ..rate }
}

/// Limits for people.
pub(super) fn shown(limits: &DeliveryLimits) -> String {
    let concurrency = limits.concurrency.map(|n| format!("{} at a time", grouped(n.into())));
    let rate = limits.rate.map(|rate| {
        let time = TIMES.into_iter().find(|(_, ms)| *ms == rate.per_ms);
        let time = time.map_or_else(|| format!("{} ms", rate.per_ms), |(letter, _)| letter.to_owned());
        format!("{}/{time}, burst {}", grouped(rate.starts.into()), grouped(rate.burst.into()))
    });
    let all: Vec<String> = [concurrency, rate].into_iter().flatten().collect();
    if all.is_empty() { "no limits".to_owned() } else { all.join("; ") }
}

/// Adds the fields of limits.
pub(super) fn put(object: &mut Map<String, Value>, limits: &DeliveryLimits) {
    if let Some(concurrency) = limits.concurrency {
        object.insert("concurrency".to_owned(), concurrency.into());
    }
    if let Some(rate) = limits.rate {
        object.insert("rate_starts".to_owned(), rate.starts.into());
        object.insert("rate_per_ms".to_owned(), rate.per_ms.into());
        object.insert("rate_burst".to_owned(), rate.burst.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_shown() {
        let read = |text, burst| rate(text).map(|RateArg(rate)| rate.map(|rate| with_burst(rate, burst)));
        let of = |starts, per_ms, burst| Ok(Some(DeliveryRate { starts, per_ms, burst }));
        assert_eq!(read("1000/s", None), of(1_000, 1_000, 100));
        assert_eq!(read("30/m", None), of(30, 60_000, 1));
        assert_eq!(read("5 / h", Some(3)), of(5, 3_600_000, 3));
        assert_eq!(read("none", None), Ok(None));
        for wrong in ["", "5", "5/", "/s", "x/s", "-1/s", "5/w"] {
            assert!(rate(wrong).is_err_and(|text| text.contains("1000/s")), "{wrong}");
        }
        let rate = Some(DeliveryRate { starts: 1_000, per_ms: 1_000, burst: 100 });
        let shown_of = |concurrency, rate| shown(&DeliveryLimits { concurrency, rate });
        assert_eq!(shown_of(Some(50), rate), "50 at a time; 1,000/s, burst 100");
        assert_eq!(shown_of(None, None), "no limits");
    }
}
