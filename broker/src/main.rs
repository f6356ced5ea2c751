//! The `mtimer` program: the command line around the broker and the client.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
