//! Escaping of untrusted text before it reaches a terminal or a log.

use std::borrow::Cow;
use std::fmt::Write;

/// `text` on one line, without anything that a terminal interprets: control characters, among them line ends and the ESC of its
/// commands, and characters that change the text direction or are invisible. Each becomes its number, `\x1b` or `\u{202e}`.
/// Existing escapes stay as they are.
///
/// ```
/// assert_eq!(rdmesh_fabric::printable("sh\u{1b}[2J"), "sh\\x1b[2J");
/// ```
pub fn printable(text: &str) -> Cow<'_, str> {
    escape(text, is_obeyed)
}

/// The same for text of several lines: line ends stay.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| c != '\n' && is_obeyed(c))
}

fn escape(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        // Writing to a string cannot fail.
        let _ = match u32::from(c) {
            _ if !is_escaped(c) => escaped.write_char(c),
            code @ ..0x80 => write!(escaped, "\\x{code:02x}"),
            code => write!(escaped, "\\u{{{code:x}}}"),
        };
    }
    Cow::Owned(escaped)
}

/// Control characters (C0, DEL, C1), line and paragraph separators, marks of direction, and characters without a form.
fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_terminal_is_given_nothing_to_obey() {
        for (text, shown) in [
            ("ib_write_bw", "ib_write_bw"),
            ("größer 漢字", "größer 漢字"),
            ("\u{1b}]0;owned\u{7}", "\\x1b]0;owned\\x07"),
            ("a\nrouter: fine", "a\\x0arouter: fine"),
            ("\u{9b}2J", "\\u{9b}2J"),
            ("\u{202e}cod.exe", "\\u{202e}cod.exe"),
            ("a\u{200b}b\u{feff}\u{2066}", "a\\u{200b}b\\u{feff}\\u{2066}"),
        ] {
            assert_eq!(printable(text), shown);
        }
        assert_eq!(printable_lines("one\ntwo\r\u{1b}"), "one\ntwo\\x0d\\x1b");
    }

    proptest! {
        #[test]
        fn to_escape_twice_is_to_escape_once(text in any::<String>()) {
            let once = printable(&text);
            prop_assert_eq!(printable(&once), once.as_ref());
            prop_assert!(!once.contains(is_obeyed));
        }
    }
}
