//! Compilation of the C programs under `tests/programs` and of our examples, once per run, against the distribution's packages.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Path of the compiled helper program `name`.
pub fn helper(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| build_all("tests/programs")).join(name)
}

/// The helper program `name`, compiled for AddressSanitizer.
pub fn sanitized_helper(name: &str) -> PathBuf {
    let program = crate::root().join("target/test-programs/sanitized").join(name);
    let mut make = Command::new("make");
    make.args(["--quiet", "CFLAGS=-O1 -g -fsanitize=address", "-C"]).arg(crate::root().join("tests/programs"));
    make.arg(format!("OUT={}", crate::root().join("target/test-programs/sanitized").display())).arg(&program);
    run(&mut make, "compiling for AddressSanitizer");
    program
}

/// The folder with the MPI program, one for each MPI.
pub fn mpi_programs() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| build_all("tests/programs/mpi")).clone()
}

/// Path of the compiled program of cases about sockets.
pub fn socket_cases() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| build_all("tests/programs/sockets")).join("sockets")
}

/// Path of the compiled test program or example `name` of the chain API.
pub fn chain_program(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = || {
        let target = crate::root().join("target/test-programs/chains");
        let mut make = Command::new("make");
        make.args(["--quiet", "--jobs=2", "-C"]).arg(crate::root().join("tests/programs/chains"));
        run(make.arg(format!("OUT={}", target.display())), "compiling the chain API's programs");
        target
    };
    FOLDER.get_or_init(folder).join(name)
}

/// Builds an example in Rust, in a target folder of its own. Returns the folder of its programs.
pub fn example(name: &str) -> PathBuf {
    let manifest = crate::root().join("examples").join(name).join("Cargo.toml");
    let target = manifest.with_file_name("target");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--release", "--locked", "--all-features", "--manifest-path"]).arg(manifest);
    run(cargo.arg("--target-dir").arg(&target), "compiling the example");
    target.join("release")
}

fn build_all(source: &str) -> PathBuf {
    let target = crate::root().join("target/test-programs");
    let mut make = Command::new("make");
    make.args(["--quiet", "--jobs=2", "-C"]).arg(crate::root().join(source));
    run(make.arg(format!("OUT={}", target.display())), "compiling the test programs");
    target
}

/// Runs the compiler; one at a time, because other tests may want the same programs at this moment.
fn run(command: &mut Command, what: &str) {
    let folder = crate::root().join("target");
    let lock = File::create(folder.join("test-programs.lock")).expect("the target folder is there");
    lock.lock().expect("the file system has locks");
    let made = command.output().unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(made.status.success(), "{what}:\n{}", String::from_utf8_lossy(&made.stderr));
}
