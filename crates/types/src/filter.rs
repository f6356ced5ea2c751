//! Which timers a list is about.

use serde::{Deserialize, Serialize};

use crate::name::{Destination, Key};
use crate::timer::Timer;

/// What a timer must have in common with others to be listed with them. Everything that is given
/// must hold; a filter of nothing accepts every timer.
///
/// ```
/// use mtimer_types::{Destination, Filter, Time, Timer, TimerId};
///
/// # fn main() -> Result<(), mtimer_types::NameError> {
/// let orders = Destination::new("shop", "orders")?;
/// let timer = Timer::new(TimerId::from_u128(7), orders.clone(), Time::from_ms(1_000));
/// assert!(Filter::default().accepts(&timer));
/// assert!(Filter::of(&orders).accepts(&timer));
/// let keyed = Filter { key_prefix: Some("order-".into()), ..Filter::of(&orders) };
/// assert!(!keyed.accepts(&timer), "it has no key");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Filter {
    /// Only of this group.
    pub group: Option<String>,
    /// Only of this app.
    pub app: Option<String>,
    /// Only with a key that begins like this. The empty text: with any key.
    pub key_prefix: Option<String>,
    /// Only with a header of this name and value.
    pub header: Option<(String, String)>,
}

impl Filter {
    /// Every timer of one destination.
    pub fn of(dest: &Destination) -> Self {
        Self { group: Some(dest.group().into()), app: Some(dest.app().into()), ..Self::default() }
    }

    /// Whether a timer passes.
    pub fn accepts(&self, timer: &Timer) -> bool {
        self.accepts_destination(&timer.dest)
            && self.key_prefix.as_deref().is_none_or(|prefix| begins(timer.key.as_ref(), prefix))
            && self.header.as_ref().is_none_or(|(name, value)| timer.headers.get(name) == Some(value))
    }

    /// Bytes of its texts.
    pub fn bytes(&self) -> usize {
        let Self { group, app, key_prefix, header } = self;
        let header = header.as_ref().map_or(0, |(name, value)| name.len() + value.len());
        [group, app, key_prefix].into_iter().flatten().map(String::len).sum::<usize>() + header
    }

    /// Whether timers of a destination can pass.
    pub fn accepts_destination(&self, dest: &Destination) -> bool {
        self.group.as_deref().is_none_or(|group| group == dest.group())
            && self.app.as_deref().is_none_or(|app| app == dest.app())
    }
}

/// Every timer of the destination.
impl From<&Destination> for Filter {
    fn from(dest: &Destination) -> Self {
        Self::of(dest)
    }
}

/// Every timer of the destination.
impl From<Destination> for Filter {
    fn from(dest: Destination) -> Self {
        Self::of(&dest)
    }
}

fn begins(key: Option<&Key>, prefix: &str) -> bool {
    key.is_some_and(|key| key.as_str().starts_with(prefix))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

    use super::*;
    use crate::{Headers, Time, TimerId};

    fn timer() -> Timer {
        Timer {
            key: Some(Key::new("order-17").unwrap()),
            headers: Headers::new([("tenant", "acme")]).unwrap(),
            ..Timer::new(TimerId::from_u128(7), Destination::new("shop", "orders").unwrap(), Time::ZERO)
        }
    }

    #[test]
    fn each_condition_is_looked_at_alone() {
        let some = |text: &str| Some(text.to_owned());
        let header = |name: &str, value: &str| Some((name.to_owned(), value.to_owned()));
        let all = Filter::default();
        for (filter, accepts) in [
            (all.clone(), true),
            (Filter { group: some("shop"), ..all.clone() }, true),
            (Filter { group: some("sho"), ..all.clone() }, false),
            (Filter { app: some("orders"), ..all.clone() }, true),
            (Filter { app: some("shop"), ..all.clone() }, false),
            (Filter { key_prefix: some("order-1"), ..all.clone() }, true),
            (Filter { key_prefix: some(""), ..all.clone() }, true),
            (Filter { key_prefix: some("order-2"), ..all.clone() }, false),
            (Filter { header: header("tenant", "acme"), ..all.clone() }, true),
            (Filter { header: header("tenant", "acm"), ..all.clone() }, false),
            (Filter { header: header("region", "acme"), ..all.clone() }, false),
            (Filter { group: some("shop"), app: some("stock"), ..all.clone() }, false),
        ] {
            assert_eq!(filter.accepts(&timer()), accepts, "{filter:?}");
        }
        let without = Timer { key: None, ..timer() };
        assert!(!Filter { key_prefix: some(""), ..all }.accepts(&without), "any key is a key");
    }
}
