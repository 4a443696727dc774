//! The C programs under `tests/programs`, compiled once per run against the distribution's libibverbs.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Path of the compiled helper program `name`.
pub fn helper(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(build_all).join(name)
}

fn build_all() -> PathBuf {
    let source = crate::root().join("tests/programs");
    let target = crate::root().join("target/test-programs");
    let made = Command::new("make")
        .arg("--quiet")
        .arg("--jobs=2")
        .arg("-C")
        .arg(&source)
        .arg(format!("OUT={}", target.display()))
        .output()
        .expect("make can be started");
    assert!(made.status.success(), "compiling the test programs:\n{}", String::from_utf8_lossy(&made.stderr));
    target
}
