//! Progress bars: on standard error, and only if that is a terminal.

use std::fmt::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

/// A bar for so many things.
pub(crate) fn bar(what: &str, total: u64) -> ProgressBar {
    style(ProgressBar::new(total), what, "{msg} [{bar:32}] {human_pos}/{human_len} {rate} {eta}")
}

/// A bar for so many bytes.
pub(crate) fn bytes(what: &str, total: u64) -> ProgressBar {
    style(ProgressBar::new(total), what, "{msg} [{bar:32}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")
}

/// Counts items whose number is not known.
pub(crate) fn counter(what: &str) -> ProgressBar {
    style(ProgressBar::no_length(), what, "{msg} {human_pos} {rate} {elapsed}")
}

fn style(bar: ProgressBar, what: &str, template: &str) -> ProgressBar {
    // The template is one of those above; a wrong one would fall back to the plain bar.
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let rate = |state: &ProgressState, out: &mut dyn Write| {
        // A bar that cannot be drawn is no reason to stop.
        let _ = write!(out, "{:.0}/s", state.per_sec());
    };
    let style = style.progress_chars("=> ").with_key("rate", rate);
    bar.set_style(style);
    bar.set_message(what.to_owned());
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}
