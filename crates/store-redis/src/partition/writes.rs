//! The writes of one turn, as the script `apply` takes them.
//!
//! Invariant: the writes are idempotent: they may be applied again, as they are, to data that they
//! were applied to before. So nothing in here adds to a number or appends to a list.

/// The arguments of one `apply`: keys and commands, without the numbers that say whose it is.
#[derive(Clone, Default, Debug)]
pub(crate) struct Writes {
    /// One for each command, and the indexes.
    keys: Vec<String>,
    /// The numbers of the indexes, which many commands name.
    indexes: Vec<usize>,
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

    pub(crate) const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of all arguments.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn get(&self, at: usize) -> &[u8] {
        let from = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[from..self.ends[at]]
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|at| self.get(at))
    }
}

/// Arguments of commands, `N` that stay together at a time, to be gathered by key.
#[derive(Debug)]
pub(crate) struct ByKey<K, const N: usize> {
    args: Arguments,
    /// With the number of the first argument.
    entries: Vec<(K, usize)>,
}

impl<K, const N: usize> Default for ByKey<K, N> {
    fn default() -> Self {
        Self { args: Arguments::default(), entries: Vec::new() }
    }
}

impl<K: Ord, const N: usize> ByKey<K, N> {
    /// Adds an entry: a key and its arguments. Returns the entry's number: how many came before it.
    pub(crate) fn push(&mut self, key: K, arguments: [&[u8]; N]) -> usize {
        self.entries.push((key, self.args.len()));
        self.args.extend(arguments);
        self.entries.len() - 1
    }

    pub(crate) const fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The arguments of each key, in the order in which they came; keys in their own order.
    pub(crate) fn groups(&mut self) -> impl Iterator<Item = (&K, impl ExactSizeIterator<Item = &[u8]>)> {
        self.entries.sort_unstable();
        let args = &self.args;
        let same = self.entries.chunk_by(|(one, _), (other, _)| one == other);
        same.map(move |some| (&some[0].0, (0..some.len() * N).map(move |n| args.get(some[n / N].1 + n % N))))
    }

    /// The numbers that [`Self::push`] returned, in the order of [`Self::groups`], which has to be
    /// called first: it sorts.
    pub(crate) fn order(&self) -> impl Iterator<Item = usize> {
        self.entries.iter().map(|(_, first)| first / N)
    }
}

/// Arguments of a command.
pub(crate) trait Args: IntoIterator<Item: AsRef<[u8]>, IntoIter: ExactSizeIterator> {}

impl<I: IntoIterator<Item: AsRef<[u8]>, IntoIter: ExactSizeIterator>> Args for I {}

/// Arguments of one Redis command at most: Lua's stack takes some thousands.
pub(super) const MAX_ARGUMENTS: usize = 1_000;

impl Writes {
    /// Adds a Redis command for a key, if it has arguments. With more than 1,000 of them it is
    /// repeated; `arity` of them stay together.
    pub(crate) fn command<I: Args>(&mut self, name: &str, key: &str, arity: usize, args: I) {
        let mut args = args.into_iter();
        if args.len() == 0 {
            return;
        }
        let key = self.key(key.to_owned());
        while args.len() > 0 {
            let most = MAX_ARGUMENTS / arity * arity;
            self.push(name, key, &[], args.by_ref().take(most));
        }
    }

    /// Adds a Redis command for each key.
    pub(crate) fn commands<K: Ord, const N: usize>(
        &mut self,
        name: &str,
        args: &mut ByKey<K, N>,
        key: impl Fn(&K) -> String,
    ) {
        args.groups().for_each(|(of, args)| self.command(name, &key(of), N, args));
    }

    /// Deletes fields of a hash; `member` leaves `index` if nothing is left. The number of the
    /// command, by which the script's answer names it. At most 1,000 fields.
    pub(crate) fn take_out<I: Args>(&mut self, hash: &str, index: &str, member: &str, ids: I) -> usize {
        self.take_out_by("TAKEOUT", hash, index, member, ids)
    }

    /// The same for the members of a sorted set.
    pub(crate) fn take_out_sorted<I: Args>(&mut self, set: &str, index: &str, member: &str, ids: I) -> usize {
        self.take_out_by("ZTAKEOUT", set, index, member, ids)
    }

    /// Deletes fields of a hash that have these values: field, value, ... At most 1,000 arguments.
    /// Returns the number of the command, by which the script's answer names it.
    pub(crate) fn free<I: Args>(&mut self, hash: &str, pairs: I) -> usize {
        self.command("FREE", hash, 2, pairs);
        self.commands
    }

    fn take_out_by<I: Args>(&mut self, name: &str, key: &str, index: &str, member: &str, ids: I) -> usize {
        let (key, index) = (self.key(key.to_owned()), self.index(index));
        self.push(name, key, &[index.to_string().as_bytes(), member.as_bytes()], ids.into_iter());
        self.commands
    }

    /// Says that the store holds more afterwards: such writes are refused while it is out of
    /// memory.
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
        self.args.bytes()
    }

    /// Memory that it occupies, in bytes, about.
    pub(crate) fn size(&self) -> usize {
        let keys: usize = self.keys.iter().map(|key| key.len() + 32).sum();
        size_of::<Self>() + keys + self.args.bytes() + self.args.len() * size_of::<usize>()
    }

    /// The number of a key in KEYS. The owner record is number 1.
    fn key(&mut self, key: String) -> usize {
        self.keys.push(key);
        self.keys.len() + 1
    }

    /// The number of an index.
    fn index(&mut self, key: &str) -> usize {
        let known = self.indexes.iter().find(|number| self.keys[**number - 2] == key);
        known.copied().unwrap_or_else(|| {
            let number = self.key(key.to_owned());
            self.indexes.push(number);
            number
        })
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
        let numbers =
            [("slot", "c"), ("other", "d")].map(|(slot, id)| writes.take_out(slot, "index", "name", [id]));
        assert_eq!(writes.keys(), ["slot", "slot", "index", "other"]);
        assert_eq!(numbers, [2, 3]);
        let expected = [
            ["4", "HSET", "2", "a", "1", "b", "2"].as_slice(),
            &["3", "TAKEOUT", "3", "4", "name", "c"],
            &["3", "TAKEOUT", "5", "4", "name", "d"],
        ]
        .concat();
        assert_eq!(texts(&writes), expected);
    }

    #[test]
    fn arguments_are_gathered_by_key_in_the_order_in_which_they_came() {
        let mut pairs = ByKey::<u8, 2>::default();
        for (key, pair) in [(2, [b"a", b"1"]), (1, [b"b", b"2"]), (2, [b"c", b"3"]), (1, [b"a", b"4"])] {
            pairs.push(key, pair.map(|argument| argument.as_slice()));
        }
        let groups: Vec<_> =
            pairs.groups().map(|(key, args)| (*key, args.collect::<Vec<_>>().concat())).collect();
        assert_eq!(groups, [(1, b"b2a4".to_vec()), (2, b"a1c3".to_vec())]);
        assert_eq!(pairs.order().collect::<Vec<_>>(), [1, 3, 0, 2]);
        assert!(ByKey::<u8, 1>::default().is_empty());
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
