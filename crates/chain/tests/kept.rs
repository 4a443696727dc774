//! The listings of all offloads, as they are kept in `tests/golden`. `UPDATE_GOLDEN=1 cargo test` writes them anew.

mod common;

use common::*;
use rdmesh_chain::assemble::assemble;
use rdmesh_chain::build::Design;
use std::fs;
use std::path::Path;

#[test]
fn listings_are_those_that_are_kept_and_assemble_to_the_same_chain() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for (name, program) in offloads() {
        for (design, kind) in [(Design::Local, "local"), (Design::Portable, "portable")] {
            let chain = program.lower(design);
            let text = chain.to_string();
            assert_eq!(assemble(&text).unwrap(), chain, "{text}");
            let file = folder.join(format!("{name}.{kind}.chain"));
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                fs::write(&file, &text).unwrap();
            }
            let kept = fs::read_to_string(&file).unwrap_or_default();
            assert_eq!(text, kept, "{} differs", file.display());
        }
    }
}
