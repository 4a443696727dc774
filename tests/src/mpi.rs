//! MPI jobs: a launcher in one endpoint, ranks in two or more.

use crate::{Endpoint, Lab, Output, Pair, Program, mpi_programs, product, root};
use std::sync::OnceLock;
use std::time::Duration;

/// Where the program listens that starts ranks in an endpoint.
const PORT: u16 = 18_700;
const LIMIT: Duration = Duration::from_secs(90);

/// An implementation of MPI, and what it uses itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mpi {
    /// The distribution's Open MPI, over TCP.
    OpenMpi,
    /// The same over UCX, on the RDMA device.
    OpenMpiOverUcx,
    /// The distribution's MPICH, over UCX's TCP.
    Mpich,
}

/// Two endpoints or more; the launcher is in the client's, whose first rank is rank 0.
pub struct Machines<'a> {
    pair: Pair<'a>,
    /// Addresses of all, the client's first.
    addresses: Vec<String>,
    server: Program,
    others: Vec<Program>,
}

impl<'a> Machines<'a> {
    /// Serves those who start ranks in the server's endpoint; `client` is the client's address.
    pub fn of(pair: Pair<'a>, client: &str) -> Self {
        let (lab, endpoint) = &pair.server;
        let server = serve(lab, endpoint);
        let addresses = vec![client.to_owned(), pair.address.clone()];
        Self { pair, addresses, server, others: Vec::new() }
    }

    /// With one more endpoint of the server's router.
    pub fn and(mut self, name: &str, address: &str) -> Self {
        self.others.push(serve(self.pair.server.0, &Endpoint::at(name, "blue", address)));
        self.addresses.push(address.to_owned());
        self
    }

    /// Starts `program` as so many ranks on each endpoint, by the launcher `before`.
    pub fn start(&self, mpi: Mpi, before: &[&str], each: u32, program: &[&str]) -> Program {
        let (lab, endpoint) = &self.pair.client;
        let mut command = vec!["env".to_owned(), format!("REMOTE_PORT={PORT}")];
        command.extend(before.iter().map(|word| (*word).to_owned()));
        command.extend(mpi.launcher(&self.addresses, each));
        command.extend(program.iter().map(|word| (*word).to_owned()));
        lab.start_in(endpoint, &command)
    }

    /// The same under `rdmesh mpi`, with messages of 16 KiB and more by RDMA, to its end.
    pub fn run(&self, mpi: Mpi, each: u32, program: &[&str]) -> Output {
        self.start(mpi, &under_rdmesh_from("16384"), each, program).finish(LIMIT)
    }

    /// What starts the ranks of the server's endpoint.
    pub fn server(&self) -> &Program {
        &self.server
    }
}

impl Drop for Machines<'_> {
    fn drop(&mut self) {
        self.server.kill();
        self.others.iter_mut().for_each(Program::kill);
    }
}

impl Mpi {
    /// The command that starts ranks on the hosts with these addresses.
    fn launcher(self, addresses: &[String], each: u32) -> Vec<String> {
        let hosts: Vec<String> = addresses.iter().map(|address| format!("{address}:{each}")).collect();
        let hosts = hosts.join(",");
        let remote = remote();
        let open_mpi = format!(
            "mpirun.openmpi --allow-run-as-root --host {hosts} --oversubscribe --mca plm_rsh_agent {remote} \
             --mca mpi_yield_when_idle 1"
        );
        let text = match self {
            Self::OpenMpi => format!(
                "{open_mpi} --mca pml ob1 --mca osc pt2pt --mca btl tcp,self --mca btl_tcp_if_include 10.7.0.0/24"
            ),
            Self::OpenMpiOverUcx => format!(
                "{open_mpi} --mca pml ucx --mca osc ucx --mca btl ^openib,tcp,vader,ofi -x UCX_NET_DEVICES=rxe0:1 \
                 -x UCX_TLS=rc_verbs,ud_verbs,self"
            ),
            Self::Mpich => format!(
                "mpiexec.mpich -n {} -hosts {hosts} -launcher rsh -launcher-exec {remote} -genv UCX_TLS tcp,self \
                 -genv UCX_LOG_LEVEL error",
                addresses.len() as u32 * each
            ),
        };
        text.split(' ').map(str::to_owned).collect()
    }

    /// A compiled test program.
    pub fn program(self, name: &str) -> String {
        let suffix = if self == Self::Mpich { "mpich" } else { "openmpi" };
        mpi_programs().join(format!("{name}.{suffix}")).display().to_string()
    }

    /// Ranks of each endpoint. MPICH 4.0 over UCX's TCP may stand still in `MPI_Finalize` where three ranks or more have met, whatever
    /// is beside it.
    pub fn ranks(self) -> u32 {
        if self == Self::Mpich { 1 } else { 2 }
    }
}

/// Starts ranks in an endpoint for those who ask.
fn serve(lab: &Lab, endpoint: &Endpoint) -> Program {
    let mut server = lab.start_in(endpoint, &[remote(), "--serve".to_owned(), PORT.to_string()]);
    server.wait_listening(PORT);
    server
}

/// Program that runs commands in another endpoint, as ssh does.
fn remote() -> String {
    root().join("tests/programs/mpi/remote.py").display().to_string()
}

/// `rdmesh mpi --`, as words; they live as long as the tests do.
pub fn under_rdmesh() -> [&'static str; 3] {
    [rdmesh(), "mpi", "--"]
}

/// `rdmesh mpi --threshold BYTES --`.
pub fn under_rdmesh_from(threshold: &str) -> [&str; 5] {
    [rdmesh(), "mpi", "--threshold", threshold, "--"]
}

fn rdmesh() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| product("rdmesh").display().to_string())
}
