//! Resource exhaustion: a router with small limits, and tenants that take all they can; the router survives, others are served,
//! everything is given back.

use rdmesh_tests::{Endpoint, Lab, Options, Program, helper, until};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const MEMORY: u64 = 256 << 20;
/// Attacks on a resource, and the errors by which they may be refused.
const ATTACKS: [(&str, &[&str]); 9] = [
    ("space", &["ENOMEM"]),
    ("demand", &["EINVAL"]),
    ("pages", &["ENOMEM"]),
    ("private", &["ENOMEM"]),
    ("contexts", &["ENOMEM", "ENFILE", "EPIPE", "ECONNRESET"]),
    ("channels", &["ENOMEM", "ENFILE"]),
    ("objects", &["ENOMEM"]),
    ("memory", &["ENOENT"]),
    ("absent", &["EFAULT"]),
];

/// A memory control group with a limit, removed on drop.
struct Group {
    path: PathBuf,
    usage: &'static str,
}

impl Group {
    /// None where this machine lets us make none.
    fn make() -> Option<Self> {
        let name = format!("rdmesh-test-{}", std::process::id());
        let kinds = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
            ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ];
        kinds.into_iter().find_map(|(mount, limit, usage)| {
            let path = PathBuf::from(mount).join(&name);
            fs::create_dir(&path).ok()?;
            let group = Self { path, usage };
            fs::write(group.path.join(limit), MEMORY.to_string()).ok().map(|()| group)
        })
    }

    fn usage(&self) -> u64 {
        let text = fs::read_to_string(self.path.join(self.usage)).expect("the group is there");
        text.trim().parse().expect("a number")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The router goes a moment after the answer that it has.
        until(LIMIT, "the control group is empty", || fs::remove_dir(&self.path).ok());
    }
}

/// Resources of the router, as the kernel counts them.
#[derive(Clone, Copy, Debug)]
struct Holdings {
    descriptors: usize,
    mappings: usize,
    threads: usize,
    /// KiB of address space.
    address_space: u64,
}

fn holdings(pid: u32) -> Holdings {
    let count = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).expect("the router runs").count();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the router runs");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("a size");
    Holdings {
        descriptors: count("fd"),
        threads: count("task"),
        mappings: fs::read_to_string(format!("/proc/{pid}/maps")).expect("the router runs").lines().count(),
        address_space: size.trim().trim_end_matches(" kB").parse().expect("a number"),
    }
}

fn start(lab: &Lab, what: &str) -> Program {
    let greedy = helper("greedy").into_os_string().into_string().expect("a plain path");
    lab.start_in(&Endpoint::new(&format!("greedy-{what}")), &[&greedy, what])
}

/// Nine at a time, while a neighbour works.
#[test]
fn greedy_tenants_are_refused_and_others_served() {
    let group = Group::make();
    let before = match &group {
        Some(group) => format!("echo $$ > {}/cgroup.procs; ulimit -n 1024", group.path.display()),
        None => {
            eprintln!("NO MEMORY CONTROL GROUP CAN BE MADE HERE: what is charged to the router is not checked");
            "ulimit -n 1024".to_owned()
        }
    };
    let lab = Lab::start_with(Options { before: Some(before), ..Options::default() });
    let router = lab.router_pid();
    let verify = helper("verify").into_os_string().into_string().expect("a plain path");
    let serve = || lab.run_in(&Endpoint::new("honest"), LIMIT, &[verify.as_str(), "rc_opcodes"]).ok();
    serve();
    lab.wait_until_empty();
    let baseline = holdings(router);

    for round in 0..2 {
        let mut tenants: Vec<Program> = ATTACKS.iter().map(|(what, _)| start(&lab, what)).collect();
        serve();
        let mut taken = BTreeMap::new();
        for (tenant, (what, errors)) in tenants.iter_mut().zip(ATTACKS) {
            let line = tenant.next_line(LIMIT);
            println!("round {round}: {line}");
            let words: Vec<&str> = line.split(' ').collect();
            let [_, count, error] = words[..] else { panic!("{line}") };
            assert!(errors.contains(&error), "{what}: {line}");
            taken.insert(what, count.parse::<u64>().expect("a number"));
        }
        assert_eq!((taken["demand"], taken["absent"], taken["memory"]), (0, 0, 100));
        // While they hold all of that.
        serve();
        println!("round {round}: {:?}", holdings(router));
        assert_eq!(lab.router_pid(), router, "another router");
        if let Some(group) = &group {
            assert!(group.usage() < MEMORY, "the router's group is full");
            println!("round {round}: {} MiB in the router's group", group.usage() >> 20);
        }
        tenants.iter_mut().for_each(Program::close_stdin);
        tenants.into_iter().for_each(|tenant| drop(tenant.finish(LIMIT).ok()));
        lab.wait_until_empty();
        // Endpoints go a moment after their programs.
        until(LIMIT, "all that was taken is given back", || {
            let after = holdings(router);
            let is_back = after.descriptors <= baseline.descriptors + 4
                && after.mappings <= baseline.mappings + 200
                && after.threads <= baseline.threads + 2
                && after.address_space <= baseline.address_space + (1 << 20);
            is_back.then_some(())
        });
    }
    drop(lab);
}
