//! The fuzzer: one target of [`mtimer_fuzz::TARGETS`], named by `MTIMER_FUZZ_TARGET`, driven by
//! libFuzzer. `tests/fuzz/run` builds and starts it.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    use std::sync::LazyLock;
    static TARGET: LazyLock<mtimer_fuzz::Target> = LazyLock::new(|| {
        let name = std::env::var("MTIMER_FUZZ_TARGET").unwrap_or_default();
        mtimer_fuzz::target(&name).unwrap_or_else(|| {
            eprintln!("MTIMER_FUZZ_TARGET={name:?} names no target: use one of {}", mtimer_fuzz::names());
            std::process::exit(2)
        })
    });
    TARGET(data)
});

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    eprintln!("this build has no fuzzer in it: run tests/fuzz/run");
    std::process::ExitCode::from(2)
}
