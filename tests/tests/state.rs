//! Other users of a machine: their files, locks and names harm no router.

use rdmesh_tests::{Endpoint, Lab, Output, Program, helper, product, system};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
const ATTACKER: u32 = 65_533;
const VICTIM: u32 = 65_534;
/// Listens where a router would, and says what it is told.
const FAKE: &str = "import os, socket, sys
s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o777); s.listen()
print('listening', flush=True)
while True:
    c, _ = s.accept(); d = c.recv(4096)
    if d: print('told', d, flush=True)
    c.close()";

/// A folder like /tmp, in which two users meet.
struct Machine {
    folder: TempDir,
}

impl Machine {
    /// None, and a line that says why, where there is only one user.
    fn new() -> Option<Self> {
        if !system::is_root() {
            eprintln!("skipped: to be two users needs root");
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let machine = Self { folder };
        set_mode(machine.folder.path(), 0o755);
        fs::create_dir(machine.tmp()).expect("the folder is ours");
        set_mode(&machine.tmp(), 0o1777);
        for file in ["rdmesh", "librdmesh.so"] {
            fs::copy(product(file), machine.folder.path().join(file)).expect("the folder is ours");
        }
        Some(machine)
    }

    fn tmp(&self) -> PathBuf {
        self.folder.path().join("tmp")
    }

    /// The state directory of the victim, if it gets it.
    fn state(&self) -> PathBuf {
        self.tmp().join("rdmesh-victim")
    }

    fn as_user<S: AsRef<OsStr>>(&self, uid: u32, command: &[S]) -> Command {
        let mut setpriv = Command::new("setpriv");
        setpriv.args([format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".to_owned()]).args(command);
        setpriv.env("RDMESH_STATE", self.state()).env_remove("XDG_RUNTIME_DIR").current_dir("/");
        setpriv
    }

    fn rdmesh(&self, uid: u32, arguments: &[&str]) -> Output {
        let program = self.folder.path().join("rdmesh");
        let command: Vec<&OsStr> = [program.as_os_str()].into_iter().chain(arguments.iter().map(OsStr::new)).collect();
        Program::start(self.as_user(uid, &command)).finish(LIMIT)
    }

    /// Every command of the victim's is refused with a text that holds `why`, and says what to do.
    fn expect_refusals(&self, uid: u32, why: &str) {
        let verbs: [&[&str]; 10] = [
            &["up", "--rootless"],
            &["router", "--rootless"],
            &["ps"],
            &["top", "--count", "1"],
            &["stats"],
            &["run", "--host-network", "--", "true"],
            &["endpoint", "add", "a"],
            &["container-args", "a"],
            &["doctor"],
            &["down"],
        ];
        for verb in verbs {
            let output = self.rdmesh(uid, verb);
            assert_eq!(output.status.code(), Some(1), "{verb:?}: {}", output.text);
            assert!(output.text.contains(why), "{verb:?}: {}", output.text);
            assert!(output.text.contains("--state-dir"), "{verb:?}: {}", output.text);
        }
    }

    /// Starts a socket of user `uid` in the place of the API's.
    fn fake_router(&self, uid: u32) -> Program {
        let socket = self.state().join("api.sock");
        let mut fake = self.as_user(uid, &["/usr/bin/python3", "-c", FAKE]);
        fake.arg(socket);
        let mut fake = Program::start(fake);
        assert_eq!(fake.next_line(LIMIT), "listening");
        fake
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
}

fn directory_of(path: &Path, uid: u32, mode: u32) {
    fs::create_dir(path).expect("it is new");
    chown(path, Some(uid), Some(uid)).expect("root gives away what it likes");
    set_mode(path, mode);
}

#[test]
fn a_directory_that_another_user_made_first_is_not_used() {
    let Some(machine) = Machine::new() else { return };
    let precious = machine.folder.path().join("precious");
    fs::write(&precious, "precious").expect("the folder is ours");
    chown(&precious, Some(VICTIM), Some(VICTIM)).expect("root");
    set_mode(&precious, 0o600);
    directory_of(&machine.state(), ATTACKER, 0o777);
    symlink(&precious, machine.state().join("router.log")).expect("the link is new");
    symlink(&precious, machine.state().join("lock")).expect("the link is new");
    let fake = machine.fake_router(ATTACKER);
    machine.expect_refusals(VICTIM, "belongs to user 65533");
    assert!(!fake.text().contains("told"), "{}", fake.text());
    assert_eq!(fs::read_to_string(&precious).expect("root"), "precious");
    // Another directory is no problem, as the text has said.
    let own = machine.tmp().join("own");
    let own = own.to_str().expect("a plain path");
    let up = machine.rdmesh(VICTIM, &["--state-dir", own, "up", "--rootless"]).ok().text;
    assert!(up.contains("The router is running"), "{up}");
    machine.rdmesh(VICTIM, &["--state-dir", own, "down"]).ok();
}

#[test]
fn a_link_in_the_directorys_place_is_not_followed() {
    let Some(machine) = Machine::new() else { return };
    let target = machine.tmp().join("target");
    directory_of(&target, VICTIM, 0o700);
    symlink(&target, machine.state()).expect("the link is new");
    machine.expect_refusals(VICTIM, "symbolic link");
    assert_eq!(fs::read_dir(target).expect("root").count(), 0);
}

#[test]
fn a_directory_that_others_may_write_is_not_used() {
    let Some(machine) = Machine::new() else { return };
    directory_of(&machine.state(), VICTIM, 0o777);
    let fake = machine.fake_router(ATTACKER);
    machine.expect_refusals(VICTIM, "may be written by other users");
    // With the mode mended, the socket's maker is known by itself.
    set_mode(&machine.state(), 0o755);
    let ps = machine.rdmesh(VICTIM, &["ps"]);
    assert!(!ps.status.success() && ps.text.contains("served by user 65533"), "{}", ps.text);
    assert!(!fake.text().contains("told"), "{}", fake.text());
}

#[test]
fn root_asks_nothing_of_a_users_router() {
    let Some(machine) = Machine::new() else { return };
    machine.rdmesh(VICTIM, &["up", "--rootless"]).ok();
    machine.rdmesh(VICTIM, &["ps"]).ok();
    machine.expect_refusals(0, "belongs to user 65534");
    let advice = machine.rdmesh(0, &["run", "--host-network", "true"]).text;
    assert!(advice.contains("sudo -u '#65534'"), "{advice}");
    machine.rdmesh(VICTIM, &["down"]).ok();
}

#[test]
fn nobody_else_locks_or_reads_what_is_roots() {
    if !system::is_root() {
        return eprintln!("skipped: a router of root's needs root");
    }
    let lab = Lab::start();
    // The temporary folder is root's alone; /run is not.
    set_mode(lab.dir().parent().expect("it has one"), 0o755);
    let attack = |script: &str| {
        let mut shell = Command::new("setpriv");
        let user = [format!("--reuid={ATTACKER}"), format!("--regid={ATTACKER}"), "--clear-groups".to_owned()];
        shell.args(user).args(["sh", "-c", script]).current_dir(lab.dir());
        Program::start(shell).finish(LIMIT)
    };
    assert!(attack("ls api.sock").status.success(), "it gets as far as here");
    for script in
        ["flock -n -s lock true", "flock -n -s router.log true", "cat router.log", "cat store", "ls endpoints"]
    {
        let output = attack(script);
        assert!(!output.status.success() && output.text.contains("Permission denied"), "{script}: {}", output.text);
    }
}

#[test]
fn a_programs_name_is_no_command_to_the_operators_terminal() {
    let lab = Lab::start();
    let program = lab.shared().join(OsStr::from_bytes(b"\x1b[2J\nev\xe2\x80\xaeil"));
    let idle = lab.share(&helper("idle"));
    fs::rename(idle, &program).expect("the folder is ours");
    let mut evil = lab.start_in(&Endpoint::new("evil"), &[program.as_os_str(), OsStr::new("1")]);
    assert_eq!(evil.next_line(LIMIT), "idle");
    let shown = "\\x1b[2J\\x0aev\\u{202e}il";
    let (ps, top) = (lab.command(&["ps"]).ok().text, lab.command(&["top", "--count", "1"]).ok().text);
    let contexts = lab.api("/v1/contexts");
    assert_eq!(contexts[0]["command"], shown);
    // The doctor reports failed requests, with the program's name.
    let greedy = ["endpoint", "add", "small", "--max-contexts", "1"];
    lab.command(&greedy).ok();
    evil.close_stdin();
    evil.finish(LIMIT).ok();
    lab.run_in(&Endpoint::new("evil"), LIMIT, &[program.as_os_str(), OsStr::new("100000")]);
    let doctor = lab.command(&["doctor"]).text;
    for text in [&ps, &top, &doctor] {
        assert!(text.contains(shown), "{text}");
        assert!(!text.contains(['\x1b', '\u{202e}']), "{text:?}");
    }
    let log = fs::read_to_string(lab.dir().join("router.log")).expect("root reads it");
    assert!(!log.contains(['\x1b', '\u{202e}']), "{log:?}");
}

#[test]
fn a_service_manager_hears_of_the_beginning_and_the_end() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path().join("notify");
    let manager = UnixDatagram::bind(&at).expect("the folder is ours");
    manager.set_read_timeout(Some(LIMIT)).expect("a limit");
    let mut router = Command::new(product("rdmesh"));
    router.arg("--state-dir").arg(folder.path().join("state")).args(["router", "--rootless"]).env("NOTIFY_SOCKET", &at);
    let mut router = Program::start(router);
    let hears = |state: &str| {
        let mut message = [0; 100];
        let len = manager.recv(&mut message).expect("it tells");
        assert_eq!(String::from_utf8_lossy(&message[..len]).trim(), state);
    };
    hears("READY=1");
    let mut ps = Command::new(product("rdmesh"));
    ps.arg("--state-dir").arg(folder.path().join("state")).arg("ps");
    Program::start(ps).finish(LIMIT).ok();
    router.terminate(LIMIT);
    hears("STOPPING=1");
}
