//! Standard output: JSON for programs, tables and colours for people.
//!
//! Invariant: with `--json` every line of standard output is one JSON object; colours are only for
//! a terminal; a reader that stops ends the command, without a panic.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use super::exit::Failure;

/// How a command's results are shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// One JSON object a line.
    pub(crate) json: bool,
    colour: bool,
}

/// A colour with a meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tone {
    Good,
    Bad,
    Strong,
    Faint,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, colour: colours(io::stdout().is_terminal()) }
    }

    /// The same for standard error.
    pub(crate) fn for_errors() -> Self {
        Self { json: false, colour: colours(io::stderr().is_terminal()) }
    }

    /// Writes one JSON object on a line of its own.
    pub(crate) fn object(self, value: &impl Serialize) -> Result<(), Failure> {
        self.text(&to_line(value)?)
    }

    /// Writes one line.
    pub(crate) fn text(self, line: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(line.as_bytes())
            .and_then(|()| out.write_all(b"\n"))
            .and_then(|()| out.flush())
            .map_err(|e| Failure::output(&e))
    }

    /// Begins a new picture, on a terminal.
    pub(crate) fn clear(self) -> Result<(), Failure> {
        if self.json || !io::stdout().is_terminal() {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        out.write_all(b"\x1b[2J\x1b[H").and_then(|()| out.flush()).map_err(|e| Failure::output(&e))
    }

    /// Writes `value` as JSON if that was asked for, else the result of `text`.
    pub(crate) fn either(self, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.json { self.object(value) } else { self.text(&text()) }
    }

    /// The text in a colour, on a terminal.
    pub(crate) fn tone(self, tone: Tone, text: &str) -> String {
        if !self.colour {
            return text.to_owned();
        }
        let code = match tone {
            Tone::Good => "32",
            Tone::Bad => "31;1",
            Tone::Strong => "1",
            Tone::Faint => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// Whether to use colours on a stream that is or is not a terminal: <https://no-color.org>.
pub(crate) fn colours(terminal: bool) -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
    terminal && !unwanted && !dumb
}

/// One line of JSON.
pub(crate) fn to_line(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(value)
        .map_err(|e| Failure::new(super::exit::Exit::Failed, format!("cannot write the result as JSON: {e}")))
}

/// Everything on standard error is JSON: the log was asked to be.
static NOTES_ARE_JSON: AtomicBool = AtomicBool::new(false);

/// From now on every line of standard error is a JSON object, like those of the log; panics are,
/// too.
pub(crate) fn notes_as_json() {
    if !NOTES_ARE_JSON.swap(true, Ordering::Relaxed) {
        std::panic::set_hook(Box::new(|panic| write_log_line("ERROR", &panic.to_string())));
    }
}

/// Says something on standard error; never part of the result.
pub(crate) fn note(text: &str) {
    match NOTES_ARE_JSON.load(Ordering::Relaxed) {
        true => write_log_line("INFO", text),
        // Nobody may be there to read it.
        false => _ = writeln!(io::stderr().lock(), "{text}"),
    }
}

/// Says why the command has failed.
pub(crate) fn note_error(text: &str) {
    match NOTES_ARE_JSON.load(Ordering::Relaxed) {
        true => write_log_line("ERROR", text),
        false => note(&format!("{} {text}", Output::for_errors().tone(Tone::Bad, "error:"))),
    }
}

/// Writes a line as the log would.
fn write_log_line(level: &str, text: &str) {
    let timestamp = jiff::Timestamp::now();
    let line = serde_json::json!({
        "timestamp": format!("{timestamp:.6}"), "level": level, "message": text, "target": "mtimer",
    });
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Rows with a head, in columns. Columns in which everything is a number are flush right.
#[derive(Debug)]
pub(crate) struct TextTable<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> TextTable<N> {
    pub(crate) fn new(head: [&str; N]) -> Self {
        Self { rows: vec![head.map(str::to_owned)] }
    }

    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }

    /// The lines, the head first.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let width = |c: usize| self.rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..N).map(width).collect();
        let right: Vec<bool> = (0..N).map(|c| self.rows.iter().skip(1).all(|r| is_number(&r[c]))).collect();
        self.rows.iter().map(move |row| {
            let mut line = String::new();
            for (c, cell) in row.iter().enumerate() {
                let gap = widths[c] - cell.chars().count();
                let (before, after) = if right[c] { (gap, 0) } else { (0, gap) };
                // Writing to a String cannot fail.
                let _ = write!(line, "{:before$}{cell}{:after$}  ", "", "");
            }
            line.trim_end().to_owned()
        })
    }
}

fn is_number(cell: &str) -> bool {
    !cell.is_empty() && cell.chars().all(|c| c.is_ascii_digit() || matches!(c, ',' | '.' | '-' | '+' | '%'))
}

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 timer`, `2,000 timers`: a number of things whose plural ends in s.
pub(crate) fn counted(n: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(n), if n == 1 { "" } else { "s" })
}

/// A word of a command as a shell reads it, for hints that can be run as they are printed.
pub(crate) fn shell_quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,=@%+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Text from elsewhere, safe for a terminal and at most `limit` characters.
pub(crate) fn plain(text: &str, limit: usize) -> String {
    let mut out = String::new();
    let mut chars = text.chars().flat_map(|c| {
        let escaped: Vec<char> = if c.is_control() { c.escape_default().collect() } else { vec![c] };
        escaped
    });
    out.extend(chars.by_ref().take(limit));
    if chars.next().is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set in the process that panics.
    const PANICS: &str = "MTIMER_TEST_PANICS";

    #[test]
    fn with_a_log_in_json_panics_are_lines_of_it() {
        if std::env::var_os(PANICS).is_some() {
            notes_as_json();
            let panicking = std::thread::spawn(|| panic!("a \"defect\"\nof two lines"));
            assert!(panicking.join().is_err());
            return;
        }
        let name = "output::tests::with_a_log_in_json_panics_are_lines_of_it";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let ended = child.args(["--exact", name, "--nocapture"]).env(PANICS, "1").output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        let err = String::from_utf8(ended.stderr).unwrap();
        let lines: Vec<serde_json::Value> = err
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
            .collect();
        let [line] = &lines[..] else { panic!("not one line: {err}") };
        assert_eq!(line["level"], "ERROR");
        let message = line["message"].as_str().unwrap();
        assert!(message.contains("a \"defect\"\nof two lines") && message.contains("output.rs"), "{message}");
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_change_them() {
        let words = ["/etc/tokens.toml", "read:*", "a b", "it's", ""].map(shell_quoted);
        assert_eq!(words, ["/etc/tokens.toml", "'read:*'", "'a b'", "'it'\\''s'", "''"]);
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn one_thing_is_not_several() {
        let timers = [0, 1, 2, 1_000].map(|n| counted(n, "timer"));
        assert_eq!(timers, ["0 timers", "1 timer", "2 timers", "1,000 timers"]);
    }

    #[test]
    fn tables_line_up() {
        let mut table = TextTable::new(["name", "n", "what"]);
        table.row(["a".into(), "1,000".into(), "x".into()]);
        table.row(["löng".into(), "2".into(), String::new()]);
        let lines: Vec<String> = table.lines().collect();
        assert_eq!(lines, ["name      n  what", "a     1,000  x", "löng      2"]);
    }

    #[test]
    fn foreign_text_cannot_steer_a_terminal() {
        assert_eq!(plain("a\x1b[31mb\n", 80), "a\\u{1b}[31mb\\n");
        assert_eq!(plain("abcdef", 3), "abc…");
    }
}
