//! `mtimer man`: manual pages, from the same text as `--help`.

use std::path::PathBuf;

use clap::{Args, Command};
use serde_json::json;

use super::exit::{Exit, Failure};
use super::output::Output;

/// Manual pages, one for each command, into a folder
///
/// Makes the folder if it is not there, and replaces pages that are in it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    mtimer man ~/.local/share/man/man1 && man mtimer-schedule\n  \
    mtimer man ./pages && man ./pages/mtimer.1")]
pub(crate) struct Man {
    /// Where the pages go
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

impl Man {
    pub(crate) fn run(&self, command: Command, out: Output) -> Result<(), Failure> {
        let dir = self.dir.display();
        let failed = |e: std::io::Error| {
            Failure::new(Exit::Failed, format!("cannot write manual pages to {dir}: {e}"))
        };
        let pages = count(&command);
        std::fs::create_dir_all(&self.dir).map_err(failed)?;
        clap_mangen::generate_to(command, &self.dir).map_err(failed)?;
        out.either(&json!({ "dir": self.dir, "pages": pages }), || format!("{pages} pages in {dir}"))
    }
}

/// A command, those below it, and so on.
fn count(command: &Command) -> usize {
    1 + command.get_subcommands().filter(|c| !c.is_hide_set()).map(count).sum::<usize>()
}
