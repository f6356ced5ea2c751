//! Asks before something is done that cannot be undone.
//!
//! Invariant: without a terminal nothing is asked, and nothing is done without `--yes`.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;

use super::exit::{Exit, Failure};

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Yes {
    /// Do it without asking; needed where nobody can be asked, as in scripts
    #[arg(long)]
    yes: bool,
}

impl Yes {
    /// Lets it be done or not. `what` names the action, such as "this removes all dead letters".
    pub(crate) fn confirm(self, what: &str) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return Err(Failure::usage(format!("{what}: give --yes to have it done without being asked")));
        }
        let mut err = io::stderr().lock();
        // Without an answer nothing is done.
        let _ = write!(err, "{what}. Go on? [y/N] ").and_then(|()| err.flush());
        let mut answer = String::new();
        let read = io::stdin().lock().read_line(&mut answer);
        read.map_err(|e| Failure::new(Exit::Failed, format!("cannot read the answer: {e}")))?;
        match is_yes(&answer) {
            true => Ok(()),
            false => Err(Failure::new(Exit::Interrupted, "nothing was done")),
        }
    }
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_one() {
        assert!(["y\n", "Y", " yes \n", "YES"].into_iter().all(is_yes));
        assert!(["", "\n", "n", "no", "yess", "y n"].into_iter().all(|answer| !is_yes(answer)));
    }
}
