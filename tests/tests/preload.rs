//! Preloading into programs of every kind: their view of `/sys`, sanitizers, valgrind, and programs that cannot load the
//! library.

use rdmesh_tests::{Endpoint, Lab, helper, sanitized_helper, system};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const SKIP: i32 = 77;

fn endpoint() -> Endpoint {
    Endpoint::at("a", "blue", "10.7.0.2")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// As `ibstatus` and its like do it, and as Mooncake finds the bus that a device is on.
#[test]
fn shells_walk_the_tree_as_a_kernels() {
    let lab = Lab::start();
    let shell = |script: &str| lab.run_in(&endpoint(), LIMIT, &["bash", "-c", script]).ok().text;
    assert_eq!(shell("realpath /sys/class/infiniband/rxe0/../.."), "/sys/devices/virtual\n");
    assert_eq!(shell("readlink /sys/class/infiniband/rxe0"), "../../devices/virtual/infiniband/rxe0\n");
    let walked = shell(
        "cd /sys/class/infiniband/rxe0 && pwd && pwd -P && cat ports/1/state && cd ports/1/gids/.. && pwd -P && \
         cat ../../node_type && ls -d /sys/class/infini* && ls /sys/class | grep infini",
    );
    let expected = "/sys/class/infiniband/rxe0\n/sys/devices/virtual/infiniband/rxe0\n4: ACTIVE\n\
                    /sys/devices/virtual/infiniband/rxe0/ports/1\n1: CA\n/sys/class/infiniband\n\
                    /sys/class/infiniband_verbs\ninfiniband\ninfiniband_verbs\n";
    assert_eq!(walked, expected);
    assert_eq!(
        shell("cd /sys/class/infiniband && exec cat rxe0/ports/1/state"),
        "4: ACTIVE\n",
        "a new program is there too"
    );
    assert_eq!(shell("find /sys/class/ -maxdepth 2 -name 'rxe*'"), "/sys/class/infiniband/rxe0\n");
    assert_eq!(shell("cat /sys/class/infiniband/rxe0/device/{net/eth0/address,numa_node} | wc -l"), "2\n");
    assert_eq!(shell("cat /sys/dev/char/231:192/ibdev"), "rxe0\n");
    assert_eq!(shell("echo x 2>&1 >/sys/class/infiniband/rxe0/node_desc | grep -c 'Permission denied'"), "1\n");
}

#[test]
fn programs_under_address_sanitizer_run() {
    let lab = Lab::start();
    let verify = sanitized_helper("verify");
    let verify = text(&verify);
    let cases =
        String::from_utf8(Command::new(verify).arg("--list").output().expect("it starts").stdout).expect("names");
    let failed: Vec<String> = cases
        .lines()
        .filter_map(|case| {
            let output = lab.run_in(&endpoint(), LIMIT, &[verify, case]);
            let holds = matches!(output.status.code(), Some(0 | SKIP));
            (!holds).then(|| format!("{case}: {}: {}", output.status, output.text.trim()))
        })
        .collect();
    assert!(cases.lines().count() > 40, "the list of cases:\n{cases}");
    assert!(failed.is_empty(), "{} cases do not hold:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn valgrind_finds_no_error_of_the_librarys() {
    let lab = Lab::start();
    let unwritten = helper("unwritten");
    let valgrind = ["valgrind", "--quiet", "--error-exitcode=9"];
    let output = lab.run_in(&endpoint(), LIMIT, &[&valgrind[..], &[text(&unwritten)]].concat()).ok();
    assert_eq!(output.text, "registered\n");
    // Polling, too: it asks for the time.
    let server = lab.start_in(&endpoint(), &[&valgrind[..], &["ibv_rc_pingpong", "-g", "1", "-n", "50"]].concat());
    let mut server = server;
    server.wait_listening(18515);
    let client = ["ibv_rc_pingpong", "-g", "1", "-n", "50", "10.7.0.2"];
    lab.run_in(&Endpoint::at("b", "blue", "10.7.0.3"), LIMIT, &[&valgrind[..], &client].concat()).ok();
    server.finish(LIMIT).ok();
}

/// Messages about `command` on stderr; standard output is the program's own.
fn said(lab: &Lab, command: &[&str]) -> String {
    let mut run = lab.rdmesh();
    run.args(["run", "--"]).args(command);
    let output = run.output().expect("rdmesh can be started");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "thread 5, child 3, device none\n", "it runs all the same");
    String::from_utf8(output.stderr).expect("a message")
}

#[test]
fn a_program_that_cannot_load_the_library_is_named() {
    let lab = Lab::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let compile = |name: &str, options: &[&str]| -> PathBuf {
        let program = folder.path().join(name);
        let source = rdmesh_tests::root().join("tests/programs/plain.c");
        let made = Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(source).args(options).output();
        let made = made.expect("a compiler");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        program
    };
    for (name, option) in [("static", "-static"), ("static-pie", "-static-pie")] {
        let program = compile(name, &[option, "-pthread"]);
        let message = said(&lab, &[text(&program)]);
        assert!(message.starts_with("rdmesh: ") && message.lines().count() == 1, "{message}");
        assert!(message.contains(&format!("{name} sees no RDMA device: it is statically linked")), "{message}");
    }
    let dynamic = compile("dynamic", &["-pthread"]);
    let quiet = lab.run_in(&Endpoint::new("d"), LIMIT, &[text(&dynamic)]).ok().text;
    assert_eq!(quiet, "thread 5, child 3, device rxe0\n", "nothing is said of a program that can load it");
    if system::is_root() {
        chown(&dynamic, Some(65534), None).expect("the file is ours");
        fs::set_permissions(&dynamic, fs::Permissions::from_mode(0o4755)).expect("the file is ours");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("the folder is ours");
        let message = said(&lab, &[text(&dynamic)]);
        assert!(message.contains("sees no RDMA device: it changes its user"), "{message}");
    }
}

#[test]
fn the_limit_on_locked_memory_is_in_nobodys_way() {
    let lab = Lab::start();
    let run = |script: &str| {
        let command = "ulimit -l 64 && exec \"$@\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", command, "sh"]).arg(lab.rdmesh().get_program());
        shell.env("RDMESH_STATE", lab.dir()).args(["run", "--", "bash", "-c", script]);
        let output = shell.output().expect("a shell");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    // As far as it may be: not all of root's rights are there in every container.
    let highest = "ulimit -l 64; ulimit -l unlimited 2>/dev/null; ulimit -l";
    let highest = Command::new("bash").args(["-c", highest]).output().expect("a shell").stdout;
    assert_eq!(run("ulimit -l"), String::from_utf8(highest).expect("a number"));
    // The limit as a program with libibverbs sees it, and as others see it.
    let ask = "import ctypes, resource, sys\n\
               if len(sys.argv) > 1: ctypes.CDLL('libibverbs.so.1')\n\
               print(resource.getrlimit(resource.RLIMIT_MEMLOCK), resource.prlimit(0, resource.RLIMIT_MEMLOCK))\n\
               resource.setrlimit(resource.RLIMIT_MEMLOCK, resource.getrlimit(resource.RLIMIT_MEMLOCK))\n";
    let asked = |more: &str| {
        let drop =
            if system::is_root() { "setpriv --bounding-set -sys_resource --inh-caps -sys_resource " } else { "" };
        run(&format!("ulimit -l 64; exec {drop}python3 -c \"{ask}\" {more}"))
    };
    assert_eq!(asked(""), "(65536, 65536) (65536, 65536)\n");
    assert_eq!(asked("verbs"), "(-1, -1) (-1, -1)\n");
}
