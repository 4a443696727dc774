//! The headers of what programs call: they compile everywhere, and are what the library has.

use rdmesh_tests::{product, root};
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

const HEADERS: [&str; 2] = ["rdmesh_chain.h", "rdmesh_linger.h"];

/// Functions that the headers declare.
fn declared() -> BTreeSet<String> {
    let name = |part: &str| {
        let head = part.split('(').next()?;
        head.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned)
    };
    let declared = |header| {
        let text = fs::read_to_string(root().join("include").join(header)).expect("the header");
        // Behind each mark; the first one is where the mark is defined.
        text.split("RDMESH_API ").skip(2).filter_map(name).collect::<Vec<_>>()
    };
    HEADERS.into_iter().flat_map(declared).collect()
}

/// Functions that the library exports, apart from those of `rdmesh.h`.
fn exported() -> BTreeSet<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(product("librdmesh.so")).output();
    let output = String::from_utf8(output.expect("nm of binutils").stdout).expect("names");
    let names = output.lines().filter_map(|line| line.split_whitespace().nth(2)).map(|name| name.to_owned());
    names.filter(|name| name.starts_with("rdmesh_") && !["rdmesh_malloc", "rdmesh_free"].contains(&&name[..])).collect()
}

#[test]
fn headers_and_library_agree() {
    let (declared, exported) = (declared(), exported());
    assert!(declared.len() > 20, "{declared:?}");
    assert_eq!(declared, exported);
}

#[test]
fn the_headers_compile_as_c_and_as_cpp() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (compiler, standard, name) in [("cc", "-std=c11", "it.c"), ("c++", "-std=c++17", "it.cc")] {
        let source = folder.path().join(name);
        let text = HEADERS.map(|header| format!("#include <{header}>\n")).concat();
        let text = format!("{text}int main(void) {{ return rdmesh_chain_is_available() || rdmesh_linger; }}\n");
        fs::write(&source, text).expect("a temporary file");
        let program = folder.path().join("it");
        let mut command = Command::new(compiler);
        command.args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"]).arg(root().join("include"));
        let made = command.arg("-o").arg(&program).arg(&source).output().expect("a compiler");
        assert!(made.status.success(), "{compiler}:\n{}", String::from_utf8_lossy(&made.stderr));
        // Without the library it runs, and says that there is none.
        assert_eq!(Command::new(&program).status().expect("it starts").code(), Some(0), "{compiler}");
    }
}
