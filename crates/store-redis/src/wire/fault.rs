//! One table of the remedies for everything that Redis can say instead of an answer.
//!
//! A pure function from an error's text to a remedy. Not in here: applying it.

/// The remedy for an error reply. The script has changed nothing, except perhaps with
/// [`Remedy::Wait`] (a hash slot that is being migrated cuts scripts off) and [`Remedy::Broken`]
/// (one of its commands has failed): then its first writes are kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Remedy {
    /// MOVED: the hash slot belongs to that node now.
    Follow(String),
    /// ASK: try that node with ASKING, for as long as the migration lasts.
    Ask(String),
    /// It passes: wait a little and send again.
    Wait,
    /// This node is no master (any more), or cannot serve as one for now: look where the master is,
    /// and ask others.
    Rediscover,
    /// NOSCRIPT: load the scripts and send again.
    LoadScripts,
    /// OOM: operations that add are refused, everything else is let through by its flags.
    OutOfMemory,
    /// This node takes no writes for now: operations that add are refused, everything else waits.
    /// Another may have taken its place.
    NoWrites,
    /// Nothing that waiting could mend.
    Broken,
}

/// The table. `asked` is the address of the node that said it: a redirection without a host means
/// the same host.
pub(crate) fn remedy(error: &str, asked: &str) -> Remedy {
    let mut words = error.split(' ');
    let code = words.next().unwrap_or_default();
    match code {
        "MOVED" | "ASK" => match words.nth(1).filter(|a| a.contains(':')) {
            Some(address) if code == "MOVED" => Remedy::Follow(with_host(address, asked)),
            Some(address) => Remedy::Ask(with_host(address, asked)),
            None => Remedy::Wait,
        },
        // A multi-key script while its hash slot migrates; a foreign script that runs too long.
        "TRYAGAIN" | "BUSY" => Remedy::Wait,
        // An operator has ended a script that runs too long (SCRIPT KILL), which Redis allows of
        // one that has written nothing.
        "ERR" if error.starts_with("ERR Script killed by user") => Remedy::Wait,
        // A script is cut off, as it has emptied a key of a hash slot that is being migrated and
        // comes back to it.
        "ERR" if error.starts_with("ERR Script attempted to access a non local key") => Remedy::Wait,
        // A replica; one that has lost its master; a node that reads its data; one that knows of no
        // quorum. Of the last two another may have taken the place meanwhile.
        "READONLY" | "MASTERDOWN" | "LOADING" | "CLUSTERDOWN" => Remedy::Rediscover,
        "NOSCRIPT" => Remedy::LoadScripts,
        "OOM" => Remedy::OutOfMemory,
        // Snapshots fail; too few replicas are connected.
        "MISCONF" | "NOREPLICAS" => Remedy::NoWrites,
        _ => Remedy::Broken,
    }
}

/// As much of an error as is told: a script's may be long.
pub(crate) fn shown(error: &str) -> String {
    error.chars().take(200).collect()
}

/// `host:port`; a missing host is the one that was asked.
pub(crate) fn with_host(address: &str, asked: &str) -> String {
    match address.rsplit_once(':') {
        Some(("" | "?", port)) => {
            let host = asked.rsplit_once(':').map_or(asked, |(host, _)| host);
            format!("{host}:{port}")
        }
        _ => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_its_remedy() {
        let of = |e| remedy(e, "10.0.0.1:7000");
        assert_eq!(of("MOVED 866 127.0.0.1:7001"), Remedy::Follow("127.0.0.1:7001".into()));
        assert_eq!(of("MOVED 866 :7001"), Remedy::Follow("10.0.0.1:7001".into()));
        assert_eq!(of("ASK 866 127.0.0.1:7002"), Remedy::Ask("127.0.0.1:7002".into()));
        for passing in ["TRYAGAIN Multiple keys", "BUSY Redis"] {
            assert_eq!(of(passing), Remedy::Wait);
        }
        for elsewhere in ["LOADING Redis is", "CLUSTERDOWN The", "MASTERDOWN Link"] {
            assert_eq!(of(elsewhere), Remedy::Rediscover);
        }
        // As Redis 7.0 says it.
        let killed = "ERR Script killed by user with SCRIPT KILL... script: 694a5fe1, on @user_script:1.";
        assert_eq!(of(killed), Remedy::Wait);
        let cut_off = "ERR Script attempted to access a non local key in a cluster node script: a2b9d30b, on @user_script:2.";
        assert_eq!(of(cut_off), Remedy::Wait);
        assert_eq!(of("READONLY You can't write against a read only replica."), Remedy::Rediscover);
        assert_eq!(of("NOSCRIPT No matching script."), Remedy::LoadScripts);
        assert_eq!(of("OOM allow-oom flag is not set on the script"), Remedy::OutOfMemory);
        assert_eq!(of("MISCONF Redis is configured to save RDB snapshots"), Remedy::NoWrites);
        assert_eq!(of("NOREPLICAS Not enough good replicas to write."), Remedy::NoWrites);
        for lasting in [
            "NOAUTH Authentication required.",
            "WRONGTYPE Operation",
            "ERR user_script:3: boo",
            "ERR user_script:3: Script killed by user",
            "",
            "NOPERM no",
        ] {
            assert_eq!(of(lasting), Remedy::Broken, "{lasting}");
        }
    }
}
