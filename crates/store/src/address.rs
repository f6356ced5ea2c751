//! Addresses of stores without their secrets.

/// Schemes of addresses that name a host, and of those that name a socket.
const OF_HOSTS: [&str; 4] = ["redis", "rediss", "valkey", "valkeys"];
const OF_SOCKETS: [&str; 3] = ["unix", "redis+unix", "valkey+unix"];

/// An address of Redis with `***` in place of its password, which is in front of the last `@`, or
/// the value of `pass` in the query of a Unix socket's address. Text that is no address is not
/// shown: it may be part of one that was split at a comma in its password.
pub fn without_password(url: &str) -> String {
    let hide = |part: &str| if part.starts_with("pass=") { "pass=***".to_owned() } else { part.to_owned() };
    let url = match without_login(url) {
        Some(url) => url,
        None if is_address(url) => url.to_owned(),
        None => return "***".to_owned(),
    };
    let Some((address, query)) = url.split_once('?') else { return url };
    format!("{address}?{}", query.split('&').map(hide).collect::<Vec<_>>().join("&"))
}

/// The same of the password in front of the last `@`; `None` if there is none. A password that is
/// not percent-encoded may have `@`, `?` and `/` in it, a path of a Unix socket may, too.
fn without_login(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://").filter(|(scheme, _)| !scheme.ends_with("unix"))?;
    let (login, host) = rest.rsplit_once('@')?;
    let (user, _) = login.split_once(':')?;
    Some(format!("{scheme}://{user}:***@{host}"))
}

/// Whether this is the whole address of a server, in which nobody has a password.
fn is_address(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    if OF_SOCKETS.contains(&scheme) {
        return true;
    }
    let Some(rest) = rest.strip_prefix("//") else { return false };
    if !OF_HOSTS.contains(&scheme.strip_suffix("-sentinel").unwrap_or(scheme)) {
        return false;
    }
    let (rest, _) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, _) = rest.split_once('?').unwrap_or((rest, ""));
    let (host, database) = rest.split_once('/').unwrap_or((rest, ""));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (host, "0"),
    };
    let is_name = |c: char| c.is_alphanumeric() || "-._[]:%".contains(c);
    !name.is_empty()
        && name.chars().all(is_name)
        && port.parse::<u16>().is_ok()
        && database.chars().all(|c| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let all = [
            ("redis://h:1", "redis://h:1"),
            ("redis://u@h", "redis://u@h"),
            ("redis://@h", "redis://@h"),
            ("redis://h:1/2?protocol=resp3", "redis://h:1/2?protocol=resp3"),
            ("redis://:s3cret@h:1/2", "redis://:***@h:1/2"),
            ("redis://u:@h", "redis://u:***@h"),
            ("redis://u:%3Fs3%40cret%2F@h", "redis://u:***@h"),
            ("redis://u:s3%3Fpass=x%40@[::1]:1", "redis://u:***@[::1]:1"),
            ("rediss://u:s3@cret:x@h:1?protocol=resp3", "rediss://u:***@h:1?protocol=resp3"),
            ("rediss://u:a@b@c@h/#insecure", "rediss://u:***@h/#insecure"),
            ("redis://u:pa?ss@h", "redis://u:***@h"),
            ("redis://u:pa?ss@h?protocol=resp3", "redis://u:***@h?protocol=resp3"),
            ("redis://u:pa/ss#x@h/2", "redis://u:***@h/2"),
            ("redis://u:p?pass=x&y@h", "redis://u:***@h"),
            ("redis://h?pass=s3@cret", "redis://h?pass=***"),
            ("valkeys://u:s3cret@h", "valkeys://u:***@h"),
            ("unix:///run/r.sock", "unix:///run/r.sock"),
            ("unix:/run/r.sock?pass=s3cret", "unix:/run/r.sock?pass=***"),
            ("unix:///run/r.sock?user=u&pass=s3cret&db=1", "unix:///run/r.sock?user=u&pass=***&db=1"),
            ("unix:///run/r.sock?pass=s3@cret:x@y&db=1", "unix:///run/r.sock?pass=***&db=1"),
            ("unix:///run/a:b@c.sock?pass=s3?cret", "unix:///run/a:b@c.sock?pass=***"),
            ("redis+unix:///run/r.sock?pass=%26s3cret", "redis+unix:///run/r.sock?pass=***"),
            ("redis-sentinel://h?master=shop", "redis-sentinel://h?master=shop"),
            ("rediss-sentinel://u:s3cret@h?master=shop", "rediss-sentinel://u:***@h?master=shop"),
            ("redis://[::1]", "redis://[::1]"),
            ("redis://u:s3", "***"),
            ("redis://u:3/s3", "***"),
            ("redis://u:70000", "***"),
            ("http://h:1", "***"),
            ("redis:s3", "***"),
            ("cret@h", "***"),
        ];
        for (url, shown) in all {
            assert_eq!(without_password(url), shown);
        }
    }
}
