//! Every input of the corpus and every input that once failed, without a fuzzer: part of the
//! ordinary tests.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// The files of a target in `corpus` or `found`, in order.
fn inputs(folder: &str, target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(target);
    let files = fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn every_kept_input_passes() {
    let mut failed = Vec::new();
    for (name, target) in mtimer_fuzz::TARGETS {
        let inputs = [inputs("corpus", name), inputs("found", name)].concat();
        assert!(!inputs.is_empty(), "target {name} has no corpus");
        for input in inputs {
            let bytes = fs::read(&input).unwrap();
            if catch_unwind(|| target(&bytes)).is_err() {
                failed.push(format!("tests/fuzz/run --target {name} {}", input.display()));
            }
        }
    }
    assert!(failed.is_empty(), "these inputs fail:\n{}", failed.join("\n"));
}

#[test]
fn the_corpus_is_small_and_belongs_to_targets() {
    let known: BTreeSet<String> = mtimer_fuzz::TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut bytes = 0;
    for folder in ["corpus", "found"] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        for target in fs::read_dir(&root).into_iter().flatten() {
            let target = target.unwrap().file_name().into_string().unwrap();
            assert!(known.contains(&target), "{folder}/{target} belongs to no target");
            bytes +=
                inputs(folder, &target).iter().map(|file| fs::metadata(file).unwrap().len()).sum::<u64>();
        }
    }
    assert!(bytes < 1 << 20, "the corpus has {bytes} bytes: keep less of it");
}

/// The fuzzer is tested by this target: `tests/fuzz/run --target planted` has to fail.
#[test]
fn the_planted_failure_is_there() {
    let planted = mtimer_fuzz::target("planted").unwrap();
    planted(b"mtmr\x00\x01");
    assert!(catch_unwind(|| planted(b"mtmr\x01\x00")).is_err());
}
