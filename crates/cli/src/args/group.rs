//! Arguments of `rdmesh tenant`, `rdmesh group` and `rdmesh network add`.

use super::OutputOptions;
use clap::{Args as ClapArgs, Subcommand};
use ipnet::IpNet;
use rdmesh_fabric::api::CreateNetwork;
use rdmesh_fabric::{DEFAULT_NETWORK, DEFAULT_TENANT, Name, Rule, SecurityGroup, Tenant};

#[derive(Subcommand)]
pub(crate) enum TenantCommand {
    /// Add a tenant, or change its limits
    Add(AddTenant),
    /// List tenants
    Ls(OutputOptions),
    /// Remove a tenant that has no networks
    Rm {
        /// Its name
        name: Name,
    },
}

#[derive(ClapArgs)]
pub(crate) struct AddTenant {
    /// Its name
    pub(crate) name: Name,
    /// The most networks that it may have [default: any number]
    #[arg(long, value_name = "N")]
    max_networks: Option<u32>,
    /// The most endpoints that it may have on one host [default: any number]
    #[arg(long, value_name = "N")]
    max_endpoints: Option<u32>,
}

#[derive(Subcommand)]
pub(crate) enum GroupCommand {
    /// Add a security group, or change one: all of it; what no rule names is forbidden to its members
    Set(SetGroup),
    /// List security groups
    Ls(OutputOptions),
    /// Show a security group: its members and its rules, line by line
    Show(GroupName),
    /// Remove a security group: members that are in no other are open to all again
    Rm(GroupName),
}

#[derive(ClapArgs)]
pub(crate) struct GroupName {
    /// Its name
    pub(crate) name: Name,
    /// Its network
    #[arg(long, value_name = "NETWORK", default_value = DEFAULT_NETWORK)]
    pub(crate) net: Name,
}

/// A rule is `any`, `group/NAME`, `endpoint/NAME` or an address or range, with `@PORT` or `@FIRST-LAST` behind it where only some
/// ports of rdma_cm are meant.
#[derive(ClapArgs)]
pub(crate) struct SetGroup {
    #[command(flatten)]
    pub(crate) group: GroupName,
    /// An endpoint that is in it, on whatever host; may be given several times, also for endpoints to come
    #[arg(long, value_name = "ENDPOINT")]
    member: Vec<Name>,
    /// Peers that may connect to its members: any, group/NAME, endpoint/NAME, ADDRESS or RANGE, and @PORT or @FIRST-LAST behind it;
    /// may be given several times
    #[arg(long, value_name = "RULE")]
    from: Vec<Rule>,
    /// Peers that its members may connect to
    #[arg(long, value_name = "RULE")]
    to: Vec<Rule>,
    /// Hold for TCP, UDP and other IP on its members' interfaces, too (needs nftables on each host)
    #[arg(long)]
    covers_ip: bool,
}

#[derive(ClapArgs)]
pub(crate) struct AddNetwork {
    /// Its name, unique in the cluster
    name: Name,
    /// The tenant that it belongs to
    #[arg(long, value_name = "TENANT", default_value = DEFAULT_TENANT)]
    tenant: Name,
    /// Its range of addresses, which may be that of another network; may be given twice, for IPv4 and IPv6
    #[arg(long, value_name = "RANGE", required = true)]
    subnet: Vec<IpNet>,
    /// Its number, the same on all hosts [default: a free one]
    #[arg(long, value_name = "N")]
    vni: Option<u32>,
    /// The largest IP packet of its endpoints, in bytes, at least 1280; the path MTU of its queue pairs follows from it [default: what
    /// the hosts' underlay leaves]
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u16>,
}

impl AddTenant {
    pub(crate) fn tenant(&self) -> Tenant {
        let (max_networks, max_endpoints_per_host) = (self.max_networks, self.max_endpoints);
        Tenant { name: self.name.clone(), max_networks, max_endpoints_per_host }
    }
}

impl SetGroup {
    pub(crate) fn group(&self) -> SecurityGroup {
        SecurityGroup {
            name: self.group.name.clone(),
            network: self.group.net.clone(),
            members: self.member.iter().cloned().collect(),
            allow_from: self.from.clone(),
            allow_to: self.to.clone(),
            covers_ip: self.covers_ip,
        }
    }
}

impl AddNetwork {
    pub(crate) fn network(&self) -> CreateNetwork {
        let (name, tenant, subnets) = (self.name.clone(), self.tenant.clone(), self.subnet.clone());
        CreateNetwork { name, tenant, vni: self.vni, subnets, mtu: self.mtu }
    }
}
