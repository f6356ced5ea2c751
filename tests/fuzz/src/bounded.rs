//! Bounds of memory.

/// Runs `decode` and checks that it holds at most `least + per_byte * input` bytes at any time.
pub(crate) fn bounded<T>(input: &[u8], least: u64, per_byte: u64, decode: impl FnOnce() -> T) -> T {
    let mut result = None;
    let used = allocation_counter::measure(|| result = Some(decode()));
    let most = least + per_byte * input.len() as u64;
    assert!(
        used.bytes_max <= most,
        "{} bytes of input took {} bytes of memory, more than {most}",
        input.len(),
        used.bytes_max
    );
    result.unwrap_or_else(|| unreachable!("measure runs its function"))
}
