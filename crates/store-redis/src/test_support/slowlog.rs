//! How long scripts ran, by the server's own measure.

use std::collections::BTreeMap;

use super::server::Server;
use crate::wire::Script;

/// Durations of one script in microseconds, sorted.
pub type Durations = BTreeMap<String, Vec<u64>>;

impl Server {
    /// Processor time the server's main thread has used, in microseconds.
    pub fn processor_micros(&self) -> u64 {
        let info: String = self.call(&["INFO", "cpu"]);
        let seconds = |name: &str| {
            let value = info.lines().find_map(|l| l.strip_prefix(name));
            value.and_then(|v| v.trim_start_matches(':').trim().parse::<f64>().ok()).unwrap_or_default()
        };
        ((seconds("used_cpu_user_main_thread") + seconds("used_cpu_sys_main_thread")) * 1e6) as u64
    }

    /// Commands carried out since the start, those within scripts too. Not those by which clients
    /// introduce themselves, as this one does: only servers from 7.2 on know them.
    pub fn commands(&self) -> u64 {
        let stats: String = self.call(&["INFO", "commandstats"]);
        let lines = stats.lines().filter(|line| !line.starts_with("cmdstat_client|setinfo:"));
        let calls = lines.filter_map(|line| line.split_once(":calls=")?.1.split(',').next());
        calls.filter_map(|calls| calls.parse::<u64>().ok()).sum()
    }

    /// How often a command was carried out since the start, within scripts too.
    pub fn calls_of(&self, command: &str) -> u64 {
        let (stats, name): (String, _) =
            (self.call(&["INFO", "commandstats"]), format!("cmdstat_{command}:calls="));
        let calls = stats.lines().find_map(|line| line.strip_prefix(&name)?.split(',').next()?.parse().ok());
        calls.unwrap_or_default()
    }

    /// Starts to note every command's duration.
    pub fn note_durations(&self) {
        self.call::<()>(&["CONFIG", "SET", "slowlog-max-len", "1000000"]);
        self.call::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
        self.call::<()>(&["SLOWLOG", "RESET"]);
    }

    /// The SHA-1 under which a script is called, by its file's name.
    pub fn script_sha(&self, name: &str) -> String {
        let script = Script::ALL.iter().find(|s| s.name() == name);
        script.map(|s| s.sha1().to_owned()).expect("a script of this name")
    }

    /// The noted durations, by script.
    pub fn durations(&self) -> Durations {
        self.call::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "-1"]);
        let entries: Vec<Vec<redis::Value>> = self.call(&["SLOWLOG", "GET", "-1"]);
        let mut found = Durations::new();
        for entry in entries {
            let (Some(redis::Value::Int(micros)), Some(redis::Value::Array(args))) =
                (entry.get(2), entry.get(3))
            else {
                continue;
            };
            let arg = |i: usize| match args.get(i) {
                Some(redis::Value::BulkString(text)) => String::from_utf8_lossy(text).into_owned(),
                _ => String::new(),
            };
            let script = Script::ALL.iter().find(|s| s.sha1() == arg(1));
            let name = script.map_or_else(|| arg(0).to_lowercase(), |s| format!("{}.lua", s.name()));
            found.entry(name).or_default().push(u64::try_from(*micros).unwrap_or(0));
        }
        found.values_mut().for_each(|d| d.sort_unstable());
        found
    }
}

/// Prints a table: how often, median, 99th percentile, longest.
pub fn print_durations(title: &str, durations: &Durations) {
    println!(
        "{title}: microseconds by the slowlog\n{:>24} {:>8} {:>8} {:>8} {:>8}",
        "script", "runs", "p50", "p99", "max"
    );
    for (name, d) in durations.iter().filter(|(name, _)| name.ends_with(".lua")) {
        let at = |q: usize| d[(d.len() - 1) * q / 100];
        println!("{name:>24} {:>8} {:>8} {:>8} {:>8}", d.len(), at(50), at(99), at(100));
    }
}
