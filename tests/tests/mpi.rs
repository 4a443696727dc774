//! `rdmesh mpi`: large messages of unmodified MPI programs are read by RDMA, with the distribution's Open MPI and MPICH.

use rdmesh_tests::{Hosts, Lab, Output, Pair, Program, mpi_programs, product, root, system, until};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Where the program listens that starts ranks in an endpoint.
const PORT: u16 = 18_700;
const LIMIT: Duration = Duration::from_secs(90);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mpi {
    OpenMpi,
    Mpich,
}

const BOTH: [Mpi; 2] = [Mpi::OpenMpi, Mpi::Mpich];

/// Two endpoints; the launcher is in the client's, whose first rank is rank 0.
struct Machines<'a> {
    pair: Pair<'a>,
    client: String,
    server: Program,
}

impl<'a> Machines<'a> {
    fn of(pair: Pair<'a>, client: &str) -> Self {
        let (lab, endpoint) = &pair.server;
        let mut server = lab.start_in(endpoint, &[remote(), "--serve".to_owned(), PORT.to_string()]);
        server.wait_listening(PORT);
        Self { pair, client: client.to_owned(), server }
    }

    /// Starts `program` as so many ranks on each endpoint, by the launcher `before`.
    fn start(&self, mpi: Mpi, before: &[&str], each: u32, program: &[&str]) -> Program {
        let (lab, endpoint) = &self.pair.client;
        let mut command = vec!["env".to_owned(), format!("REMOTE_PORT={PORT}")];
        command.extend(before.iter().map(|word| (*word).to_owned()));
        command.extend(mpi.launcher([&self.client, &self.pair.address], each));
        command.extend(program.iter().map(|word| (*word).to_owned()));
        lab.start_in(endpoint, &command)
    }

    /// The same under `rdmesh mpi`, to its end.
    fn run(&self, mpi: Mpi, each: u32, program: &[&str]) -> Output {
        self.start(mpi, &under_rdmesh(), each, program).finish(LIMIT)
    }
}

impl Drop for Machines<'_> {
    fn drop(&mut self) {
        self.server.kill();
    }
}

impl Mpi {
    /// The command that starts ranks on the hosts with these addresses, over TCP.
    fn launcher(self, addresses: [&str; 2], each: u32) -> Vec<String> {
        let hosts = addresses.map(|address| format!("{address}:{each}")).join(",");
        let remote = remote();
        let text = match self {
            Self::OpenMpi => format!(
                "mpirun.openmpi --allow-run-as-root --host {hosts} --oversubscribe --mca plm_rsh_agent {remote} \
                 --mca mpi_yield_when_idle 1 --mca pml ob1 --mca osc pt2pt --mca btl tcp,self \
                 --mca btl_tcp_if_include 10.7.0.0/24"
            ),
            Self::Mpich => format!(
                "mpiexec.mpich -n {} -hosts {hosts} -launcher rsh -launcher-exec {remote} -genv UCX_TLS tcp,self \
                 -genv UCX_LOG_LEVEL error",
                2 * each
            ),
        };
        text.split(' ').map(str::to_owned).collect()
    }

    /// Ranks of each endpoint. MPICH 4.0 over UCX's TCP may stand still in `MPI_Finalize` where three ranks or more have met, whatever
    /// is beside it.
    fn ranks(self) -> u32 {
        if self == Self::OpenMpi { 2 } else { 1 }
    }

    /// A compiled test program.
    fn program(self, name: &str) -> String {
        let suffix = if self == Self::OpenMpi { "openmpi" } else { "mpich" };
        mpi_programs().join(format!("{name}.{suffix}")).display().to_string()
    }
}

/// Program that runs commands in another endpoint, as ssh does.
fn remote() -> String {
    root().join("tests/programs/mpi/remote.py").display().to_string()
}

/// `rdmesh mpi --`, as words; they live as long as the tests do.
fn under_rdmesh() -> [&'static str; 3] {
    static PROGRAM: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let program: &PathBuf = &product("rdmesh");
    [PROGRAM.get_or_init(|| program.display().to_string()), "mpi", "--"]
}

/// Messages that the report counts as gone this way.
fn messages(output: &Output, way: &str) -> u64 {
    let line = output.text.lines().find(|line| line.contains(way));
    let count = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    if line.is_some() { count.unwrap_or_else(|| panic!("no count in {line:?}")) } else { 0 }
}

const BY_RDMA: &str = "read by RDMA";

#[test]
fn large_messages_arrive_in_every_way_in_which_mpi_sends_them() {
    let lab = Lab::start();
    let machines = Machines::of(Pair::of(&lab), "10.7.0.3");
    for mpi in BOTH {
        let output = machines.run(mpi, mpi.ranks(), &[&mpi.program("large")]).ok();
        assert!(output.text.contains("all 21 cases hold"), "{mpi:?}: {}", output.text);
        let read = messages(&output, BY_RDMA);
        eprintln!("{mpi:?}: {read} messages read by RDMA");
        assert!(read > 1000, "{mpi:?}: {}", output.text);
    }
    drop(machines);
    lab.wait_until_empty();
}

#[test]
fn what_mpi_promises_holds_where_some_messages_go_by_rdma() {
    let lab = Lab::start();
    let machines = Machines::of(Pair::of(&lab), "10.7.0.3");
    for mpi in BOTH {
        let output = machines.run(mpi, mpi.ranks(), &[&mpi.program("mpi")]).ok();
        assert!(output.text.contains("all 22 cases hold"), "{mpi:?}: {}", output.text);
        assert!(messages(&output, BY_RDMA) > 0, "{mpi:?}: {}", output.text);
    }
}

#[test]
fn ranks_of_two_hosts_read_over_a_lossy_network() {
    let hosts = Hosts::start();
    hosts.set_faults("loss=1%,seed=6");
    let machines = Machines::of(hosts.pair(), &Hosts::ip(1));
    for mpi in BOTH {
        let cases = ["meet", "lengths", "progress"];
        let program = mpi.program("large");
        let mut command = vec![program.as_str()];
        command.extend(cases);
        let output = machines.run(mpi, 1, &command).ok();
        assert!(messages(&output, BY_RDMA) > 20, "{mpi:?}: {}", output.text);
    }
}

#[test]
fn a_rank_that_stays_outside_gets_its_messages_by_mpi() {
    let lab = Lab::start();
    let machines = Machines::of(Pair::of(&lab), "10.7.0.3");
    for mpi in BOTH {
        let rank = if mpi == Mpi::OpenMpi { "OMPI_COMM_WORLD_RANK" } else { "PMI_RANK" };
        let script = format!("[ \"${rank}\" = 1 ] && unset RDMESH_MPI; exec {} lengths progress", mpi.program("large"));
        let script = script_in(&lab, &script);
        let output = machines.run(mpi, 1, &[&script]).ok();
        assert!(output.text.contains("all 2 cases hold"), "{mpi:?}: {}", output.text);
        assert_eq!(messages(&output, BY_RDMA), 0, "{mpi:?}: {}", output.text);
    }
}

/// A script for `sh` that all endpoints of a lab see.
fn script_in(lab: &Lab, text: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(lab.shared()).expect("the folder is ours");
    let path = lab.shared().join("script");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("the folder is ours");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("the file is ours");
    path.display().to_string()
}

#[test]
fn messages_arrive_whole_though_the_router_dies() {
    let lab = Lab::start();
    let machines = Machines::of(Pair::of(&lab), "10.7.0.3");
    for mpi in BOTH {
        let program = mpi.program("stream");
        let mut job = machines.start(mpi, &under_rdmesh(), 1, &[&program, "600"]);
        job.next_line(LIMIT);
        until(LIMIT, "the ranks are connected", || (lab.messages() > 50).then_some(()));
        // While it stands still, messages are announced that it will never carry.
        let router = lab.router_pid();
        system::stop(router);
        std::thread::sleep(Duration::from_millis(500));
        system::kill(router);
        until(LIMIT, "the router is dead", || UnixStream::connect(lab.dir().join("api.sock")).is_err().then_some(()));
        lab.up_again();
        let output = job.finish(LIMIT).ok();
        assert!(output.text.contains("600 messages are whole"), "{mpi:?}: {}", output.text);
        let (read, repaired) = (messages(&output, BY_RDMA), messages(&output, "came over the launcher"));
        eprintln!("{mpi:?}: {read} messages announced, {repaired} of them repaired");
        assert!(read > 0 && repaired > 0, "{mpi:?}: {}", output.text);
    }
}

#[test]
fn a_rank_that_is_killed_ends_its_job_and_leaves_nothing() {
    let lab = Lab::start();
    let machines = Machines::of(Pair::of(&lab), "10.7.0.3");
    for mpi in BOTH {
        let program = mpi.program("stream");
        let mut job = machines.start(mpi, &under_rdmesh(), 1, &[&program, "1000000"]);
        job.next_line(LIMIT);
        until(LIMIT, "the ranks are connected", || (lab.messages() > 50).then_some(()));
        let name = std::path::Path::new(&program).file_name().expect("a file").to_string_lossy().into_owned();
        let family = system::family(machines.server.pid());
        let rank = family
            .into_iter()
            .find(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name));
        system::kill(rank.expect("a rank in the server's endpoint"));
        let output = job.finish(LIMIT);
        assert!(!output.status.success(), "{mpi:?}: {}", output.text);
        lab.wait_until_empty();
    }
}
