//! The header `rdmesh_chain.h`: it compiles everywhere, and is what the library has.

use rdmesh_tests::{product, root};
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

const HEADER: &str = "rdmesh_chain.h";

/// Functions that the header declares.
fn declared() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("include").join(HEADER)).expect("the header");
    let name = |part: &str| {
        let head = part.split('(').next()?;
        head.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned)
    };
    // Behind each mark; the first one is where the mark is defined.
    text.split("RDMESH_API ").skip(2).filter_map(name).collect()
}

/// Functions of the chain API that the library exports.
fn exported() -> BTreeSet<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(product("librdmesh.so")).output();
    let output = String::from_utf8(output.expect("nm of binutils").stdout).expect("names");
    let names = output.lines().filter_map(|line| line.split_whitespace().nth(2)).map(|name| name.to_owned());
    names.filter(|name| name.starts_with("rdmesh_") && !["rdmesh_malloc", "rdmesh_free"].contains(&&name[..])).collect()
}

#[test]
fn header_and_library_agree() {
    let (declared, exported) = (declared(), exported());
    assert!(declared.len() > 20, "{declared:?}");
    assert_eq!(declared, exported);
}

#[test]
fn the_header_compiles_as_c_and_as_cpp() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (compiler, standard, name) in [("cc", "-std=c11", "it.c"), ("c++", "-std=c++17", "it.cc")] {
        let source = folder.path().join(name);
        let text = format!("#include <{HEADER}>\nint main(void) {{ return rdmesh_chain_is_available(); }}\n");
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
