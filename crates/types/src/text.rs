//! Texts of bounded length.

/// Returns the beginning of a text, at most so many bytes of it, cut at a character's boundary.
///
/// ```
/// assert_eq!(mtimer_types::beginning("gruß", 4), "gru");
/// assert_eq!(mtimer_types::beginning("gruß", 5), "gruß");
/// ```
pub fn beginning(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
