//! The `mtimer` program: the command line around the broker and the client.

mod cli;

/// What one thread allocates another frees here, all the time: frames, timers, answers. That is where it does better than
/// the system's. Where pages may have more than 4 KiB it would have to be built for their size: there the system's it is.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
