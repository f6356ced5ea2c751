//! The permissions of one token.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use mtimer_types::{Destination, Verb};

use crate::grant::{Grant, Pattern, Verbs};
use crate::limits::Limits;

/// The owner of a session, with its permissions.
///
/// A check is a look-up or two in hash maps and allocates nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Principal {
    id: Arc<str>,
    everywhere: Verbs,
    groups: HashMap<Box<str>, Verbs>,
    destinations: HashMap<Destination, Verbs>,
    /// The verbs that are granted on any destination.
    somewhere: Verbs,
    limits: Limits,
}

impl Principal {
    /// Makes a principal of its grants.
    pub fn new(id: &str, grants: &[Grant]) -> Self {
        let mut principal = Self {
            id: id.into(),
            everywhere: Verbs::NONE,
            groups: HashMap::new(),
            destinations: HashMap::new(),
            somewhere: Verbs::NONE,
            limits: Limits::default(),
        };
        for grant in grants {
            let verbs: Verbs = grant.verbs.iter().copied().collect();
            for pattern in &grant.on {
                let place = match pattern {
                    Pattern::All => &mut principal.everywhere,
                    Pattern::Group(group) => principal.groups.entry(group.clone()).or_default(),
                    Pattern::One(dest) => principal.destinations.entry(dest.clone()).or_default(),
                };
                *place = place.union(verbs);
                principal.somewhere = principal.somewhere.union(verbs);
            }
        }
        principal
    }

    /// The same with limits.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Returns how much it may do at one broker.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the id of its token, for logs: it is no secret.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the same, shared.
    pub fn shared_id(&self) -> Arc<str> {
        self.id.clone()
    }

    /// Says whether it may do something to a destination.
    pub fn allows(&self, verb: Verb, dest: &Destination) -> bool {
        self.everywhere.contains(verb)
            || self.groups.get(dest.group()).is_some_and(|verbs| verbs.contains(verb))
            || self.destinations.get(dest).is_some_and(|verbs| verbs.contains(verb))
    }

    /// Says whether it may do something to every destination, and without a destination.
    pub fn allows_everywhere(&self, verb: Verb) -> bool {
        self.everywhere.contains(verb)
    }

    /// Says whether it may do something to every app of a group.
    pub fn allows_group(&self, verb: Verb, group: &str) -> bool {
        self.everywhere.contains(verb) || self.groups.get(group).is_some_and(|verbs| verbs.contains(verb))
    }

    /// Says whether it may do something to every destination of a pattern.
    pub fn allows_all(&self, verb: Verb, of: &Pattern) -> bool {
        match of {
            Pattern::All => self.allows_everywhere(verb),
            Pattern::Group(group) => self.allows_group(verb, group),
            Pattern::One(dest) => self.allows(verb, dest),
        }
    }

    /// Says whether it may do something to any destination at all.
    pub fn allows_somewhere(&self, verb: Verb) -> bool {
        self.somewhere.contains(verb)
    }

    /// Adds up the counts of the destinations on which a verb is granted, each once.
    pub fn sum_over(
        &self,
        verb: Verb,
        all: impl Fn() -> u64,
        group: impl Fn(&str) -> u64,
        one: impl Fn(&Destination) -> u64,
    ) -> u64 {
        if self.everywhere.contains(verb) {
            return all();
        }
        let is_granted = |verbs: &Verbs| verbs.contains(verb);
        let groups = self.groups.iter().filter(|(_, verbs)| is_granted(verbs)).map(|(name, _)| group(name));
        let apart = |dest: &Destination| !self.groups.get(dest.group()).is_some_and(is_granted);
        let ones = self.destinations.iter().filter(|(dest, verbs)| is_granted(verbs) && apart(dest));
        groups.chain(ones.map(|(dest, _)| one(dest))).fold(0, u64::saturating_add)
    }

    /// Says whether everything that `other` may do with this verb is allowed here, too.
    pub fn covers(&self, other: &Self, verb: Verb) -> bool {
        let granted = |verbs: &Verbs| verbs.contains(verb);
        (self.everywhere.contains(verb) || !other.everywhere.contains(verb))
            && other.groups.iter().all(|(group, verbs)| !granted(verbs) || self.allows_group(verb, group))
            && other.destinations.iter().all(|(dest, verbs)| !granted(verbs) || self.allows(verb, dest))
    }
}

/// Why something is refused, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Denied {
    /// The token.
    pub token: Arc<str>,
    /// The missing verb.
    pub verb: Verb,
    /// The destination or pattern.
    pub on: String,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token, verb, on } = self;
        // A request without a destination needs the verb on all of them.
        let pattern = if on.contains('/') { on } else { "*" };
        let grant = shell_quoted(&format!("{verb}:{pattern}"));
        write!(
            f,
            "token {token} may not {verb} on {on}: grant it where the tokens file is, with `mtimer token grant --file \
             tokens.toml {token} --grant {grant}`"
        )
    }
}

impl std::error::Error for Denied {}

/// A word of a command as a shell reads it.
fn shell_quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(grants: &[&str]) -> Principal {
        let grants: Vec<Grant> = grants.iter().map(|grant| grant.parse().unwrap()).collect();
        Principal::new("t", &grants)
    }

    fn dest(group: &str, app: &str) -> Destination {
        Destination::new(group, app).unwrap()
    }

    #[test]
    fn nothing_is_allowed_that_is_not_granted() {
        let p = principal(&["schedule,read:shop/*", "cancel:shop/orders", "operate:*"]);
        let orders = dest("shop", "orders");
        let mails = dest("shop", "mails");
        let bank = dest("bank", "orders");
        let allowed = |verb| [&orders, &mails, &bank].map(|dest| p.allows(verb, dest));
        assert_eq!(allowed(Verb::Schedule), [true, true, false]);
        assert_eq!(allowed(Verb::Cancel), [true, false, false]);
        assert_eq!(allowed(Verb::Operate), [true, true, true]);
        assert_eq!(allowed(Verb::Register), [false, false, false]);
        assert!(p.allows_everywhere(Verb::Operate) && !p.allows_everywhere(Verb::Read));
        assert!(p.allows_group(Verb::Read, "shop") && !p.allows_group(Verb::Cancel, "shop"));
        assert!(p.allows_somewhere(Verb::Cancel) && !p.allows_somewhere(Verb::Broker));
        // A group that begins with another one's name is another group.
        assert!(!p.allows(Verb::Read, &dest("shop/x", "a")) && !p.allows(Verb::Read, &dest("sho", "p")));
    }

    #[test]
    fn what_is_granted_twice_is_counted_once() {
        let sum = |grants: &[&str]| {
            principal(grants).sum_over(Verb::Schedule, || 1_000, |group| 100 * group.len() as u64, |_| 1)
        };
        assert_eq!(sum(&["schedule:a/*", "schedule:a/x,b/x,b/y", "read:c/*"]), 102);
        assert_eq!(sum(&["schedule:*", "schedule:a/*"]), 1_000);
        assert_eq!(sum(&["read:*"]), 0);
    }

    #[test]
    fn what_was_taken_away_is_noticed() {
        let before = principal(&["register:shop/*", "read:*"]);
        for (grants, covers) in [
            (&["register:*"][..], true),
            (&["register:shop/*", "schedule:*"], true),
            (&["register:shop/orders"], false),
            (&["read:*"], false),
        ] {
            assert_eq!(principal(grants).covers(&before, Verb::Register), covers, "{grants:?}");
        }
    }
}
