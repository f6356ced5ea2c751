//! A store without its fence, to see that tests notice.

use std::sync::atomic::{AtomicBool, Ordering};

static FENCE_IS_CUT: AtomicBool = AtomicBool::new(false);

/// Lets every owner read and write its partition even after another owner has acquired it. Call it
/// before the first connection of the process.
#[doc(hidden)]
pub fn cut_the_fence() {
    FENCE_IS_CUT.store(true, Ordering::Relaxed);
}

/// Whether [`cut_the_fence`] was called.
pub(crate) fn fence_is_cut() -> bool {
    FENCE_IS_CUT.load(Ordering::Relaxed)
}

/// The text of `apply.lua` without the check of the owner record.
pub(crate) fn without_fence(apply: &str) -> String {
    let mut is_check = false;
    let is_kept = |line: &&str| {
        is_check |= line.starts_with("if owner[");
        let kept = !is_check;
        is_check &= *line != "end";
        kept
    };
    apply.lines().filter(is_kept).flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_is_cut_and_nothing_else() {
        let intact = include_str!("../../../../lua/apply.lua");
        let cut = without_fence(intact);
        assert_eq!(cut.lines().count() + 3, intact.lines().count());
        assert!(intact.contains("return {'SEQ'") && !cut.contains("return {'SEQ'"));
    }
}
