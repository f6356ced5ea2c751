//! `mtimer completions`: scripts by which a shell completes the command line.

use clap::{Args, Command};
use clap_complete::Shell;

use super::exit::Failure;
use super::output::Output;

/// Completions for your shell, on standard output
///
/// Write them where your shell looks for them, and start a new shell. For zsh that is any folder in
/// $fpath; for PowerShell and Elvish, have your profile read the file.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    mtimer completions bash > ~/.local/share/bash-completion/completions/mtimer\n  \
    mtimer completions zsh > ~/.zfunc/_mtimer\n  \
    mtimer completions fish > ~/.config/fish/completions/mtimer.fish")]
pub(crate) struct Completions {
    /// Which shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self, mut command: Command, out: Output) -> Result<(), Failure> {
        let name = command.get_name().to_owned();
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        out.text(String::from_utf8_lossy(&script).trim_end())
    }
}
