//! Preload tests: programs with the library, with an endpoint or without.
#![allow(clippy::unwrap_used)]

use rdmesh_uverbs::page::WORKERS_LEN;
use rdmesh_uverbs::session::{self, FdUse, OpenCmReply, OpenReply, ReplyHeader, RequestHeader, RequestKind, Token};
use rdmesh_uverbs::shared::SharedMemory;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, socket_with, socketpair,
};
use std::fs;
use std::io::IoSlice;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use zerocopy::{FromBytes, IntoBytes};

/// The library that cargo has built for this test.
fn library() -> PathBuf {
    let path = std::env::current_exe().unwrap().parent().unwrap().join("librdmesh.so");
    assert!(path.is_file(), "{} is missing", path.display());
    path
}

/// Runs `program` with the library, and with `endpoint` if there is one.
fn run(program: &str, arguments: &[&str], endpoint: Option<&Path>) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", library()).env_remove("RDMESH_ENDPOINT");
    if let Some(endpoint) = endpoint {
        command.env("RDMESH_ENDPOINT", endpoint);
    }
    command.output().unwrap()
}

fn output(program: &str, arguments: &[&str], endpoint: Option<&Path>) -> String {
    let output = run(program, arguments, endpoint);
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    String::from_utf8(output.stdout).unwrap()
}

/// An endpoint with a device in its tree, and a socket without a server.
fn endpoint() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let verbs = directory.path().join("sys/class/infiniband_verbs/uverbs0");
    let device = directory.path().join("sys/class/infiniband/rxe0");
    fs::create_dir_all(&verbs).unwrap();
    fs::create_dir_all(&device).unwrap();
    fs::write(verbs.join("ibdev"), "rxe0\n").unwrap();
    fs::write(verbs.join("dev"), "231:192\n").unwrap();
    fs::write(verbs.join("abi_version"), "2\n").unwrap();
    fs::write(verbs.parent().unwrap().join("abi_version"), "6\n").unwrap();
    fs::write(device.join("node_type"), "1: CA\n").unwrap();
    fs::create_dir_all(device.join("ports/1/counters")).unwrap();
    fs::write(device.join("ports/1/counters/port_xmit_data"), "").unwrap();
    fs::write(device.join("node_guid"), "0052:0aff:fe4d:0002\n").unwrap();
    fs::create_dir_all(directory.path().join("dev/infiniband")).unwrap();
    // Any socket will do to be seen; a device that cannot be opened is enough here.
    drop(UnixListener::bind(directory.path().join("verbs.sock")).unwrap());
    directory
}

/// Whether there is a Python to be a program with; says so where not.
fn python() -> bool {
    let found = Command::new("python3").arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: there is no python3 here");
    }
    found
}

/// Serves the endpoint's socket: opens contexts and channels, and answers every command with EXDEV, so that the program
/// can tell that it came here. A channel has an event from the start, which comes with the command.
fn serve(endpoint: &Path) {
    fs::remove_file(endpoint.join("verbs.sock")).unwrap();
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(endpoint.join("verbs.sock")).unwrap()).unwrap();
    listen(&listener, 8).unwrap();
    std::thread::spawn(move || {
        while let Ok(socket) = accept(&listener) {
            std::thread::spawn(move || {
                let mut buffer = vec![0; session::MAX_MESSAGE];
                let mut events = None;
                while let Ok((len @ 1.., _)) = session::receive(socket.as_fd(), &mut buffer) {
                    let (head, _) = RequestHeader::read_from_prefix(&buffer[..len]).unwrap();
                    answer(socket.as_fd(), RequestKind::from_number(head.kind).unwrap(), &mut events);
                }
            });
        }
    });
}

fn answer(socket: BorrowedFd<'_>, kind: RequestKind, events: &mut Option<OwnedFd>) {
    let mut head = ReplyHeader::default();
    let (mut response, mut fds) = (Vec::new(), Vec::new());
    if kind == RequestKind::Open {
        response = OpenReply { token: Token([0; 16]), rdev: 0 }.as_bytes().to_vec();
        fds.push(SharedMemory::create_published("worker", WORKERS_LEN).unwrap().1);
        fds.push(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        head.fds[..2].fill(FdUse::Open as u32);
    } else if kind == RequestKind::OpenCm {
        response = OpenCmReply { token: Token([0; 16]), number: 1, reserved: 0 }.as_bytes().to_vec();
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        head.fds[0] = FdUse::Open as u32;
        rustix::io::write(&ours, b"e").unwrap();
        *events = Some(ours);
        fds.push(theirs);
    } else if kind == RequestKind::Counter {
        response = b"1234\n".to_vec();
    } else {
        head.errno = libc::EXDEV as u32;
    }
    head.response_len = response.len() as u32;
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    session::send(socket, &[IoSlice::new(head.as_bytes()), IoSlice::new(&response)], &fds).unwrap();
}

#[test]
fn an_excluded_program_is_left_alone() {
    let endpoint = endpoint();
    let node_type = |exclude: &str| {
        let mut command = Command::new("cat");
        command.arg("/sys/class/infiniband/rxe0/node_type").env("LD_PRELOAD", library());
        command.env("RDMESH_ENDPOINT", endpoint.path()).env("RDMESH_EXCLUDE", exclude);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    for excluded in ["cat", "redis-server,cat", "cat, redis-server"] {
        assert_ne!(node_type(excluded), "1: CA\n", "{excluded}");
    }
    for other in ["", "redis-server", "ca,t", "cat2"] {
        assert_eq!(node_type(other), "1: CA\n", "{other}");
    }
    // A script has its own name, not that of its interpreter.
    let script = endpoint.path().join("look");
    fs::write(&script, "#!/bin/sh\nread -r type < /sys/class/infiniband/rxe0/node_type && echo \"$type\"\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let look = |exclude: &str| {
        let mut command = Command::new(&script);
        command.env("LD_PRELOAD", library()).env("RDMESH_ENDPOINT", endpoint.path()).env("RDMESH_EXCLUDE", exclude);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert_eq!((look("look"), look("listen")), (String::new(), "1: CA\n".to_owned()));
}

const LOOK: &str = r#"
import errno, os, socket, stat
def failing(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
device = "/dev/infiniband/uverbs0"
"#;

#[test]
fn without_an_endpoint_programs_run_as_ever() {
    assert_eq!(output("/bin/true", &[], None), "");
    let plain = Command::new("/bin/ls").args(["-la", "/sys/class", "/usr/bin"]).output().unwrap();
    assert_eq!(output("/bin/ls", &["-la", "/sys/class", "/usr/bin"], None).as_bytes(), plain.stdout);
    assert_eq!(output("/bin/sh", &["-c", "echo a | cat; (exit 0); ls /dev/null"], None), "a\n/dev/null\n");
    if python() {
        let script = format!(
            "{LOOK}
import subprocess, threading
print(os.path.exists(device), failing(os.open, device, os.O_RDWR))
print(subprocess.run(['echo', 'child'], stdout=subprocess.PIPE, close_fds=True).stdout)
process = os.fork()
if process == 0: os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
fd = os.open('/dev/null', os.O_WRONLY); other = os.dup(fd); os.close(fd)
print(os.write(other, b'xyz'), stat.S_ISCHR(os.fstat(other).st_mode))
"
        );
        let here = Path::new("/dev/infiniband/uverbs0").exists();
        if here {
            eprintln!("skipped in part: this machine has an RDMA device of its own");
            return;
        }
        assert_eq!(output("python3", &["-c", &script], None), "False ENOENT\nb'child\\n'\n7\n3 True\n");
    }
}

#[test]
fn an_endpoint_shows_its_device_and_nothing_of_the_hosts() {
    let endpoint = endpoint();
    if !python() {
        return;
    }
    let script = format!(
        "{LOOK}
about = os.stat(device)
print(stat.S_ISCHR(about.st_mode), oct(stat.S_IMODE(about.st_mode)), os.major(about.st_rdev), os.minor(about.st_rdev))
print(os.access(device, os.R_OK | os.W_OK), os.access(device, os.X_OK), stat.S_ISDIR(os.stat('/dev/infiniband').st_mode))
print(failing(os.open, device, os.O_RDWR), failing(os.stat, '/dev/infiniband/uverbs1'))
about = os.stat('/dev/infiniband/rdma_cm')
print(stat.S_ISCHR(about.st_mode), about.st_rdev == os.makedev(10, 58), failing(os.open, '/dev/infiniband/rdma_cm', os.O_RDWR))
print(os.path.realpath('/dev/infiniband/rdma_cm'), os.access('/dev/char/10:58', os.W_OK), os.access('/dev/char/10:59', os.R_OK))
print(sorted(os.listdir('/sys/class/infiniband')), sorted(os.listdir('/sys//class/infiniband_verbs/')))
print(open('/sys/class/infiniband/rxe0/node_type').read().strip(), os.path.realpath(device))
print(failing(os.stat, '/sys/class/infiniband/mlx5_0'), failing(os.listdir, '/sys/class/infiniband_mad'))
print(failing(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 20))
print(failing(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 0))
"
    );
    let expected = "True 0o666 231 192\nTrue False True\nENODEV ENOENT\nTrue True ENODEV\n\
                    /dev/infiniband/rdma_cm True False\n['rxe0'] ['abi_version', 'uverbs0']\n\
                    1: CA /dev/infiniband/uverbs0\nENOENT ENOENT\nEPROTONOSUPPORT\nNone\n";
    assert_eq!(output("python3", &["-c", &script], Some(endpoint.path())), expected);
}

#[test]
fn a_command_descriptor_behaves_like_one() {
    let endpoint = endpoint();
    if !python() {
        return;
    }
    serve(endpoint.path());
    let script = format!(
        "{LOOK}
import fcntl, struct, subprocess
command = struct.pack('=IHHQ', 4, 4, 0, 1)
arm = struct.pack('=IHHII', 23, 4, 0, 1, 0)
def is_device(fd): return stat.S_ISCHR(os.fstat(fd).st_mode) and os.fstat(fd).st_rdev == os.makedev(231, 192)
fd = os.open(device, os.O_RDWR)
print(is_device(fd), os.path.samestat(os.fstat(fd), os.stat(device)), failing(os.write, fd, command), os.write(fd, arm))
print(failing(fcntl.ioctl, fd, 0xc0181b01, struct.pack('=HHHHQII', 24, 0, 99, 0, 0, 14, 0)))
copy = os.dup(fd); high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 300); os.dup2(fd, 400)
os.close(fd)
print(failing(os.fstat, fd), [failing(os.write, number, command) for number in (copy, high, 400)])
null = os.open('/dev/null', os.O_WRONLY)
print(os.dup2(null, fd) == fd, os.write(fd, command)); os.dup2(null, 400)
print(os.write(400, command), is_device(400), is_device(copy))
print(subprocess.run(['true'], close_fds=True).returncode, failing(os.write, copy, command))
process = os.fork()
if process == 0:
    os._exit(0 if failing(os.write, copy, command) == 'EXDEV' else 1)
print(os.waitpid(process, 0)[1])
os.closerange(3, 5000)
print(failing(os.fstat, copy), failing(os.fstat, high))
fd = os.open(device, os.O_RDWR)
print(is_device(fd), os.write(fd, arm), failing(os.write, fd, b'nonsense'))
"
    );
    let expected = "True True EXDEV 16\nEPROTONOSUPPORT\nEBADF ['EXDEV', 'EXDEV', 'EXDEV']\nTrue 16\n16 False True\n\
                    0 EXDEV\n0\nEBADF EBADF\nTrue 16 EINVAL\n";
    assert_eq!(output("python3", &["-c", &script], Some(endpoint.path())), expected);
}

#[test]
fn a_connection_managers_descriptor_behaves_like_one() {
    let endpoint = endpoint();
    if !python() {
        return;
    }
    serve(endpoint.path());
    let script = format!(
        "{LOOK}
import fcntl, select, struct, subprocess
device = '/dev/infiniband/rdma_cm'
command = struct.pack('=IHHQ', 10, 8, 0, 1)
def is_device(fd): return stat.S_ISCHR(os.fstat(fd).st_mode) and os.fstat(fd).st_rdev == os.makedev(10, 58)
fd = os.open(device, os.O_RDWR)
print(is_device(fd), os.path.samestat(os.fstat(fd), os.stat(device)), failing(os.write, fd, command), os.get_inheritable(fd))
print(failing(os.write, fd, b'short'), failing(os.write, fd, struct.pack('=IHHQ', 99, 8, 0, 1)))
epoll = select.epoll(); epoll.register(fd, select.EPOLLIN | select.EPOLLET)
print(epoll.poll(0) == [(fd, select.EPOLLIN)], epoll.poll(0), select.select([fd], [], [], 0)[0] == [fd])
copy = os.dup(fd); high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 300); os.dup2(fd, 400)
os.close(fd)
print(failing(os.fstat, fd), [failing(os.write, number, command) for number in (copy, high, 400)])
null = os.open('/dev/null', os.O_WRONLY)
print(os.dup2(null, fd) == fd, os.write(fd, command)); os.dup2(null, 400)
print(os.write(400, command), is_device(400), is_device(copy))
print(subprocess.run(['true'], close_fds=True).returncode, failing(os.write, copy, command))
process = os.fork()
if process == 0:
    os._exit(0 if failing(os.write, copy, command) == 'EXDEV' else 1)
print(os.waitpid(process, 0)[1])
fcntl.fcntl(copy, fcntl.F_SETFL, fcntl.fcntl(copy, fcntl.F_GETFL) | os.O_NONBLOCK)
fd = os.open(device, os.O_RDWR | os.O_NONBLOCK)
print(os.get_blocking(fd), os.get_blocking(high))
os.closerange(3, 5000)
print(failing(os.fstat, copy), failing(os.fstat, high))
"
    );
    let expected = "True True EXDEV False\nEINVAL EINVAL\nTrue [] True\nEBADF ['EXDEV', 'EXDEV', 'EXDEV']\nTrue 16\n\
                    16 False True\n0 EXDEV\n0\nFalse False\nEBADF EBADF\n";
    assert_eq!(output("python3", &["-c", &script], Some(endpoint.path())), expected);
}

#[test]
fn a_counter_has_the_figure_of_the_moment_when_it_is_opened() {
    let endpoint = endpoint();
    if !python() {
        return;
    }
    serve(endpoint.path());
    let counter = "/sys/class/infiniband/rxe0/ports/1/counters/port_xmit_data";
    let script = format!(
        "{LOOK}
counter = '{counter}'
print(open(counter).read().strip(), os.listdir(os.path.dirname(counter)), stat.S_ISREG(os.stat(counter).st_mode))
print(failing(os.open, counter, os.O_RDWR), os.get_inheritable(os.open(counter, os.O_RDONLY)))
import ctypes
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p; libc.fgetc.argtypes = [ctypes.c_void_p]
print(chr(libc.fgetc(libc.fopen(counter.encode(), b're'))), libc.fopen(counter.encode(), b'w'))
"
    );
    let expected = "1234 ['port_xmit_data'] True\nEACCES False\n1 None\n";
    assert_eq!(output("python3", &["-c", &script], Some(endpoint.path())), expected);
    assert_eq!(output("cat", &[counter], Some(endpoint.path())), "1234\n");
}

#[test]
fn libibverbs_lists_the_device() {
    let endpoint = endpoint();
    if Command::new("ibv_devices").output().is_err() {
        eprintln!("skipped: ibverbs-utils is not installed");
        return;
    }
    let listed = output("ibv_devices", &[], Some(endpoint.path()));
    assert!(listed.contains("rxe0") && listed.contains("00520afffe4d0002"), "{listed}");
    let opened = run("ibv_devinfo", &[], Some(endpoint.path()));
    assert!(String::from_utf8_lossy(&opened.stderr).contains("Failed to open device"), "{opened:?}");
}

#[test]
fn the_endpoint_is_found_beside_the_library() {
    let endpoint = endpoint();
    let copy = endpoint.path().join("librdmesh.so");
    fs::copy(library(), &copy).unwrap();
    let listing = |preload: &Path| {
        let mut command = Command::new("/bin/ls");
        command.arg("/sys/class/infiniband").env("LD_PRELOAD", preload).env_remove("RDMESH_ENDPOINT");
        String::from_utf8(command.current_dir(endpoint.path()).output().unwrap().stdout).unwrap()
    };
    assert_eq!(listing(&copy), "rxe0\n");
    assert_eq!(listing(Path::new("./librdmesh.so")), "rxe0\n");
}

#[test]
fn memory_can_be_allocated_without_an_endpoint() {
    if !python() {
        return;
    }
    let script = r#"
import ctypes
library = ctypes.CDLL(None)
library.rdmesh_malloc.restype = ctypes.c_void_p
library.rdmesh_malloc.argtypes = [ctypes.c_size_t]
library.rdmesh_free.argtypes = [ctypes.c_void_p]
memory = library.rdmesh_malloc(100000)
print(memory % 4096, ctypes.string_at(memory, 100000) == bytes(100000))
ctypes.memset(memory, 7, 100000)
library.rdmesh_free(memory); library.rdmesh_free(None); library.rdmesh_free(12345)
print(library.rdmesh_malloc(2**62))
"#;
    assert_eq!(output("python3", &["-c", script], None), "0 True\nNone\n");
}
