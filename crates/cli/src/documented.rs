//! The commands that the documents show are commands of this program: it can read each of them.
//!
//! Not in here: running them (`tests/tests/docs.rs`).

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

#[path = "../../../tests/tests/docs/markdown.rs"]
#[allow(dead_code, reason = "it is shared with tests/tests/docs.rs")]
mod markdown;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::Cli;
use markdown::{blocks, code_spans, documents, read};

/// How lines of blocks begin that run this program; the rest are its arguments.
const PROGRAMS: [&str; 7] = [
    "mtimer",
    "target/release/mtimer",
    "cargo run --release --",
    "kubectl exec mtimer-0 -- mtimer",
    "docker run --rm mtimer",
    "docker compose -f deploy/compose/compose.yaml run --rm cli",
    "docker compose -f deploy/compose/compose.yaml run --rm --entrypoint mtimer tokens",
];
/// Placeholders for values of the reader, each with an example.
const EXAMPLES: [(&str, &str); 7] = [
    ("ID", "01m84pgrsf000amph7qypf5cy3"),
    ("CURSOR", "01b977d7aafa01m84pjmey001c3d780afg80sr"),
    ("URL", "redis://127.0.0.1:6379"),
    ("ADDR", "127.0.0.1:7400"),
    ("WORK", "lateness"),
    ("N", "100"),
    ("JOB", "5f0c2a9e6d1b47338a90c4be17f26d53"),
];
/// Texts that begin with the name of the program and are messages, not commands.
const MESSAGES: [&str; 1] = ["mtimer does not trust the server's certificate"];

#[test]
fn commands_in_blocks_can_be_read() {
    let (mut wrong, mut read_well) = (Vec::new(), 0);
    for document in documents() {
        for block in blocks(&read(&document)).iter().filter(|block| block.is_shell()) {
            for words in commands(&block.text) {
                match Cli::try_parse_from(&words) {
                    Ok(_) => read_well += 1,
                    Err(error) => wrong.push(format!("{document}: {}: {error}", words.join(" "))),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(read_well > 30, "only {read_well} commands were found");
}

/// In a sentence a command may lack required arguments, but has no unknown options.
#[test]
fn commands_in_sentences_exist() {
    let (mut wrong, mut named) = (Vec::new(), 0);
    for document in documents() {
        for span in code_spans(&read(&document)) {
            let words = words(&span);
            let words: Vec<&str> = words.iter().map(|word| example(word)).collect();
            if words.first() != Some(&"mtimer") || MESSAGES.contains(&span.as_str()) {
                continue;
            }
            named += 1;
            let unfinished = words.iter().filter(|word| **word != "...");
            let Err(error) = Cli::try_parse_from(unfinished) else { continue };
            if !is_unfinished(&error) {
                wrong.push(format!("{document}: {span}: {error}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(named > 60, "only {named} commands were found");
}

/// Whether all that is wrong is that something is missing.
fn is_unfinished(error: &clap::Error) -> bool {
    match error.kind() {
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => true,
        // An option at the end, without its value.
        ErrorKind::InvalidValue => matches!(
            error.get(ContextKind::InvalidValue),
            Some(ContextValue::String(value)) if value.is_empty()
        ),
        _ => false,
    }
}

fn example(word: &str) -> &str {
    EXAMPLES.iter().find(|(name, _)| *name == word).map_or(word, |(_, example)| example)
}

/// The command lines of this program in a block, each as its words.
fn commands(text: &str) -> Vec<Vec<String>> {
    let arguments = |line: &str| {
        let words = words(line);
        // `NAME=value` at the beginning of a line is for its environment.
        let command = words.iter().position(|word| !word.contains('='))?;
        let line = words[command..].join(" ");
        let program = PROGRAMS.iter().find(|program| line.starts_with(&format!("{program} ")))?;
        let arguments = words[command..].iter().skip(program.split(' ').count()).cloned();
        Some(["mtimer".to_owned()].into_iter().chain(arguments).collect())
    };
    text.replace("\\\n", " ").lines().filter_map(arguments).collect()
}

/// The words of a line as a shell takes them, up to a comment, a redirection or a control operator.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(mark), c) if c == mark => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, '>' | '|' | '&' | ';') => break,
            (None, '#') if word.is_none() => break,
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn a_line_is_divided_as_a_shell_does() {
    let line = "NAME=x mtimer token create --grant 'read:*' --name \"\" > file # why";
    let expected = ["NAME=x", "mtimer", "token", "create", "--grant", "read:*", "--name", ""];
    assert_eq!(words(line), expected);
    assert_eq!(commands(line), [["mtimer"].iter().chain(&expected[2..]).copied().collect::<Vec<_>>()]);
}
