//! A way to break the store on purpose, in order to see the tests notice. Only in builds with the feature `sabotage`.

use std::sync::atomic::{AtomicBool, Ordering};

static CUT: AtomicBool = AtomicBool::new(false);

/// The refusals of `fence` in `prelude.lua` begin with these.
const REFUSALS: [&str; 2] = ["  if o[1] ~= ARGV[1]", "  if o[3] + step ~="];

/// From now on scripts do what anybody asks, whoever the owner is. Comes before the first connection of the process.
pub fn cut_the_fence() {
    CUT.store(true, Ordering::Relaxed);
}

/// The prelude as it is to be sent.
pub(crate) fn prelude(intact: &str) -> String {
    if CUT.load(Ordering::Relaxed) { without_fence(intact) } else { intact.to_owned() }
}

fn without_fence(prelude: &str) -> String {
    let refuses = |line: &&str| REFUSALS.iter().any(|refusal| line.starts_with(refusal));
    prelude.lines().filter(|line| !refuses(line)).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn just_the_refusals_are_cut() {
        let intact = include_str!("../../../lua/prelude.lua");
        let cut = without_fence(intact);
        assert_eq!(cut.lines().count() + REFUSALS.len(), intact.lines().count());
        let code = |text: &str| text.lines().filter(|l| !l.starts_with("--")).collect::<String>();
        assert!(code(intact).contains("'FENCED'") && code(intact).contains("'SEQ'"));
        assert!(!code(&cut).contains("'FENCED'") && !code(&cut).contains("'SEQ'"));
    }
}
