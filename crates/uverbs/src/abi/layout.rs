//! Comparison of the structs and numbers with those of the installed C headers.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Layout of a struct, and its name in C.
pub(super) struct Layout {
    pub(super) name: &'static str,
    /// The struct, or a member of one: `rxe_send_wr.wr.atomic`.
    pub(super) c_name: &'static str,
    pub(super) c_size: usize,
    pub(super) fields: &'static [Field],
}

/// Layout of a field.
pub(super) struct Field {
    /// Empty for a field that is not compared.
    pub(super) c_name: &'static str,
    pub(super) offset: usize,
    pub(super) size: usize,
}

/// The last item: a default may be followed by another value.
pub(super) const fn last<T: Copy>(items: &[T]) -> T {
    items[items.len() - 1]
}

impl Layout {
    /// Assertions in C of everything that is known of the struct.
    fn assertions(&self) -> String {
        let (outer, member) = self.c_name.split_once('.').unwrap_or((self.c_name, ""));
        let offset_of = |path: String| match path.trim_matches('.') {
            "" => "0".to_owned(),
            path => format!("offsetof(struct {outer}, {path})"),
        };
        let size_of = |path: String| match path.trim_matches('.') {
            "" => format!("sizeof(struct {outer})"),
            path => format!("sizeof(((struct {outer} *)0)->{path})"),
        };
        let mut source = String::new();
        let mut assert = |what: String, value: String, expected: usize| {
            writeln!(source, "_Static_assert({value} == {expected}, \"{what} is not {expected}\");").unwrap();
        };
        assert(format!("the size of {}", self.name), size_of(member.to_owned()), self.c_size);
        for Field { c_name, offset, size } in self.fields.iter().filter(|field| !field.c_name.is_empty()) {
            let place = format!("{} - {}", offset_of(format!("{member}.{c_name}")), offset_of(member.to_owned()));
            assert(format!("the offset of {}.{c_name}", self.name), place, *offset);
            assert(format!("the size of {}.{c_name}", self.name), size_of(format!("{member}.{c_name}")), *size);
        }
        source
    }
}

/// Every struct of this module.
fn layouts() -> impl Iterator<Item = &'static Layout> {
    use super::{address, cm, command, cq, device, event, ioctl, memory, netlink, qp, rxe, sockaddr, srq};
    let all = [
        address::LAYOUTS,
        cm::LAYOUTS,
        command::LAYOUTS,
        cq::LAYOUTS,
        device::LAYOUTS,
        event::LAYOUTS,
        ioctl::LAYOUTS,
        memory::LAYOUTS,
        netlink::LAYOUTS,
        qp::LAYOUTS,
        rxe::LAYOUTS,
        sockaddr::LAYOUTS,
        srq::LAYOUTS,
    ];
    all.into_iter().flatten()
}

/// Every number of this module, with its name in C.
fn numbers() -> impl Iterator<Item = &'static (&'static str, u64)> {
    use super::{cm, ioctl, method, netlink, qp};
    [cm::NUMBERS, ioctl::NUMBERS, method::NUMBERS, netlink::NUMBERS, qp::NUMBERS].into_iter().flatten()
}

/// Directory of the kernel's headers.
const HEADERS: &str = "/usr/include";
const FILES: [&str; 11] = [
    "linux/in.h",
    "linux/in6.h",
    "linux/netlink.h",
    "rdma/ib_user_ioctl_cmds.h",
    "rdma/ib_user_ioctl_verbs.h",
    "rdma/ib_user_sa.h",
    "rdma/ib_user_verbs.h",
    "rdma/rdma_netlink.h",
    "rdma/rdma_user_cm.h",
    "rdma/rdma_user_ioctl_cmds.h",
    "rdma/rdma_user_rxe.h",
];
/// Structs that older headers do not have, or not as they are now, and what headers that have them contain.
const NEWER: [(&str, &str); 5] = [
    ("ib_uverbs_query_port_resp_ex", "active_speed_ex"),
    ("rdma_ucm_query_ib_service_resp", "rdma_ucm_query_ib_service_resp"),
    ("rdma_ucm_resolve_ib_service", "rdma_ucm_resolve_ib_service"),
    ("rdma_ucm_write_cm_event", "rdma_ucm_write_cm_event"),
    ("rxe_send_wr.wr.flush", "} flush;"),
];

/// Numbers that older headers do not have.
const NEWER_NUMBERS: [&str; 11] = [
    "IB_UVERBS_WR_ATOMIC_WRITE",
    "IB_UVERBS_WR_FLUSH",
    "RDMA_NLDEV_ATTR_NAME_ASSIGN_TYPE",
    "RDMA_NLDEV_CMD_DELDEV",
    "RDMA_NLDEV_CMD_NEWDEV",
    "RDMA_NLDEV_CMD_RES_SRQ_GET_RAW",
    "RDMA_NLDEV_SYS_ATTR_PRIVILEGED_QKEY_MODE",
    "RDMA_USER_CM_CMD_RESOLVE_IB_SERVICE",
    "RDMA_USER_CM_CMD_WRITE_CM_EVENT",
    "RDMA_USER_CM_QUERY_IB_SERVICE",
    "UVERBS_METHOD_REG_MR",
];

/// Reason why the headers cannot be compared here; `None` where they can. In CI it is a failure.
fn obstacle() -> Option<String> {
    let missing = FILES.iter().find(|file| !Path::new(HEADERS).join(file).exists());
    let why = match (missing, Command::new("cc").arg("--version").output()) {
        (Some(file), _) => format!("{HEADERS}/{file} is not installed (linux-libc-dev)"),
        (None, Err(error)) => format!("there is no C compiler: cc: {error}"),
        (None, Ok(_)) => return None,
    };
    assert!(std::env::var_os("CI").is_none(), "{why}");
    Some(why)
}

/// Text of the installed headers.
fn texts() -> String {
    FILES.iter().map(|file| std::fs::read_to_string(Path::new(HEADERS).join(file)).unwrap()).collect()
}

/// Compiles assertions; the compiler's complaint where one does not hold.
fn compile(assertions: impl Iterator<Item = String>) -> Result<(), String> {
    let mut source: String = ["stddef.h"].iter().chain(&FILES).map(|file| format!("#include <{file}>\n")).collect();
    source.extend(assertions);
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-fsyntax-only", "-x", "c", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut compiler = cc.spawn().unwrap();
    compiler.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    let compiled = compiler.wait_with_output().unwrap();
    if compiled.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&compiled.stderr).into_owned()) }
}

#[test]
fn structs_are_those_of_the_installed_headers() {
    if let Some(why) = obstacle() {
        return eprintln!("skipped: {why}");
    }
    let texts = texts();
    let is_known =
        |layout: &&Layout| !NEWER.iter().any(|(c_name, content)| layout.c_name == *c_name && !texts.contains(content));
    compile(layouts().filter(is_known).map(Layout::assertions)).unwrap();
}

#[test]
fn numbers_are_those_of_the_installed_headers() {
    if let Some(why) = obstacle() {
        return eprintln!("skipped: {why}");
    }
    let texts = texts();
    let is_known = |(name, _): &&(&str, u64)| !NEWER_NUMBERS.contains(name) || texts.contains(name);
    let assertion =
        |(name, value): &(&str, u64)| format!("_Static_assert({name} == {value}, \"{name} is not {value}\");\n");
    compile(numbers().filter(|(name, _)| !name.is_empty()).filter(is_known).map(assertion)).unwrap();
    assert!(compile([assertion(&("RDMA_PS_TCP", 5))].into_iter()).unwrap_err().contains("RDMA_PS_TCP is not 5"));
}

#[test]
fn a_struct_that_differs_is_found() {
    if let Some(why) = obstacle() {
        return eprintln!("skipped: {why}");
    }
    let compare = |c_size, fields| {
        let layout = Layout { name: "Sge", c_name: "rxe_sge", c_size, fields };
        compile([layout.assertions()].into_iter())
    };
    assert_eq!(compare(16, &[Field { c_name: "lkey", offset: 12, size: 4 }]), Ok(()));
    for (differs, complaint) in [
        (compare(24, &[]), "the size of Sge is not 24"),
        (compare(16, &[Field { c_name: "lkey", offset: 8, size: 4 }]), "the offset of Sge.lkey is not 8"),
        (compare(16, &[Field { c_name: "lkey", offset: 12, size: 8 }]), "the size of Sge.lkey is not 8"),
        (compare(16, &[Field { c_name: "rkey", offset: 12, size: 4 }]), "rkey"),
    ] {
        let text = differs.unwrap_err();
        assert!(text.contains(complaint), "{text}");
    }
}
