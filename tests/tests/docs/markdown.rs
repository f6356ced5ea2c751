//! The Markdown files of the repository, and what is in them: fenced blocks, prose and code spans.

use std::fs;
use std::path::{Path, PathBuf};

/// A fenced block of a document. One in a list is indented: its text is without that indent.
pub(super) struct Block {
    pub(super) info: String,
    pub(super) text: String,
    /// Where it begins, from 1.
    pub(super) line: usize,
    indent: usize,
}

impl Block {
    /// Whether it shows commands.
    pub(super) fn is_shell(&self) -> bool {
        self.info.split(' ').next() == Some("sh")
    }
}

pub(super) fn blocks(text: &str) -> Vec<Block> {
    split(text).0
}

/// What stands between single backticks.
pub(super) fn code_spans(text: &str) -> Vec<String> {
    prose(text).split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The text without fenced blocks.
pub(super) fn prose(text: &str) -> String {
    split(text).1
}

/// The fenced blocks of a text, and the text without them.
fn split(text: &str) -> (Vec<Block>, String) {
    let (mut blocks, mut prose, mut open) = (Vec::new(), String::new(), None::<Block>);
    for (n, line) in text.lines().enumerate() {
        let unindented = line.trim_start_matches(' ');
        let indent = line.len() - unindented.len();
        match (unindented.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(info), None) => {
                open = Some(Block { info: info.into(), text: String::new(), line: n + 1, indent });
            }
            (None, Some(block)) => block.text += &format!("{}\n", &line[indent.min(block.indent)..]),
            (None, None) => prose += &format!("{line}\n"),
        }
    }
    assert!(open.is_none(), "a block is not closed:\n{text}");
    (blocks, prose)
}

/// All documents of the repository, by their paths in it.
pub(super) fn documents() -> Vec<String> {
    let found = files(&root(), "md");
    assert!(found.len() > 10, "{found:?}");
    found.iter().map(|path| path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned()).collect()
}

/// The files below a folder whose names end so, without those that are built or downloaded.
pub(super) fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let others = name.starts_with('.') || ["target", "node_modules", "corpus"].contains(&&*name);
            if path.is_dir() && !others {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

pub(super) fn read(document: &str) -> String {
    fs::read_to_string(root().join(document)).unwrap_or_else(|e| panic!("{document}: {e}"))
}

/// The folder of the workspace, from any of its crates.
pub(super) fn root() -> PathBuf {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders.find(|folder| folder.join("Cargo.lock").exists()).unwrap().to_owned()
}
