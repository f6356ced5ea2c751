//! Text that fits a terminal's window: the most important lines are at the top, and those that do
//! not fit are counted.
//!
//! Invariant: a fitted text has no more lines than the window has rows, and none is wider.

/// The size of a terminal, in characters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

impl Window {
    /// That of standard output; `None` if it is no terminal, or says no size.
    #[cfg(unix)]
    pub(crate) fn of_stdout() -> Option<Self> {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
        let (rows, columns) = (size.ws_row.into(), size.ws_col.into());
        (rows > 0 && columns > 0).then_some(Self { rows, columns })
    }

    #[cfg(not(unix))]
    pub(crate) fn of_stdout() -> Option<Self> {
        None
    }
}

/// Lines that belong together.
#[derive(Debug)]
pub(crate) struct Section {
    /// The name of a line, in the plural, to say how many are left out.
    pub(crate) what: &'static str,
    /// So many lines at the beginning are a head.
    pub(crate) head: usize,
    pub(crate) lines: Vec<String>,
    /// Long lines go on in the next one. Otherwise they are cut off.
    pub(crate) wraps: bool,
}

impl Section {
    /// Lines of text, such as problems.
    pub(crate) fn of_text(what: &'static str, lines: Vec<String>) -> Self {
        Self { what, head: 0, lines, wraps: true }
    }

    /// A table whose first line is its head.
    pub(crate) fn of_table(what: &'static str, lines: impl IntoIterator<Item = String>) -> Self {
        Self { what, head: 1, lines: lines.into_iter().collect(), wraps: false }
    }

    /// So many lines, the last of which says how many are left out.
    fn within(&self, lines: Vec<String>, most: usize) -> Vec<String> {
        if lines.len() <= most {
            return lines;
        }
        // A head alone says nothing.
        if most <= self.head {
            return Vec::new();
        }
        let left = lines.len() - (most - 1);
        let mut kept = lines;
        kept.truncate(most - 1);
        kept.push(format!("... {left} more {}", self.what));
        kept
    }
}

/// The sections from top to bottom, with empty lines between them; the last row stays free for the
/// cursor. Those that come first get all that they need.
pub(crate) fn fit(sections: &[Section], window: Window) -> Vec<String> {
    let mut all = Vec::new();
    for section in sections.iter().filter(|section| !section.lines.is_empty()) {
        let lines: Vec<String> = match section.wraps {
            true => section.lines.iter().flat_map(|line| wrap(line, window.columns)).collect(),
            false => section.lines.iter().map(|line| cut(line, window.columns)).collect(),
        };
        let gap = usize::from(!all.is_empty());
        let left = window.rows.saturating_sub(1 + all.len() + gap);
        let lines = section.within(lines, left);
        if !lines.is_empty() {
            all.extend((0..gap).map(|_| String::new()));
            all.extend(lines);
        }
    }
    all
}

/// The sections as they are, with empty lines between them.
pub(crate) fn plain(sections: &[Section]) -> Vec<String> {
    let some = sections.iter().filter(|section| !section.lines.is_empty());
    let lines: Vec<&[String]> = some.map(|section| &section.lines[..]).collect();
    lines.join(&[String::new()][..])
}

/// A line's characters; a colour goes with the one behind it, and has no width.
fn glyphs(line: &str) -> Vec<&str> {
    let (mut all, mut start, mut in_escape) = (Vec::new(), 0, false);
    for (at, c) in line.char_indices() {
        match (in_escape, c) {
            (true, 'm') => in_escape = false,
            (true, _) => {}
            (false, '\x1b') => in_escape = true,
            (false, _) => {
                let end = at + c.len_utf8();
                all.push(&line[start..end]);
                start = end;
            }
        }
    }
    match all.last() {
        // The leftover text ends a colour.
        Some(last) if start < line.len() => {
            let from = start - last.len();
            all.pop();
            all.push(&line[from..]);
        }
        _ => {}
    }
    all
}

fn cut(line: &str, columns: usize) -> String {
    let glyphs = glyphs(line);
    if glyphs.len() <= columns {
        return line.to_owned();
    }
    let mut kept = glyphs[..columns.saturating_sub(1)].concat();
    // A colour must not go on in the next lines.
    if line.contains('\x1b') {
        kept += "\x1b[0m";
    }
    kept + "…"
}

/// Breaks a line between words; further lines are indented.
fn wrap(line: &str, columns: usize) -> Vec<String> {
    const INDENT: &str = "  ";
    let (mut lines, mut now, mut width) = (Vec::new(), String::new(), 0);
    for word in line.split(' ') {
        let wide = glyphs(word).len();
        if width > 0 && width + 1 + wide > columns {
            lines.push(std::mem::replace(&mut now, format!("{INDENT}{word}")));
            width = INDENT.len() + wide;
        } else {
            if width > 0 {
                now.push(' ');
            }
            now.push_str(word);
            width += wide + usize::from(width > 0);
        }
    }
    lines.push(now);
    lines.into_iter().map(|line| cut(&line, columns)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(what: &'static str, rows: usize) -> Section {
        let rows = (0..rows).map(|n| format!("{what} {n} {}", "x".repeat(40)));
        Section::of_table(what, std::iter::once(format!("HEAD of {what}")).chain(rows))
    }

    #[test]
    fn whatever_there_is_fits_every_window_and_the_first_sections_go_before_the_others() {
        let problem = "\x1b[31;1m!\x1b[0m a problem that takes many words to say what is to be done about it";
        let sections = [
            Section::of_text("problems", vec![problem.to_owned()]),
            table("brokers", 3),
            table("partitions", 1_024),
            table("clients", 5),
        ];
        for (rows, columns) in [(1, 1), (2, 80), (5, 20), (10, 30), (24, 80), (50, 200), (2_000, 80)] {
            let lines = fit(&sections, Window { rows, columns });
            assert!(lines.len() < rows.max(1) || lines.is_empty(), "{rows}: {lines:?}");
            assert!(lines.iter().all(|line| glyphs(line).len() <= columns), "{columns}: {lines:?}");
        }
        let lines = fit(&sections, Window { rows: 24, columns: 80 });
        assert_eq!(lines.len(), 23);
        assert!(
            lines[2].starts_with("HEAD of brokers") && lines[7].starts_with("HEAD of partitions"),
            "{lines:?}"
        );
        assert_eq!(lines[22], "... 1010 more partitions", "{lines:?}");
        let all = fit(&sections, Window { rows: 2_000, columns: 200 });
        assert_eq!(all, plain(&sections));
    }

    #[test]
    fn colours_have_no_width_and_end_where_they_are_cut() {
        assert_eq!(cut("\x1b[32mabc\x1b[0m", 3), "\x1b[32mabc\x1b[0m");
        assert_eq!(cut("\x1b[32mabcd\x1b[0m", 3), "\x1b[32mab\x1b[0m…");
        assert_eq!(wrap("\x1b[31m!\x1b[0m one two three", 9), ["\x1b[31m!\x1b[0m one two", "  three"]);
        assert_eq!(wrap("a-very-long-word x", 6), ["a-ver…", "  x"]);
    }
}
