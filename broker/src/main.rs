//! The `mtimer` program: the command line around the broker and the client.

mod cli;

/// What one thread allocates another frees here, all the time: frames, timers, answers. That is
/// where it does better than the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
