//! Imports between the files of a crate, as far as its source text shows them: parts and circles.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A file's module path: `["session", "server"]`; the crate's root is empty.
type Module = Vec<String>;

/// The modules of a crate, without tests, and what each imports.
pub struct Modules {
    imports: BTreeMap<Module, BTreeSet<Module>>,
    parts: BTreeMap<String, BTreeSet<String>>,
}

impl Modules {
    /// Reads the sources in `folder`, the `src` of a crate.
    pub fn read(folder: &Path) -> Self {
        let mut texts = BTreeMap::new();
        read_files(folder, &mut Vec::new(), &mut texts);
        let paths: BTreeMap<&Module, Vec<Import>> = texts.iter().map(|(module, text)| (module, paths(text))).collect();
        let exports: BTreeMap<(Module, String), Module> = paths
            .iter()
            .flat_map(|(module, paths)| paths.iter().filter(|path| path.is_export).map(move |path| (*module, path)))
            .filter_map(|(module, path)| {
                let target = absolute(&texts, module, &path.words)?;
                Some(((module.clone(), target.last()?.clone()), target))
            })
            .collect();
        let targets = |module: &Module, paths: &[Import]| {
            let used = paths.iter().filter(|path| !path.is_export);
            let found = used.filter_map(|path| resolve(&texts, &exports, &absolute(&texts, module, &path.words)?, 0));
            found.filter(|target| !target.is_empty() && target != module).collect()
        };
        let imports = paths.iter().map(|(module, paths)| ((*module).clone(), targets(module, paths))).collect();
        let mut parts = BTreeMap::<String, BTreeSet<String>>::new();
        for (module, paths) in &paths {
            let Some(part) = module.first() else { continue };
            let found = paths.iter().filter_map(|path| absolute(&texts, module, &path.words)?.first().cloned());
            let others = found.filter(|other| other != part && texts.contains_key(std::slice::from_ref(other)));
            parts.entry(part.clone()).or_default().extend(others);
        }
        Self { imports, parts }
    }

    /// The parts of the crate (modules of its root) that each part imports, as it is written.
    pub fn parts(&self) -> &BTreeMap<String, BTreeSet<String>> {
        &self.parts
    }

    /// Groups of files each of which imports all others of its group, directly or by way of others.
    pub fn circles(&self) -> Vec<Vec<String>> {
        let reached: BTreeMap<&Module, BTreeSet<&Module>> =
            self.imports.keys().map(|module| (module, self.reached(module))).collect();
        let is_mutual = |a: &Module, b: &Module| {
            let reaches = |from, to| reached.get(from).is_some_and(|found: &BTreeSet<_>| found.contains(to));
            reaches(a, b) && reaches(b, a)
        };
        let mut circles = BTreeSet::new();
        for module in self.imports.keys() {
            let group = self.imports.keys().filter(|other| is_mutual(module, other));
            let names: Vec<String> = group.map(|other| other.join("/")).collect();
            if names.len() > 1 {
                circles.insert(names);
            }
        }
        circles.into_iter().collect()
    }

    fn reached<'a>(&'a self, from: &'a Module) -> BTreeSet<&'a Module> {
        let mut found = BTreeSet::new();
        let mut next = vec![from];
        while let Some(module) = next.pop() {
            next.extend(self.imports.get(module).into_iter().flatten().filter(|other| found.insert(*other)));
        }
        found
    }
}

/// A path in the source text.
struct Import {
    words: Vec<String>,
    is_export: bool,
}

fn read_files(folder: &Path, at: &mut Module, into: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() {
            at.push(name);
            read_files(&path, at, into);
            at.pop();
        } else if let Some(name) = name.strip_suffix(".rs")
            && name != "tests"
            && !at.iter().any(|part| part == "tests")
        {
            let own = (name != "mod" && name != "lib").then(|| name.to_owned());
            let module: Module = at.iter().cloned().chain(own).collect();
            let text = fs::read_to_string(&path).expect("source text");
            into.insert(module, text);
        }
    }
}

/// The paths that begin with `crate`, `super` or `self`, and those of `use`, in a file's code.
fn paths(text: &str) -> Vec<Import> {
    let code: String =
        text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut found = Vec::new();
    for statement in format!("\n{code}").split(';') {
        // The tree of an import has braces of its own: the import begins where its line does.
        let begin = statement.rfind("\nuse ").map(|at| (at + 5, false));
        let export = ["\npub use ", "\npub(crate) use ", "\npub(super) use "];
        let exported = export.iter().filter_map(|word| statement.rfind(word).map(|at| (at + word.len(), true)));
        if let Some((at, is_export)) = begin.into_iter().chain(exported).max() {
            expand(&[], &statement[at..], is_export, &mut found);
        }
    }
    for word in code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':') {
        let words: Vec<String> = word.split("::").map(str::to_owned).collect();
        if words.len() > 1 && ["crate", "super"].contains(&words[0].as_str()) {
            found.push(Import { words, is_export: false });
        }
    }
    found
}

/// The paths of the tree of an import.
fn expand(prefix: &[String], tree: &str, is_export: bool, into: &mut Vec<Import>) {
    let words = |text: &str| {
        let text = text.split(" as ").next().unwrap_or_default();
        text.split("::").map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect::<Vec<_>>()
    };
    let Some((head, rest)) = tree.split_once('{') else {
        return into.push(Import { words: [prefix, &words(tree)].concat(), is_export });
    };
    let prefix = [prefix, &words(head)].concat();
    let (mut depth, mut begin) = (0, 0);
    let inner = &rest[..rest.rfind('}').unwrap_or(rest.len())];
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inner[begin..at].trim().is_empty() {
                    expand(&prefix, &inner[begin..at], is_export, into);
                }
                begin = (at + 1).min(inner.len());
            }
            _ => {}
        }
    }
}

/// The path from the crate's root; none for another crate's.
fn absolute(texts: &BTreeMap<Module, String>, module: &Module, words: &[String]) -> Option<Module> {
    let up = words.iter().take_while(|word| *word == "super").count();
    match words.first()?.as_str() {
        "crate" => Some(words[1..].to_vec()),
        "self" => Some([module, &words[1..]].concat()),
        "super" => Some([module.get(..module.len().checked_sub(up)?)?, &words[up..]].concat()),
        first => {
            let child: Module = module.iter().cloned().chain([first.to_owned()]).collect();
            texts.contains_key(&child).then(|| [module, words].concat())
        }
    }
}

/// The module that a path leads to, re-exports followed.
fn resolve(
    texts: &BTreeMap<Module, String>,
    exports: &BTreeMap<(Module, String), Module>,
    path: &[String],
    depth: usize,
) -> Option<Module> {
    let len = (0..=path.len()).rev().find(|len| texts.contains_key(&path[..*len]))?;
    let module = path[..len].to_vec();
    let exported = path.get(len).and_then(|name| exports.get(&(module.clone(), name.clone())));
    match exported {
        Some(target) if depth < 8 => resolve(texts, exports, &[target, &path[len + 1..]].concat(), depth + 1),
        _ => Some(module),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> Modules {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        Modules::read(folder.path())
    }

    #[test]
    fn a_circle_goes_by_way_of_others_and_of_exports() {
        let modules = read(&[
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a/mod.rs", "mod inner;\npub use inner::Inner;\n"),
            ("a/inner.rs", "use crate::b::{self, B};\n"),
            ("b.rs", "fn f() { crate::a::Inner::new() }\n"),
            ("c.rs", "use crate::b::B;\n// use crate::c::X\n"),
        ]);
        assert_eq!(modules.circles(), [["a/inner", "b"]]);
        assert_eq!(modules.parts()["c"], BTreeSet::from(["b".to_owned()]));
        assert_eq!(modules.parts()["b"], BTreeSet::from(["a".to_owned()]));
    }

    #[test]
    fn tests_are_not_counted() {
        let modules = read(&[
            ("lib.rs", ""),
            ("a.rs", "\n#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n"),
            ("b.rs", "use super::a::A;\n"),
            ("a/tests.rs", "use crate::b::B;\n"),
        ]);
        assert!(modules.circles().is_empty());
        assert!(modules.parts()["a"].is_empty());
    }
}
