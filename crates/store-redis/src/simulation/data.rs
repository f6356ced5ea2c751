//! The data of a simulated Redis, and the commands that the store uses.
//!
//! Written from the commands' documentation and from the Lua scripts, not from the store's code. A
//! command or an argument that is not in here panics: a test must not pass because of something
//! that Redis would not do.

use std::collections::{BTreeMap, HashMap};

use redis::Value;

/// A sequence of arguments.
pub(crate) type Args<'a> = &'a [Vec<u8>];

/// All keys. Cloning it is taking a snapshot.
#[derive(Clone, Default, Debug, PartialEq)]
pub(crate) struct Data {
    hashes: HashMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>>,
    sorted: HashMap<Vec<u8>, BTreeMap<Vec<u8>, u64>>,
    /// Unix time in ms at which a key goes.
    expires: HashMap<Vec<u8>, u64>,
    /// The server's clock, ms, when [`Self::expire`] was last called.
    now: u64,
}

/// Commands that a running script may still run before it is cut off; `None`: all.
pub(crate) type Fuel = Option<usize>;

/// A script was cut off half way: its writes so far stay.
pub(crate) struct Torn;

fn text(argument: &[u8]) -> &str {
    std::str::from_utf8(argument).unwrap()
}

fn int(argument: &[u8]) -> u64 {
    text(argument).parse().unwrap()
}

fn bulk(bytes: impl Into<Vec<u8>>) -> Value {
    Value::BulkString(bytes.into())
}

impl Data {
    /// Runs one command.
    pub(crate) fn run(&mut self, command: Args<'_>) -> Value {
        let (name, rest) = command.split_first().unwrap();
        match (text(name).to_ascii_uppercase().as_str(), rest) {
            ("HSET", [key, pairs @ ..]) => {
                assert!(!pairs.is_empty() && pairs.len() % 2 == 0, "HSET with {} arguments", pairs.len());
                let hash = self.hashes.entry(key.clone()).or_default();
                let new = |pair: &&[Vec<u8>]| !hash.contains_key(&pair[0]);
                let added = pairs.chunks(2).filter(new).count();
                pairs.chunks(2).for_each(|pair| _ = hash.insert(pair[0].clone(), pair[1].clone()));
                Value::Int(added as i64)
            }
            ("HGET", [key, field]) => self.field(key, field),
            ("HMGET", [key, fields @ ..]) => {
                assert!(!fields.is_empty());
                // HMGET with a list as one argument is several arguments on the wire.
                Value::Array(fields.iter().map(|field| self.field(key, field)).collect())
            }
            ("HGETALL", [key]) => {
                let hash = self.hashes.get(key).into_iter().flatten();
                Value::Array(hash.flat_map(|(k, v)| [bulk(k.clone()), bulk(v.clone())]).collect())
            }
            ("HKEYS", [key]) => {
                let hash = self.hashes.get(key).into_iter().flatten();
                Value::Array(hash.map(|(k, _)| bulk(k.clone())).collect())
            }
            ("HLEN", [key]) => Value::Int(self.hashes.get(key).map_or(0, BTreeMap::len) as i64),
            ("HSTRLEN", [key, field]) => {
                let value = self.hashes.get(key).and_then(|hash| hash.get(field));
                Value::Int(value.map_or(0, Vec::len) as i64)
            }
            ("HDEL", [key, fields @ ..]) => {
                let Some(hash) = self.hashes.get_mut(key) else { return Value::Int(0) };
                let removed = fields.iter().filter(|field| hash.remove(*field).is_some()).count();
                if hash.is_empty() {
                    self.hashes.remove(key);
                    self.expires.remove(key);
                }
                Value::Int(removed as i64)
            }
            ("ZADD", [key, pairs @ ..]) => {
                assert!(!pairs.is_empty() && pairs.len() % 2 == 0, "ZADD with {} arguments", pairs.len());
                let set = self.sorted.entry(key.clone()).or_default();
                pairs.chunks(2).for_each(|pair| _ = set.insert(pair[1].clone(), int(&pair[0])));
                Value::Int(0)
            }
            ("ZREM", [key, members @ ..]) => {
                let Some(set) = self.sorted.get_mut(key) else { return Value::Int(0) };
                let removed = members.iter().filter(|member| set.remove(*member).is_some()).count();
                if set.is_empty() {
                    self.sorted.remove(key);
                }
                Value::Int(removed as i64)
            }
            ("ZCARD", [key]) => Value::Int(self.sorted.get(key).map_or(0, BTreeMap::len) as i64),
            ("ZSCORE", [key, member]) => {
                let score = self.sorted.get(key).and_then(|set| set.get(member));
                score.map_or(Value::Nil, |score| bulk(score.to_string()))
            }
            ("ZRANGE", [key, from, to, options @ ..]) => self.range(key, from, to, options),
            ("PEXPIRE", [key, ms]) => {
                let exists = self.hashes.contains_key(key);
                if exists {
                    self.expires.insert(key.clone(), self.now + int(ms));
                }
                Value::Int(exists.into())
            }
            (name, _) => panic!("{name} with {} arguments is not simulated", rest.len()),
        }
    }

    /// Removes expired keys.
    pub(crate) fn expire(&mut self, now: u64) {
        self.now = now;
        let gone: Vec<_> =
            self.expires.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        for key in gone {
            self.expires.remove(&key);
            self.hashes.remove(&key);
        }
    }

    /// The server loses a hash.
    pub(crate) fn remove(&mut self, key: &[u8]) {
        assert!(self.hashes.remove(key).is_some());
    }

    /// All keys of hashes and sorted sets.
    pub(crate) fn keys(&self) -> Vec<String> {
        let keys = self.hashes.keys().chain(self.sorted.keys());
        keys.map(|key| text(key).to_owned()).collect()
    }

    fn field(&self, key: &[u8], field: &[u8]) -> Value {
        self.hashes.get(key).and_then(|hash| hash.get(field)).map_or(Value::Nil, |value| bulk(value.clone()))
    }

    fn range(&self, key: &[u8], from: &[u8], to: &[u8], options: Args<'_>) -> Value {
        let mut members: Vec<_> = self.sorted.get(key).into_iter().flatten().collect();
        members.sort_by_key(|(member, score)| (**score, (*member).clone()));
        let mut options = options.iter().map(|option| text(option).to_ascii_uppercase());
        let (mut by_score, mut limit, mut scores) = (false, None, false);
        while let Some(option) = options.next() {
            match option.as_str() {
                "BYSCORE" => by_score = true,
                "WITHSCORES" => scores = true,
                "LIMIT" => {
                    let mut n = || options.next().unwrap().parse::<usize>().unwrap();
                    limit = Some((n(), n()));
                }
                other => panic!("ZRANGE {other} is not simulated"),
            }
        }
        let found: Vec<_> = if by_score {
            let low = text(from).replace("-inf", "0").parse::<u64>().unwrap();
            let high = if text(to) == "+inf" { u64::MAX } else { int(to) };
            members.into_iter().filter(|(_, score)| (low..=high).contains(*score)).collect()
        } else {
            let length = members.len() as i64;
            let at = |argument: &[u8]| {
                let n: i64 = text(argument).parse().unwrap();
                if n < 0 { (length + n).max(-1) } else { n }
            };
            let (from, to) = (at(from).max(0), at(to).min(length - 1));
            let indices = (from..=to).map(|i| i as usize);
            indices.map(|i| members[i]).collect()
        };
        let (skip, take) = limit.unwrap_or((0, usize::MAX));
        let found = found.into_iter().skip(skip).take(take);
        let row = |(member, score): (&Vec<u8>, &u64)| {
            let score = scores.then(|| bulk(score.to_string()));
            std::iter::once(bulk(member.clone())).chain(score)
        };
        Value::Array(found.flat_map(row).collect())
    }

    /// `lua/apply.lua`. `fuel` is how many commands run before the script is cut off.
    pub(crate) fn apply(&mut self, keys: Args<'_>, argv: Args<'_>, mut fuel: Fuel) -> Result<Value, Torn> {
        let fields: Vec<_> = ["e", "n", "s"].map(|f| self.field(&keys[0], f.as_bytes())).into();
        let expected: Vec<_> = argv[..3].iter().map(|argument| bulk(argument.clone())).collect();
        if fields != expected {
            let stored = fields.into_iter().map(|v| if v == Value::Nil { bulk("0") } else { v });
            return Ok(Value::Array(std::iter::once(bulk("SEQ")).chain(stored).collect()));
        }
        let burn = |fuel: &mut Fuel| match fuel {
            Some(0) => Err(Torn),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        };
        let (mut answer, mut rest, mut number) = (vec![bulk("OK")], &argv[4..], 0);
        while let [count, name, key, more @ ..] = rest {
            let (args, behind) = more.split_at(int(count) as usize);
            (rest, number) = (behind, number + 1);
            let key = &keys[int(key) as usize - 1];
            burn(&mut fuel)?;
            match text(name) {
                kind @ ("TAKEOUT" | "ZTAKEOUT") => {
                    let [index, member, ids @ ..] = args else { panic!("{kind} without its index") };
                    let (length, remove) =
                        if kind == "TAKEOUT" { ("HLEN", "HDEL") } else { ("ZCARD", "ZREM") };
                    let before = self.call(length, key, &[]);
                    let removed = self.call(remove, key, ids);
                    burn(&mut fuel)?;
                    if removed == before {
                        self.call("ZREM", &keys[int(index) as usize - 1], std::slice::from_ref(member));
                    }
                    answer.extend([number, removed, before - removed].map(Value::Int));
                }
                "FREE" => {
                    let has = |pair: &&[Vec<u8>]| self.field(key, &pair[0]) == bulk(pair[1].clone());
                    let mut stale: Vec<_> = args.chunks(2).filter(has).map(|pair| pair[0].clone()).collect();
                    let before = self.call("HLEN", key, &[]);
                    if stale.len() as i64 == before - 1 {
                        stale.push(Vec::new());
                    }
                    let removed = if stale.is_empty() { 0 } else { self.call("HDEL", key, &stale) };
                    answer.extend([number, removed, before - removed].map(Value::Int));
                }
                name => _ = self.call(name, key, args),
            }
        }
        burn(&mut fuel)?;
        if argv[2] != argv[3] {
            self.call("HSET", &keys[0], &[b"s".to_vec(), argv[3].clone()]);
        }
        Ok(Value::Array(answer))
    }

    /// `lua/touch.lua`. Also whether it has written, which it does even if that changes nothing.
    pub(crate) fn touch(&mut self, key: &[u8], argv: Args<'_>) -> (Value, bool) {
        let fields: Vec<_> = ["e", "n", "s"].map(|f| self.field(key, f.as_bytes())).into();
        let is_ours = fields[..2] == [bulk(argv[0].clone()), bulk(argv[1].clone())];
        let has_written = is_ours && fields[2] != Value::Nil;
        (Value::Array(fields), has_written)
    }

    /// `lua/acquire.lua`, at `now` (ms).
    pub(crate) fn acquire(&mut self, key: &[u8], argv: Args<'_>, now: u64) -> Value {
        let read = |data: &Self, field: &str| match data.field(key, field.as_bytes()) {
            Value::BulkString(bytes) => Some(bytes),
            _ => None,
        };
        let or = |value: Option<Vec<u8>>, other: &str| value.unwrap_or_else(|| other.into());
        let (epoch, claimed) = (or(read(self, "e"), "0"), or(read(self, "c"), "0"));
        let (in_flight, order) = (or(read(self, "f"), ""), or(read(self, "o"), "0"));
        if read(self, "n").as_deref() == Some(&argv[1][..]) {
            let (prior, seq) = (or(read(self, "p"), "0"), or(read(self, "s"), "0"));
            return Value::Array(vec![
                bulk("OK"),
                bulk(epoch),
                bulk(prior),
                bulk(seq),
                bulk(in_flight),
                bulk(order),
            ]);
        }
        if epoch != argv[0] {
            return Value::Array(vec![bulk("EPOCH"), bulk(epoch)]);
        }
        let (term, version) = (or(read(self, "t"), "0"), or(read(self, "v"), "0"));
        if (int(&argv[2]), int(&argv[3])) <= (int(&term), int(&version)) {
            return Value::Array(vec![bulk("ASSIGNMENT"), bulk(term), bulk(version)]);
        }
        let new = (int(&epoch) + 1).max(int(&argv[4]) + 1).max(now).to_string();
        let fields = [("e", &new[..]), ("s", "0")].map(|(k, v)| [k.as_bytes().to_vec(), v.into()]);
        let copied = [("n", 1), ("t", 2), ("v", 3)].map(|(k, i)| [k.as_bytes().to_vec(), argv[i].clone()]);
        let claims = ["c", "p"].map(|k| [k.as_bytes().to_vec(), claimed.clone()]);
        let before = [("pe", epoch), ("ps", or(read(self, "s"), "0"))];
        let before = before.map(|(k, v)| [k.as_bytes().to_vec(), v]);
        let all: Vec<_> = fields.into_iter().chain(copied).chain(claims).chain(before).flatten().collect();
        self.call("HSET", key, &all);
        self.call("HDEL", key, &[b"r".to_vec()]);
        Value::Array(vec![bulk("OK"), bulk(new), bulk(claimed), bulk("0"), bulk(in_flight), bulk(order)])
    }

    fn call(&mut self, name: &str, key: &[u8], args: Args<'_>) -> i64 {
        let command: Vec<_> =
            [name.as_bytes(), key].map(<[u8]>::to_vec).into_iter().chain(args.iter().cloned()).collect();
        match self.run(&command) {
            Value::Int(n) => n,
            _ => 0,
        }
    }
}
