//! Addresses of Redis without what is secret in them.

use redis::IntoConnectionInfo;

/// How to write the characters that end a user, a password or an address: a literal, for `concat!`.
macro_rules! encoding {
    () => {
        "write @ / ? # , % in a user or password as %40 %2F %3F %23 %2C %25"
    };
}
pub(crate) use encoding;

/// An address of Redis with `***` in place of its password, which is in front of the last `@`, or
/// the value of `pass` in the query of a Unix socket's address. Text that is no address is not
/// shown: it may be part of one that was split at a comma in its password.
pub fn without_password(url: &str) -> String {
    let hide = |part: &str| if part.starts_with("pass=") { "pass=***".to_owned() } else { part.to_owned() };
    let url = match without_login(url) {
        Some(url) => url,
        None if url.replacen("-sentinel://", "://", 1).into_connection_info().is_ok() => url.to_owned(),
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
            ("redis://u:s3", "***"),
            ("cret@h", "***"),
        ];
        for (url, shown) in all {
            assert_eq!(without_password(url), shown);
        }
    }
}
