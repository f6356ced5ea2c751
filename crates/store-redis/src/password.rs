//! How passwords are written in addresses.

/// How to write the characters that end a user, a password or an address: a literal, for `concat!`.
macro_rules! encoding {
    () => {
        "write @ / ? # , % in a user or password as %40 %2F %3F %23 %2C %25"
    };
}
pub(crate) use encoding;

#[cfg(test)]
mod tests {
    use mtimer_store::without_password;
    use redis::IntoConnectionInfo;

    #[test]
    fn what_redis_takes_for_no_address_is_not_shown() {
        let texts = [
            "redis://h:1",
            "redis://h",
            "redis://h/2",
            "redis://[::1]:1",
            "rediss://h:1/#insecure",
            "valkeys://h:1?protocol=resp3",
            "unix:///run/r.sock",
            "redis+unix:///run/r.sock",
            "redis://u:s3",
            "redis://u:3/s3",
            "redis://u:70000",
            "redis://",
            "redis:s3",
            "http://h:1",
            "cret@h:1",
            "s3",
            "",
        ];
        for text in texts {
            let is_address = text.into_connection_info().is_ok();
            assert_eq!(without_password(text), if is_address { text } else { "***" });
        }
    }
}
