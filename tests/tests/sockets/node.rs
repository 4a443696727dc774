//! Node's own tests of its network modules, which pass on rings where they pass on TCP.

use crate::accelerated;
use rdmesh_tests::{Namespace, Program};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Beginnings of the names of the tests that have to do with TCP.
const ABOUT: [&str; 8] = ["net", "http", "https", "tls", "cluster", "pipe", "tcp", "child-process"];
/// Of a test, which takes some of them at most.
const SECONDS: &str = "30";
const LIMIT: Duration = Duration::from_secs(60);
/// How `RDMESH_UPGRADE` is set.
const MODES: [&str; 3] = ["never", "0", "3"];
/// Without the library.
const ON_TCP: &str = "";
/// Processors that the tests use: each keeps to ports of its own.
const THREADS: usize = 2;

/// Where the tests run: a network of their own, with loopback alone.
struct Node {
    tests: PathBuf,
    namespace: Namespace,
}

impl Node {
    /// Files of the tests, those that may run beside each other first.
    fn files(&self) -> [Vec<PathBuf>; 2] {
        ["parallel", "sequential"].map(|folder| {
            let entries = fs::read_dir(self.tests.join("test").join(folder)).expect("the tests are there");
            let paths = entries.map(|entry| entry.expect("the folder can be read").path());
            let mut files: Vec<PathBuf> = paths.filter(|path| is_about_tcp(path)).collect();
            files.sort();
            files
        })
    }

    /// Whether a test passes in a mode.
    fn passes(&self, file: &Path, mode: &str, thread: usize) -> bool {
        let folder = tempfile::tempdir().expect("a folder");
        let source = fs::read_to_string(file).unwrap_or_default();
        let flags = source.lines().find_map(|line| line.strip_prefix("// Flags: ")).unwrap_or_default();
        // Some hang where others fail.
        let mut words: Vec<String> = ["timeout", "--kill-after=5", SECONDS, "node"].map(str::to_owned).to_vec();
        words.extend(flags.split_whitespace().map(str::to_owned));
        words.push(file.display().to_string());
        if mode != ON_TCP {
            let accel = accelerated(&words);
            let program = [accel.get_program()].into_iter().chain(accel.get_args());
            words = program.map(|word| word.to_str().expect("plain words").to_owned()).collect();
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = self.namespace.command(&words);
        command.current_dir(&self.tests).env("NODE_TEST_DIR", folder.path());
        command.env("TEST_THREAD_ID", (thread + 1).to_string()).env("RDMESH_UPGRADE", mode);
        Program::start(command).finish(LIMIT).status.success()
    }

    /// Modes in which a test fails twice that passes on TCP: some depend on time. None where it fails there.
    fn failures(&self, file: &Path, thread: usize) -> Option<Vec<String>> {
        let passes = |mode: &str| self.passes(file, mode, thread);
        if !passes(ON_TCP) {
            return None;
        }
        let modes = MODES.into_iter().filter(|mode| !passes(mode) && !passes(mode));
        Some(modes.map(|mode| format!("{mode}: {}", file.display())).collect())
    }
}

fn is_about_tcp(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let about = name.strip_prefix("test-").unwrap_or_default();
    let is_program = name.ends_with(".js") || name.ends_with(".mjs");
    is_program && ABOUT.iter().any(|word| about.strip_prefix(word).is_some_and(|rest| rest.starts_with(['-', '.'])))
}

#[test]
fn suites_of_node_pass_as_on_tcp() {
    let Some(tests) = std::env::var_os("RDMESH_NODE_TESTS").filter(|_| rdmesh_tests::all()) else {
        return println!("only in the long form: `./dev test sockets --all`");
    };
    let node = Node { tests: tests.into(), namespace: Namespace::new() };
    let up = node.namespace.command(&["ip", "link", "set", "lo", "up"]).status();
    assert!(up.is_ok_and(|status| status.success()));
    let [parallel, sequential] = node.files();
    assert!(parallel.len() > 300, "{}", parallel.len());
    eprintln!("{} tests of Node", parallel.len() + sequential.len());
    let (passed, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let run = |files: &Mutex<std::vec::IntoIter<PathBuf>>, thread| {
        while let Some(file) = { files.lock().expect("no test panics with it").next() } {
            let Some(failures) = node.failures(&file, thread) else { continue };
            passed.fetch_add(1, Ordering::Relaxed);
            failed.lock().expect("likewise").extend(failures);
        }
    };
    let files = Mutex::new(parallel.into_iter());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (run, files) = (&run, &files);
            scope.spawn(move || run(files, thread));
        }
    });
    run(&Mutex::new(sequential.into_iter()), 0);
    let (passed, failed) = (passed.into_inner(), failed.into_inner().expect("all have ended"));
    eprintln!("{passed} of them pass on TCP");
    assert!(passed > 300 && failed.is_empty(), "{} fail on rings:\n{}", failed.len(), failed.join("\n"));
}
