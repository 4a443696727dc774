//! Virtual machine with a stock kernel and its rdma_rxe, as the other end of tests of interoperability.
//!
//! Its kernel and file system are made by `scripts/guest.sh`, which says in `RDMESH_GUEST` where they are. An agent in it
//! runs commands for the test; boot takes two seconds.

use crate::program::{Output, Program};
use crate::system;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

/// Reason why no guest can run here; `None` where one can. In CI it is a failure.
pub fn unavailable() -> Option<String> {
    let why = if std::env::var_os("RDMESH_GUEST").is_none() {
        "no guest has been prepared: run this with `./dev test rxe` or `./dev test vm`".to_owned()
    } else if !system::is_root() {
        "needs root, for a network namespace".to_owned()
    } else {
        return None;
    };
    assert!(std::env::var_os("CI").is_none(), "{why}");
    Some(why)
}

/// A network for guests, in a network namespace of its own, which has the addresses number 1 in it.
pub struct Lan {
    holder: Program,
}

impl Lan {
    /// Makes one. It goes when this is dropped, or the test's process ends, and nothing is in it any more.
    pub fn start() -> Self {
        let script = format!(
            "ip link set lo up && ip link add lan type bridge mcast_snooping 0 && echo 0 >/proc/sys/net/ipv6/conf/lan/accept_dad && \
             ip link set lan up && ip address add {}/24 dev lan && ip address add {}/64 dev lan && \
             echo ready && exec cat",
            Self::ipv4(1),
            Self::ipv6(1)
        );
        let mut holder = Command::new("unshare");
        holder.args(["--net", "--", "sh", "-c", &script]);
        let mut holder = Program::start(holder);
        assert_eq!(holder.next_line(Duration::from_secs(10)), "ready");
        Self { holder }
    }

    /// Moves the calling thread into the namespace; what it starts from now on is there too.
    pub fn enter(&self) {
        let namespace = fs::File::open(format!("/proc/{}/ns/net", self.holder.pid())).expect("its holder runs");
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("we are root");
    }

    /// The IPv4 address number `number`.
    pub fn ipv4(number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 9, 0, number)
    }

    /// The IPv6 address number `number`.
    pub fn ipv6(number: u8) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, number.into())
    }
}

/// A running virtual machine. It is killed on drop.
pub struct Guest {
    number: u8,
    qemu: Child,
    commands: Mutex<ChildStdin>,
    heard: Arc<Heard>,
    reader: Option<JoinHandle<()>>,
    last_job: AtomicU32,
    folder: TempDir,
}

/// A command that runs in a [`Guest`]. It is killed on drop.
pub struct Job<'a> {
    guest: &'a Guest,
    id: u32,
    what: String,
}

/// Messages of the agent.
#[derive(Default)]
struct Heard {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_ready: bool,
    is_gone: bool,
    jobs: BTreeMap<u32, JobState>,
}

#[derive(Default)]
struct JobState {
    text: String,
    ended: Option<ExitStatus>,
}

impl Guest {
    /// Begins to boot one on the [`Lan`] that the calling thread has entered, with its addresses `number` (2 to 254).
    pub fn boot(number: u8) -> Self {
        let folder = folder();
        let mut command = Command::new("sh");
        let script = format!(
            "ip tuntap add dev tap{number} mode tap && ip link set tap{number} master lan txqueuelen 10000 up && exec timeout {LIFETIME} \"$@\""
        );
        command.args(["-c", &script, "sh"]).args(qemu(number, folder.path()));
        Self::start(command, number, folder)
    }

    /// Begins to boot one by a command that runs QEMU with [`machine_arguments`] for this folder.
    pub(crate) fn start(mut command: Command, number: u8, folder: TempDir) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut qemu = command.spawn().expect("the command can be started");
        let heard = Arc::new(Heard::default());
        let output = qemu.stdout.take().expect("piped");
        Self {
            number,
            commands: Mutex::new(qemu.stdin.take().expect("piped")),
            qemu,
            reader: Some(listen(output, heard.clone())),
            heard,
            last_job: AtomicU32::new(0),
            folder,
        }
    }

    /// Waits until it can be told what to do. Panics when it does not come up.
    pub fn wait_ready(&self) {
        self.wait(Duration::from_secs(60), "the guest boots", |state| state.is_ready.then_some(()));
    }

    /// Resets it, without a word to what runs in it; its jobs are forgotten. [`Guest::wait_ready`] waits until it is there again.
    pub fn reset(&self) {
        self.heard.lock().is_ready = false;
        let reset = self.start_command(&["sh", "-c", "echo b >/proc/sysrq-trigger"]);
        self.heard.lock().jobs.clear();
        drop(reset);
    }

    /// The process that was started.
    pub fn pid(&self) -> u32 {
        self.qemu.id()
    }

    /// Its IPv4 address.
    pub fn ipv4(&self) -> Ipv4Addr {
        Lan::ipv4(self.number)
    }

    /// Its IPv6 address.
    pub fn ipv6(&self) -> Ipv6Addr {
        Lan::ipv6(self.number)
    }

    /// Starts `command` in it. No argument may contain a tab or a line's end.
    pub fn start_command(&self, command: &[impl AsRef<str>]) -> Job<'_> {
        let words: Vec<&str> = command.iter().map(AsRef::as_ref).collect();
        let id = self.last_job.fetch_add(1, Ordering::Relaxed) + 1;
        self.heard.lock().jobs.insert(id, JobState::default());
        self.say(&format!("start {id}\t{}", words.join("\t")));
        Job { guest: self, id, what: words.join(" ") }
    }

    /// Runs `command` in it to its end.
    pub fn run(&self, command: &[impl AsRef<str>], limit: Duration) -> Output {
        self.start_command(command).finish(limit)
    }

    /// Its kernel's counters of the RDMA device, by name.
    pub fn rxe_counters(&self) -> BTreeMap<String, u64> {
        let script = format!("cd {HW_COUNTERS} && grep -H . *");
        let text = self.run(&["sh", "-c", &script], SHORT).ok().text;
        let counters = text.lines().filter_map(|line| line.split_once(':'));
        counters.map(|(name, value)| (name.to_owned(), value.parse().expect("a number"))).collect()
    }

    fn say(&self, line: &str) {
        let mut commands = self.commands.lock().expect("no thread panics while it holds the lock");
        if let Err(error) = writeln!(commands, "{line}").and_then(|()| commands.flush()) {
            panic!("the guest is gone: {error}\n{}", self.console());
        }
    }

    /// Waits until `condition` gives something; panics when the guest goes first, or at the time limit.
    fn wait<T>(&self, limit: Duration, what: &str, mut condition: impl FnMut(&mut State) -> Option<T>) -> T {
        let mut found = None;
        let state = self.heard.lock();
        let (state, _) = (self.heard.changed)
            .wait_timeout_while(state, limit, |state| {
                found = condition(state);
                found.is_none() && !state.is_gone
            })
            .expect("no thread panics while it holds the lock");
        let why = if state.is_gone { "the guest is gone" } else { "waited in vain" };
        drop(state);
        found.unwrap_or_else(|| panic!("{why}: {what}\n{}", self.console()))
    }

    /// Its kernel's console output.
    fn console(&self) -> String {
        let bytes = fs::read(self.folder.path().join(CONSOLE)).unwrap_or_default();
        format!("its console:\n{}", String::from_utf8_lossy(&bytes))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // `timeout` would not pass SIGKILL on to its child.
        system::family(self.qemu.id()).into_iter().rev().for_each(system::kill);
        let _ = self.qemu.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl Job<'_> {
    /// Its output so far, on both streams.
    pub fn text(&self) -> String {
        self.guest.heard.lock().jobs.get(&self.id).map(|job| job.text.clone()).unwrap_or_default()
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        let state = self.guest.heard.lock();
        state.is_gone || state.jobs.get(&self.id).is_none_or(|job| job.ended.is_some())
    }

    /// Waits until a program in the guest listens on TCP `port`.
    pub fn wait_listening(&self, port: u16) {
        let script = format!(
            "until grep -q ':{port:04X} 0*:0000 0A' /proc/net/tcp /proc/net/tcp6; do usleep 10000 2>/dev/null || sleep 0.01; done"
        );
        self.guest.run(&["sh", "-c", &script], SHORT).ok();
    }

    /// Kills it and everything in its process group, without a word of warning.
    pub fn kill(&self) {
        self.guest.say(&format!("kill {}", self.id));
    }

    /// Waits for its end; panics when that takes longer than `limit`.
    pub fn finish(self, limit: Duration) -> Output {
        self.finish_or_kill(limit)
            .unwrap_or_else(|text| panic!("{} did not end within {limit:?} in the guest:\n{text}", self.what))
    }

    fn finish_or_kill(&self, limit: Duration) -> Result<Output, String> {
        let state = self.guest.heard.lock();
        let runs = |state: &mut State| !state.is_gone && state.jobs.get(&self.id).is_some_and(|j| j.ended.is_none());
        let (mut state, _) = self
            .guest
            .heard
            .changed
            .wait_timeout_while(state, limit, runs)
            .expect("no thread panics while it holds the lock");
        let job = state.jobs.remove(&self.id).unwrap_or_default();
        let is_gone = state.is_gone;
        drop(state);
        match job.ended {
            Some(status) => Ok(Output { status, text: job.text, what: self.what.clone() }),
            None if is_gone => Err(format!("{}\n{}", job.text, self.guest.console())),
            None => {
                self.guest.say(&format!("kill {}", self.id));
                Err(job.text)
            }
        }
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        let mut state = self.guest.heard.lock();
        let runs = state.jobs.remove(&self.id).is_some_and(|job| job.ended.is_none()) && !state.is_gone;
        drop(state);
        if runs {
            self.guest.say(&format!("kill {}", self.id));
        }
    }
}

impl Heard {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }

    fn take(&self, line: &str) {
        let mut state = self.lock();
        let mut words = line.splitn(3, ' ');
        let (kind, id, rest) = (words.next(), words.next().and_then(|id| id.parse().ok()), words.next());
        match (kind, id.and_then(|id: u32| state.jobs.get_mut(&id))) {
            (Some("ready"), _) => state.is_ready = true,
            (Some("out"), Some(job)) => {
                job.text.push_str(rest.unwrap_or_default());
                job.text.push('\n');
            }
            (Some("end"), Some(job)) => {
                job.ended = rest.and_then(|status| status.parse().ok()).map(ExitStatus::from_raw);
            }
            _ => {}
        }
    }
}

fn listen(output: ChildStdout, heard: Arc<Heard>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut lines = BufReader::new(output);
        let mut bytes = Vec::new();
        while matches!(lines.read_until(b'\n', &mut bytes), Ok(n) if n > 0) {
            heard.take(String::from_utf8_lossy(&bytes).trim_end_matches('\n'));
            heard.changed.notify_all();
            bytes.clear();
        }
        heard.lock().is_gone = true;
        heard.changed.notify_all();
    })
}

/// The folder with the guests' kernel and file systems.
pub(crate) fn files() -> PathBuf {
    PathBuf::from(std::env::var_os("RDMESH_GUEST").expect("a guest has been prepared"))
}

/// The command line of the guest `number`, which speaks with us through its standard input and output.
fn qemu(number: u8, folder: &Path) -> Vec<String> {
    let files = files();
    let settings = format!("IP4={}/24 IP6={}/64", Lan::ipv4(number), Lan::ipv6(number));
    let mut words = vec!["qemu-system-x86_64".to_owned()];
    words.extend(machine_arguments(&files.join("initramfs"), &settings, folder));
    let more = [
        ("-m", "512".to_owned()),
        ("-no-reboot", String::new()),
        ("-netdev", format!("tap,id=lan,ifname=tap{number},script=no,downscript=no")),
        ("-device", format!("virtio-net-pci,netdev=lan,mac=52:54:00:00:00:{number:02x},romfile=")),
    ];
    words.extend(
        more.into_iter().flat_map(|(option, value)| [option.to_owned(), value]).filter(|word| !word.is_empty()),
    );
    words
}

/// Arguments of a machine that boots the prepared kernel and `initramfs`, whose first process gets `settings`, and speaks with us
/// through its standard input and output.
pub(crate) fn machine_arguments(initramfs: &Path, settings: &str, folder: &Path) -> Vec<String> {
    let kernel = initramfs.with_file_name("vmlinux");
    // `tsc=reliable` and its like spare an emulated processor the calibration of its clocks.
    let append = format!(
        "console=ttyS0 panic=-1 quiet nokaslr mitigations=off tsc=reliable no_timer_check random.trust_cpu=on {settings}"
    );
    // With `-smp 1` alone QEMU leaves out the fences that the guest and its devices need between them.
    let fixed = "-accel tcg,thread=multi -M q35 -cpu qemu64 -smp 1,maxcpus=2 -nodefaults -display none -monitor none \
                 -device virtio-serial-pci -chardev stdio,id=agent,signal=off \
                 -device virtserialport,chardev=agent,name=agent";
    let mut words: Vec<String> = fixed.split_whitespace().map(str::to_owned).collect();
    let more = [
        ("-kernel", kernel.display().to_string()),
        ("-initrd", initramfs.display().to_string()),
        ("-append", append),
        ("-serial", format!("file:{}", folder.join(CONSOLE).display())),
    ];
    words.extend(more.into_iter().flat_map(|(option, value)| [option.to_owned(), value]));
    words
}

/// A folder for a guest's console.
pub(crate) fn folder() -> TempDir {
    tempfile::Builder::new().prefix("rdmesh-guest-").tempdir().expect("a temporary folder")
}

/// The index of `address` in the GID table that `ibv_devinfo -v` has printed.
pub fn gid_index(devinfo: &str, address: IpAddr) -> Option<u32> {
    let mapped = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    devinfo.lines().find_map(|line| {
        let (index, gid) = line.trim().strip_prefix("GID[")?.split_once("]:")?;
        let gid: Ipv6Addr = gid.split(',').next()?.trim().parse().ok()?;
        (gid == mapped).then(|| index.trim().parse().ok())?
    })
}

/// Seconds after which a guest ends in any case, so that none outlives a test that was killed.
pub(crate) const LIFETIME: u32 = 600;
/// For commands that only look.
const SHORT: Duration = Duration::from_secs(20);
/// The file with what the kernel printed.
const CONSOLE: &str = "console";
const HW_COUNTERS: &str = "/sys/class/infiniband/rxe0/ports/1/hw_counters";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_are_found_in_either_form() {
        let text = "\t\t\tGID[  0]:\t\tfe80::5054:ff:fe00:2, RoCE v2\n\t\t\tGID[  1]:\t\t::ffff:10.9.0.2, RoCE v2\n\
                    \t\t\tGID[  2]:\t\tfd00:9::2, RoCE v2\n";
        assert_eq!(gid_index(text, Lan::ipv4(2).into()), Some(1));
        assert_eq!(gid_index(text, Lan::ipv6(2).into()), Some(2));
        assert_eq!(gid_index(text, Lan::ipv6(3).into()), None);
    }

    #[test]
    fn what_the_agent_says_is_sorted_by_command() {
        let heard = Heard::default();
        heard.lock().jobs.extend([(1, JobState::default()), (2, JobState::default())]);
        for line in ["ready", "out 2 a  b", "out 1 ", "end 2 256", "out 3 lost"] {
            heard.take(line);
        }
        let state = heard.lock();
        assert!(state.is_ready);
        assert_eq!((state.jobs[&2].text.as_str(), state.jobs[&2].ended.and_then(|s| s.code())), ("a  b\n", Some(1)));
        assert_eq!((state.jobs[&1].text.as_str(), state.jobs[&1].ended), ("\n", None));
    }
}
