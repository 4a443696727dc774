//! Options of the commands that run programs.

use super::{PlaceOptions, term};
use clap::Args as ClapArgs;
use rdmesh_fabric::Name;
use std::ffi::OsString;
use std::time::Duration;

#[derive(ClapArgs)]
pub(crate) struct RunOptions {
    /// Name of the endpoint [default: made from the process id]
    #[arg(long)]
    pub(crate) name: Option<Name>,
    #[command(flatten)]
    pub(crate) place: PlaceOptions,
    /// Stay in the present network namespace; needs no root with a router started by `rdmesh up --rootless`
    #[arg(long)]
    pub(crate) host_network: bool,
    /// Keep the program's devices, with their queues and memory, for so long after its end: peers and chains go on with them
    /// (`30s`, `5m`)
    #[arg(long, value_name = "TIME", value_parser = term)]
    pub(crate) linger: Option<Duration>,
    /// Take over the endpoint of this name from a program of the same user that has ended, with the devices that outlive it;
    /// without this option they are ended
    #[arg(long, requires = "name")]
    pub(crate) take_over: bool,
    /// Take an endpoint of this pool instead of making one; it goes back when the program ends
    #[arg(long, value_name = "POOL", conflicts_with_all = OF_NEW_ENDPOINTS)]
    pub(crate) pool: Option<Name>,
    /// Carry TCP connections to other accelerated programs of this endpoint over shared memory, as `rdmesh accel`
    #[arg(long)]
    pub(crate) accel: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(ClapArgs)]
pub(crate) struct VmOptions {
    /// Name of the endpoint [default: made from the process id]
    #[arg(long)]
    pub(crate) name: Option<Name>,
    /// Memory of the virtual machine, shared with the router, in QEMU's words (`512M`, `4G`)
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: String,
    /// Context identifier of the guest in its vsock device
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(3..))]
    pub(crate) cid: u32,
    #[command(flatten)]
    pub(crate) place: PlaceOptions,
    /// QEMU and its arguments, to which are added: memory, the vsock device and the network interface. Any other program is told
    /// their places by RDMESH_VM_SOCKET, RDMESH_VM_INTERFACE and RDMESH_VM_MAC
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(ClapArgs)]
pub(crate) struct AccelOptions {
    /// Microseconds of polling for data before a thread sleeps; 0: sleep at once [default: 20]
    #[arg(long, value_name = "MICROSECONDS")]
    pub(crate) spin: Option<u32>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(ClapArgs)]
pub(crate) struct MpiOptions {
    /// Shortest message in bytes that is sent by RDMA, at least 2048 [default: measured when MPI starts]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(2048..))]
    pub(crate) threshold: Option<u64>,
    /// MiB of a rank's memory that stay registered after a message; 0 registers for each message anew [default: 1024]
    #[arg(long, value_name = "MIB")]
    pub(crate) cache: Option<u64>,
    /// Print no report of the messages' paths at the end
    #[arg(long)]
    pub(crate) quiet: bool,
    /// The launcher (mpirun, mpiexec, …) and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Options of a new endpoint, which mean nothing to one of a pool.
const OF_NEW_ENDPOINTS: [&str; 14] = [
    "name",
    "ip",
    "vni",
    "host_network",
    "linger",
    "max_contexts",
    "max_qps",
    "max_cqs",
    "max_mrs",
    "max_pinned",
    "max_mappings",
    "max_linger",
    "max_linger_bytes",
    "max_chain_steps",
];
