//! Conformance of the code to the lists of `tests/allow`, and of the pages about it to the code.

use rdmesh_tests::methods::methods;
use rdmesh_tests::modules::Modules;
use rdmesh_tests::parameters;
use rdmesh_tests::root;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use toml::Table;

/// No source file grows past this many lines.
const MAX_LINES: usize = 600;
/// No type has more methods of its own than this.
const MAX_METHODS: usize = 40;
/// The page about the architecture has no more words than this.
const MAX_WORDS: usize = 1800;
/// Packages beside the crates of the import table: nothing imports them, and they may import what they like.
const BESIDE: [&str; 2] = ["rdmesh-tests", "rdmesh-bench"];

/// A parsed file of `tests/allow`.
fn allowed(file: &str) -> Table {
    let text = read(&format!("tests/allow/{file}"));
    text.parse().unwrap_or_else(|error| panic!("tests/allow/{file}: {error}"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The strings of a list.
fn strings(list: &toml::Value) -> BTreeSet<String> {
    let list = list.as_array().unwrap_or_else(|| panic!("no list: {list:?}"));
    list.iter().map(|name| name.as_str().expect("a name").to_owned()).collect()
}

/// Allowed imports of each part, from a file of `tests/allow`; "all" stands for every part.
fn imports(file: &str) -> BTreeMap<String, BTreeSet<String>> {
    let table = allowed(file);
    let all: BTreeSet<String> = table.keys().cloned().collect();
    let of = |part: &toml::Value| match part["imports"].as_str() {
        Some("all") => all.clone(),
        _ => strings(&part["imports"]),
    };
    table.iter().map(|(name, part)| (name.clone(), of(part))).collect()
}

/// All names in the lists of a file of `tests/allow`.
fn listed(file: &str, key: &str) -> BTreeSet<String> {
    let table = allowed(file);
    let entries = table["allow"].as_array().expect("entries").iter();
    entries
        .flat_map(|entry| {
            assert!(entry["for"].as_str().is_some_and(|reason| !reason.is_empty()), "{file}: {entry:?} has no reason");
            strings(&entry[key])
        })
        .collect()
}

/// The words in backquotes.
fn names(cell: &str) -> BTreeSet<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo writes JSON")
}

/// Direct dependencies of every package of the workspace, by package.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let packages = list(&metadata()["packages"]);
    packages
        .iter()
        .map(|p| (text(&p["name"]), list(&p["dependencies"]).iter().map(|d| text(&d["name"])).collect()))
        .collect()
}

fn rust_files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && path.file_name().is_some_and(|n| n != "target") {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

fn sources() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for folder in ["crates", "tests", "bench", "fuzz"] {
        rust_files(&root().join(folder), &mut files);
    }
    let named = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("source text");
        (path.strip_prefix(root()).expect("within the repository").display().to_string(), text)
    };
    files.into_iter().map(named).collect()
}

#[test]
fn crates_import_only_what_the_table_allows() {
    let allowed: BTreeMap<String, BTreeSet<String>> =
        imports("crates.toml").into_iter().map(|(name, imports)| (format!("rdmesh-{name}"), imports)).collect();
    let actual = dependencies();
    for (package, imports) in actual.iter().filter(|(p, _)| !BESIDE.contains(&p.as_str())) {
        let allowed = allowed.get(package).unwrap_or_else(|| panic!("{package} is missing in the table"));
        for import in imports.iter().filter_map(|i| i.strip_prefix("rdmesh-")) {
            assert!(allowed.contains(import), "{package} may not import {import}");
        }
    }
    for package in allowed.keys() {
        assert!(actual.contains_key(package), "the table has {package}, the workspace has not");
    }
}

#[test]
fn rooms_of_the_engine_import_only_what_the_table_allows() {
    rooms_import_only_what_is_allowed("nic", Some("engine"));
}

#[test]
fn rooms_of_the_device_library_import_only_what_the_table_allows() {
    rooms_import_only_what_is_allowed("shim", None);
}

/// The rooms of a crate form layers; one of them, which may import all, stands above the table.
fn rooms_import_only_what_is_allowed(krate: &str, above: Option<&str>) {
    let modules = Modules::read(&root().join("crates").join(krate).join("src"));
    let (rooms, actual) = (imports(&format!("{krate}.toml")), modules.parts());
    for (room, imports) in actual.iter().filter(|(room, _)| above != Some(room.as_str())) {
        let allowed = rooms.get(room).unwrap_or_else(|| panic!("the room {room} of {krate} is missing in the table"));
        assert_eq!(imports.difference(allowed).collect::<Vec<_>>(), Vec::<&String>::new(), "{room} may not import it");
    }
    assert!(rooms.keys().eq(actual.keys()), "rooms of {krate}: {:?}, in the table: {:?}", actual.keys(), rooms.keys());
    for start in rooms.keys().filter(|room| above != Some(room.as_str())) {
        let (mut reached, mut next) = (BTreeSet::new(), vec![start.clone()]);
        while let Some(room) = next.pop() {
            for import in rooms.get(&room).into_iter().flatten() {
                assert!(import != start, "{start} and {room} of {krate} need each other");
                if reached.insert(import.clone()) {
                    next.push(import.clone());
                }
            }
        }
    }
}

#[test]
fn every_dependency_has_its_reason() {
    let listed = listed("dependencies.toml", "crates");
    let used: BTreeSet<String> = dependencies().into_values().flatten().filter(|d| !d.starts_with("rdmesh-")).collect();
    assert_eq!(
        used.difference(&listed).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "not listed in tests/allow/dependencies.toml"
    );
    assert_eq!(listed.difference(&used).collect::<Vec<_>>(), Vec::<&String>::new(), "listed but not used");
}

#[test]
fn unsafe_code_lies_only_in_the_named_modules() {
    let named = listed("unsafe.toml", "files");
    let has_unsafe = |text: &str| {
        let code = text.lines().map(|l| l.split("//").next().unwrap_or_default());
        code.flat_map(|l| l.split(|c: char| !c.is_alphanumeric() && c != '_')).any(|word| word == "unsafe")
    };
    let is_test = |path: &str| path.split('/').any(|part| part == "tests" || part == "tests.rs");
    let found: BTreeSet<String> =
        sources().into_iter().filter(|(path, text)| !is_test(path) && has_unsafe(text)).map(|(path, _)| path).collect();
    assert_eq!(
        found.difference(&named).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "unsafe code in modules that are not named"
    );
    assert_eq!(named.difference(&found).collect::<Vec<_>>(), Vec::<&String>::new(), "named, but without unsafe code");
}

#[test]
fn the_engine_touches_no_clock_and_no_unsafe_code() {
    for krate in ["verbs", "nic"] {
        let path = format!("crates/{krate}/");
        for (file, text) in sources().into_iter().filter(|(file, _)| file.starts_with(&path)) {
            assert!(!text.contains("extern crate std"), "{file} uses the standard library");
        }
        let lib = fs::read_to_string(root().join(path).join("src/lib.rs")).expect("a crate root");
        assert!(lib.contains("#![forbid(unsafe_code)]"), "{krate} must forbid unsafe code");
        // The compiler keeps clocks, threads, sockets and entropy out: they are in the standard library.
        assert!(lib.contains("#![cfg_attr(not(test), no_std)]"), "{krate} must be without the standard library");
    }
}

/// The router's parts, and files that import each other.
#[test]
fn the_routers_parts_import_only_what_the_table_allows() {
    let modules = Modules::read(&root().join("crates/router/src"));
    let allowed = imports("router.toml");
    let actual = modules.parts();
    for (part, imports) in actual {
        let allowed = allowed.get(part).unwrap_or_else(|| panic!("{part} is missing in the table"));
        assert_eq!(imports.difference(allowed).collect::<Vec<_>>(), Vec::<&String>::new(), "{part} may not import it");
    }
    for part in allowed.keys() {
        assert!(actual.contains_key(part), "the table has {part}, the router has not");
    }
    assert_eq!(modules.circles(), Vec::<Vec<String>>::new(), "files of the router that import each other");
}

/// A function that it replaced would be replaced by every library that uses it, and in their tests.
#[test]
fn the_base_of_preload_libraries_replaces_nothing() {
    for (file, text) in sources().into_iter().filter(|(file, _)| file.starts_with("crates/preload/")) {
        assert!(!text.contains("replace! {"), "{file} replaces functions");
    }
}

#[test]
fn what_libraries_read_from_the_environment_is_documented() {
    let (settings, page) = (read("crates/preload/src/settings.rs"), read("docs/settings.md"));
    let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
    let variables: BTreeSet<&str> = settings.split(|c| !is_name(c)).filter(|w| w.starts_with("RDMESH_")).collect();
    assert!(variables.len() >= 3, "{variables:?}");
    for variable in variables {
        assert!(page.contains(&format!("| `{variable}` |")), "docs/settings.md lacks {variable}");
    }
    for (file, text) in sources().into_iter().filter(|(file, _)| file.starts_with("crates/shim/src/")) {
        assert!(!text.contains("\"RDMESH_"), "{file} reads settings of its own");
    }
}

#[test]
fn files_stay_readable() {
    for (file, text) in sources() {
        assert!(text.lines().count() <= MAX_LINES, "{file} has {} lines: split it", text.lines().count());
    }
}

/// Objects stay objects: what has a hundred methods has no invariant that anyone can see.
#[test]
fn types_have_few_methods() {
    let sources = sources();
    for krate in ["nic", "router", "shim"] {
        let folder = format!("crates/{krate}/src/");
        let below = sources.iter().filter_map(|(file, text)| Some((file.strip_prefix(&folder)?, text.as_str())));
        let files = below.filter(|(path, _)| !path.contains("tests"));
        let counts = methods(files);
        assert!(counts.len() > 10, "{krate}: {counts:?}");
        for (name, count) in counts {
            assert!(count <= MAX_METHODS, "{krate}::{name} has {count} methods: split it");
        }
    }
}

/// A caller reads what `Pair { own, peer }` is, not what `(a, b)` is.
#[test]
fn parameters_have_names_instead_of_tuples() {
    let is_product = |file: &str| file.starts_with("crates/") && file.contains("/src/") && !file.contains("tests");
    let found = sources().into_iter().filter(|(file, _)| is_product(file)).map(|(file, text)| {
        let found = parameters::with_tuples(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        (file, found)
    });
    let (good, bad): (BTreeMap<_, _>, BTreeMap<_, _>) = found.partition(|(_, found)| found.is_empty());
    assert!(bad.is_empty(), "these take a tuple: make it a struct with named fields: {bad:?}");
    assert!(good.len() > 100, "only {} files", good.len());
    let tuples =
        parameters::with_tuples("fn a(_: &(u8, u8)) {} fn b(_: (), _: u8) {} impl X { fn c((d, e): (u8, u8)) {} }");
    assert_eq!(tuples.expect("Rust").len(), 2, "the check finds them");
}

/// A module with children is `foo/mod.rs`, not `foo.rs` beside `foo/`.
#[test]
fn modules_with_children_are_folders() {
    for (file, _) in sources() {
        let folder = file.trim_end_matches(".rs");
        assert!(!root().join(folder).is_dir(), "{file} lies beside {folder}/: move it to {folder}/mod.rs");
    }
}

/// Pages about the code: the map, and the folder with the rest.
fn pages() -> Vec<String> {
    let internals = fs::read_dir(root().join("docs/internals")).expect("the folder").flatten();
    let internals = internals.map(|page| format!("docs/internals/{}", page.file_name().to_string_lossy()));
    ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(str::to_owned).into_iter().chain(internals).collect()
}

#[test]
fn the_documents_name_files_that_exist() {
    for name in pages() {
        let text = read(&name);
        let folders = ["crates/", "tests/", "bench/", "docs/", "scripts/", "fuzz/", "examples/"];
        for path in names(&text.replace("```", ""))
            .iter()
            .filter(|n| folders.iter().any(|f| n.starts_with(f)) && !n.contains(['<', '*', ' ']))
        {
            assert!(root().join(path).exists(), "{name} names {path}, which does not exist");
        }
    }
}

/// The page is a map: it is read in ten minutes, and its table of crates is that of `tests/allow`.
#[test]
fn the_architecture_page_is_short_and_names_every_crate() {
    let page = read("ARCHITECTURE.md");
    let words = page.split_whitespace().count();
    assert!(words <= MAX_WORDS, "ARCHITECTURE.md has {words} words: what is more than a map belongs in docs/internals");
    for (name, krate) in allowed("crates.toml") {
        let row = format!("| `{name}` | {} |", krate["holds"].as_str().expect("a description"));
        assert!(page.contains(&row), "ARCHITECTURE.md lacks the row {row}");
    }
}

/// The walks through the code, each with its title and the functions that it names: file and name.
fn walks(document: &str) -> Vec<(String, Vec<(String, String)>)> {
    let (_, section) = document.split_once("\n## From function to function\n").expect("a section of walks");
    let section = section.split("\n## ").next().unwrap_or_default();
    let functions = |text: &str| {
        let names = text.split('`').skip(1).step_by(2);
        names.filter_map(|name| name.split_once("::").map(|(file, function)| (file.into(), function.into()))).collect()
    };
    let walk = |text: &str| (text.lines().next().unwrap_or_default().to_owned(), functions(text));
    section.split("\n### ").skip(1).map(walk).collect()
}

/// Whether a file defines a function.
fn defines(text: &str, function: &str) -> bool {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let mut after = code.filter_map(|line| line.split_once("fn ")).map(|(_, name)| name);
    after.any(|name| name.strip_prefix(function).is_some_and(|rest| rest.starts_with(['(', '<'])))
}

#[test]
fn the_walks_name_functions_that_exist() {
    let sources: BTreeMap<String, String> = sources().into_iter().collect();
    let walks = walks(&read("docs/internals/walks.md"));
    assert!(walks.len() >= 5, "{:?}", walks.iter().map(|(title, _)| title).collect::<Vec<_>>());
    for (title, functions) in walks {
        assert!(functions.len() >= 10, "{title} names {} functions", functions.len());
        for (file, function) in functions {
            let (krate, path) = file.split_once('/').unwrap_or_else(|| panic!("{title}: {file} is in no crate"));
            let path = format!("crates/{krate}/src/{path}");
            let text = sources.get(&path).unwrap_or_else(|| panic!("{title}: there is no {path}"));
            assert!(defines(text, &function), "{title}: {path} has no function {function}");
        }
    }
    assert!(!defines("// fn gone()\nfn goner() {}", "gone"));
}

/// Programs that attack the router with messages of their own are let in: they have the version of the present library.
#[test]
fn attackers_speak_the_present_protocols() {
    let version_in = |file: &str| {
        let source = read(file);
        let (_, rest) = source.split_once("pub const VERSION: u32 = ").expect("the version");
        rest.split_once(';').expect("the end of the statement").0.to_owned()
    };
    let streams = version_in("crates/streams/src/message.rs");
    let hello = format!("struct.pack(\"=II\", 1, {streams})");
    assert!(read("tests/programs/sockets/streams.py").contains(&hello), "streams.py does not say {hello}");
    let version = version_in("crates/uverbs/src/session/mod.rs");
    for program in ["greedy", "hostile"] {
        let source = read(&format!("tests/programs/{program}.c"));
        assert!(source.contains(&format!("VERSION = {version},")), "{program}.c has another version than {version}");
    }
}
