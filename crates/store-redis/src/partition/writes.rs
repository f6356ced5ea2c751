//! The writes of one turn, as the script `apply` takes them.
//!
//! Invariant: what was built is idempotent: it may be applied again, as it is, to what it was applied to before. So
//! nothing in here adds to a number or appends to a list.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The arguments of one `apply`: keys and commands, without the numbers that say whose it is.
#[derive(Clone, Default, Debug)]
pub(crate) struct Writes {
    keys: Vec<String>,
    numbers: HashMap<String, usize>,
    args: Arguments,
    commands: usize,
    adds: bool,
}

/// Byte strings, one behind the other in one piece of memory.
#[derive(Clone, Default, Debug)]
pub(crate) struct Arguments {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Arguments {
    pub(crate) fn push(&mut self, argument: &[u8]) {
        self.bytes.extend_from_slice(argument);
        self.ends.push(self.bytes.len());
    }

    pub(crate) fn extend<const N: usize>(&mut self, arguments: [&[u8]; N]) {
        arguments.into_iter().for_each(|argument| self.push(argument));
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.ends.len()).map(|at| {
            let from = if at == 0 { 0 } else { self.ends[at - 1] };
            &self.bytes[from..self.ends[at]]
        })
    }
}

/// Arguments of one Redis command at most: Lua's stack takes some thousands.
const MAX_ARGUMENTS: usize = 1_000;

impl Writes {
    /// Adds a Redis command for a key. With more than 1,000 arguments it is repeated; `arity` of them stay together.
    pub(crate) fn command<I>(&mut self, name: &str, key: &str, arity: usize, args: I)
    where
        I: IntoIterator<Item: AsRef<[u8]>, IntoIter: ExactSizeIterator>,
    {
        let (key, mut args) = (self.key(key), args.into_iter());
        while args.len() > 0 {
            let most = MAX_ARGUMENTS / arity * arity;
            self.push(name, key, &[], args.by_ref().take(most));
        }
    }

    /// Deletes fields of a hash; `member` leaves `index` if nothing is left. The number of the command, by which the
    /// script's answer names it. At most 1,000 fields.
    pub(crate) fn take_out<A: AsRef<[u8]>>(
        &mut self,
        hash: &str,
        index: &str,
        member: &str,
        ids: &[A],
    ) -> usize {
        self.take_out_by("TAKEOUT", hash, index, member, ids)
    }

    /// The same for the members of a sorted set.
    pub(crate) fn take_out_sorted<A: AsRef<[u8]>>(
        &mut self,
        set: &str,
        index: &str,
        member: &str,
        ids: &[A],
    ) -> usize {
        self.take_out_by("ZTAKEOUT", set, index, member, ids)
    }

    fn take_out_by<A: AsRef<[u8]>>(
        &mut self,
        name: &str,
        key: &str,
        index: &str,
        member: &str,
        ids: &[A],
    ) -> usize {
        let (key, index) = (self.key(key), self.key(index));
        self.push(name, key, &[index.to_string().as_bytes(), member.as_bytes()], ids.iter());
        self.commands
    }

    /// Says that the store holds more afterwards: such writes are refused while it is out of memory.
    pub(crate) const fn set_adds(&mut self) {
        self.adds = true;
    }

    /// Whether the store holds more afterwards.
    pub(crate) const fn adds(&self) -> bool {
        self.adds
    }

    /// Whether there is nothing to write.
    pub(crate) const fn is_empty(&self) -> bool {
        self.commands == 0
    }

    /// The keys, without the owner record.
    pub(crate) fn keys(&self) -> &[String] {
        &self.keys
    }

    /// The arguments behind the four numbers.
    pub(crate) fn args(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.args.iter()
    }

    /// Bytes of the arguments.
    pub(crate) const fn bytes(&self) -> usize {
        self.args.bytes.len()
    }

    /// What it takes to keep it, in bytes, about.
    pub(crate) fn size(&self) -> usize {
        let keys: usize = self.keys.iter().map(|key| 2 * key.len() + 64).sum();
        size_of::<Self>() + keys + self.args.bytes.len() + self.args.ends.len() * size_of::<usize>()
    }

    /// The number of a key in KEYS. The owner record is number 1.
    fn key(&mut self, key: &str) -> usize {
        match self.numbers.entry(key.to_owned()) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                self.keys.push(key.to_owned());
                *new.insert(self.keys.len() + 1)
            }
        }
    }

    fn push<A, I>(&mut self, name: &str, key: usize, before: &[&[u8]], args: I)
    where
        A: AsRef<[u8]>,
        I: ExactSizeIterator<Item = A>,
    {
        self.commands += 1;
        self.args.push((before.len() + args.len()).to_string().as_bytes());
        self.args.push(name.as_bytes());
        self.args.push(key.to_string().as_bytes());
        before.iter().for_each(|argument| self.args.push(argument));
        args.for_each(|argument| self.args.push(argument.as_ref()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(writes: &Writes) -> Vec<&str> {
        writes.args().map(|argument| std::str::from_utf8(argument).unwrap()).collect()
    }

    #[test]
    fn a_command_names_its_key_by_number() {
        let mut writes = Writes::default();
        writes.command("HSET", "slot", 2, &["a", "1", "b", "2"]);
        let number = writes.take_out("slot", "index", "name", &["c"]);
        assert_eq!(writes.keys(), ["slot", "index"]);
        assert_eq!(number, 2);
        let expected = ["4", "HSET", "2", "a", "1", "b", "2", "3", "TAKEOUT", "2", "3", "name", "c"];
        assert_eq!(texts(&writes), expected);
    }

    #[test]
    fn a_long_command_is_cut_between_pairs() {
        let mut writes = Writes::default();
        writes.command("HSET", "slot", 2, &vec!["x"; 2_500]);
        assert_eq!(texts(&writes).iter().filter(|text| **text == "HSET").count(), 3);
        assert_eq!(texts(&writes)[0], "1000");
        let mut writes = Writes::default();
        writes.command("ZADD", "z", 3, &vec!["x"; 1_500]);
        assert_eq!(texts(&writes)[0], "999");
    }
}
