//! The list of mutations is up to date: `./dev mutants` finds the text of each exactly once.

use rdmesh_tests::root;
use std::collections::BTreeSet;
use std::fs;

struct Mutation {
    name: String,
    file: String,
    tests: Vec<String>,
    old: String,
    new: String,
}

/// The mutations of a list; its first paragraph is a description.
fn mutations(list: &str) -> Vec<Mutation> {
    list.split("\n\n").skip(1).map(mutation).collect()
}

fn mutation(paragraph: &str) -> Mutation {
    let of = |prefix: &str| paragraph.lines().filter_map(|line| line.strip_prefix(prefix)).collect::<Vec<_>>();
    let text = |prefix| of(prefix).join("\n");
    let tests = text("by: ").split_whitespace().map(str::to_owned).collect();
    Mutation { name: text("== "), file: text("file: "), tests, old: text("- "), new: text("+ ") }
}

fn lists() -> Vec<Mutation> {
    let folder = fs::read_dir(root().join("tests/mutants")).expect("the lists");
    let files = folder.map(|entry| fs::read_to_string(entry.expect("a list").path()).expect("text"));
    files.flat_map(|list| mutations(&list)).collect()
}

#[test]
fn every_mutation_fits_the_code() {
    let mutations = lists();
    assert!(mutations.len() >= 40, "only {} mutations", mutations.len());
    for Mutation { name, file, old, new, .. } in &mutations {
        let code = fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{name}: {file}: {e}"));
        assert!(!old.is_empty() && old != new, "{name} changes nothing");
        assert_eq!(code.matches(old.as_str()).count(), 1, "{name}: out of date: how often {file} has\n{old}");
    }
}

#[test]
fn every_mutation_has_a_name_of_its_own_and_tests_that_exist() {
    let mutations = lists();
    let names: BTreeSet<&str> = mutations.iter().map(|mutation| mutation.name.as_str()).collect();
    assert_eq!(names.len(), mutations.len(), "two mutations have one name");
    for Mutation { name, tests, .. } in &mutations {
        assert!(!tests.is_empty(), "{name} names no test");
        for test in tests {
            let target = test.split("::").next().unwrap_or_default();
            let paths = match target.split_once('/') {
                Some((krate, target)) => {
                    let target = format!("crates/{krate}/tests/{target}");
                    [format!("{target}.rs"), format!("{target}/main.rs")]
                }
                None => [format!("crates/{target}/src/lib.rs"), String::new()],
            };
            let exists = |path: &String| !path.is_empty() && root().join(path).exists();
            assert!(paths.iter().any(exists), "{name}: {test} is in no file of {paths:?}");
        }
    }
}
