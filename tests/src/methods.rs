//! Methods of each type of a crate, counted in its formatted source text.

use std::collections::{BTreeMap, BTreeSet};

/// The number of methods of each type, by name, in a crate's `files`: path below `src`, and text. Methods that a trait demands
/// are not counted, nor those for tests only. Types of one name in several parts of the crate are told apart by their part.
pub fn methods<'a>(files: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> BTreeMap<String, usize> {
    let mut parts = BTreeMap::<&str, BTreeSet<&str>>::new();
    for (path, text) in files.clone() {
        for name in code(text).lines().filter_map(defined) {
            parts.entry(name).or_default().insert(part(path));
        }
    }
    let mut counts = BTreeMap::new();
    for (path, text) in files {
        for (name, count) in blocks(code(text)) {
            let is_unique = parts.get(name).is_none_or(|parts| parts.len() == 1);
            let key = if is_unique { name.to_owned() } else { format!("{}::{name}", part(path)) };
            *counts.entry(key).or_default() += count;
        }
    }
    counts
}

/// A file's text without the tests at its end.
fn code(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default()
}

fn part(path: &str) -> &str {
    path.split('/').next().unwrap_or_default().trim_end_matches(".rs")
}

/// The type that a line at the left margin defines.
fn defined(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub ").or_else(|| line.split_once(") ").map(|(_, rest)| rest)).unwrap_or(line);
    let name = ["struct ", "enum ", "union "].iter().find_map(|kind| line.strip_prefix(kind))?;
    Some(word(name))
}

fn word(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// Each block of a type's own methods: the type, and how many.
fn blocks(text: &str) -> Vec<(&str, usize)> {
    let mut found = Vec::new();
    for block in text.split("\nimpl").skip(1) {
        let (Some((header, _)), Some((block, _))) = (block.split_once('{'), block.split_once("\n}")) else { continue };
        let target = without_parameters(header).trim_start();
        let is_of_trait = header.split_whitespace().any(|word| word == "for");
        if !is_of_trait {
            let name = target.split('<').next().unwrap_or_default().trim().rsplit("::").next().unwrap_or_default();
            found.push((word(name), block_methods(block)));
        }
    }
    found
}

/// Rest behind the parameters of an `impl`: `<'a, P: Into<u8>> Name<'a, P>` becomes `Name<'a, P>`.
fn without_parameters(header: &str) -> &str {
    if !header.starts_with('<') {
        return header;
    }
    let mut depth = 0;
    for (at, c) in header.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if !header[..at].ends_with('-') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &header[at + 1..];
        }
    }
    header
}

fn block_methods(block: &str) -> usize {
    let mut is_for_tests = false;
    let mut count = 0;
    for line in block.lines() {
        let is_item = line.starts_with("    ") && !line.starts_with("     ");
        let code = line.split("//").next().unwrap_or_default();
        if is_item && code.split_whitespace().take_while(|word| !word.starts_with('(')).any(|word| word == "fn") {
            count += usize::from(!is_for_tests);
        }
        is_for_tests = is_item && (code.trim() == "#[cfg(test)]" || is_for_tests && code.trim().starts_with("#["));
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_types_own_methods_are_counted() {
        let a = "
pub struct One<P>(P);
pub(crate) struct Two;

impl<'a, P: Fn() -> Box<u8>> One<P> {
    /// A fn that is described.
    pub const fn first(&self) {
        fn inner() {}
    }

    pub(super) async fn second(self) {}
    #[cfg(test)]
    fn for_tests() {}
}

impl<P> Clone for One<P> {
    fn clone(&self) -> Self {}
}

impl Two {
    fn only() {}
}
";
        let b = "
struct Two;

impl Two {
    fn other() {}
}

impl<P> crate::a::One<P>
where
    P: Copy,
{
    fn third() {}
}
";
        let counts = methods([("a.rs", a), ("b/mod.rs", b)].into_iter());
        let expected = [("One", 3), ("a::Two", 1), ("b::Two", 1)];
        assert_eq!(counts, expected.into_iter().map(|(name, n)| (name.to_owned(), n)).collect());
    }
}
