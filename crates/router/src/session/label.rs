//! Labels of a chain's requests: the names that their author gave them.

use rdmesh_fabric::printable;
use rdmesh_uverbs::session::chain::LABEL_LEN;
use std::fmt;

/// A label. It is a tenant's text, and shown escaped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label([u8; LABEL_LEN]);

impl Label {
    /// A label as it was sent; none where it is empty.
    pub(super) fn new(bytes: [u8; LABEL_LEN]) -> Option<Self> {
        (bytes[0] != 0).then_some(Self(bytes))
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.0.iter().position(|byte| *byte == 0).unwrap_or(LABEL_LEN);
        // One that was cut within a character ends before it.
        let text = self.0[..len].utf8_chunks().next().map_or("", |chunk| chunk.valid());
        f.write_str(&printable(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &[u8]) -> Option<String> {
        let mut bytes = [0; LABEL_LEN];
        bytes[..text.len()].copy_from_slice(text);
        Label::new(bytes).map(|label| label.to_string())
    }

    #[test]
    fn a_label_is_shown_as_far_as_it_is_text() {
        assert_eq!(shown(b"").as_deref(), None);
        assert_eq!(shown(b"hit").as_deref(), Some("hit"));
        assert_eq!(shown(b"a\x1b[2J").as_deref(), Some("a\\x1b[2J"));
        assert_eq!(shown(b"cut\xc3").as_deref(), Some("cut"));
        assert_eq!(shown(&[b'a'; LABEL_LEN]).unwrap().len(), LABEL_LEN);
    }
}
