//! `rdmesh group`: security groups.

use crate::args::{GroupName, OutputOptions};
use crate::failure::Failure;
use crate::show::{print_json, print_line};
use crate::table::Table;
use rdmesh_fabric::{Client, Rule, SecurityGroup};
use std::fmt::Display;

/// Adds a security group, or changes one.
pub(crate) fn set(group: &SecurityGroup, client: &Client) -> Result<(), Failure> {
    client.set_group(group)?;
    let binds = if group.covers_ip { BOTH } else { RDMA_ONLY };
    print_line(format!("Group `{}` of network `{}` is set. {binds}", group.name, group.network))
}

/// Lists security groups.
pub(crate) fn list(options: &OutputOptions, client: &Client) -> Result<(), Failure> {
    let groups = client.groups()?;
    if options.json {
        return print_json(&groups);
    }
    if groups.is_empty() {
        return print_line("No security groups: endpoints of one network reach each other. `rdmesh group set --help`");
    }
    let mut table = Table::new(&["NETWORK", "GROUP", "BINDS", "MEMBERS", "FROM", "TO"]);
    for group in groups {
        let SecurityGroup { name, network, members, allow_from, allow_to, covers_ip } = group;
        let binds = if covers_ip { "RDMA, IP" } else { "RDMA" }.to_owned();
        let (name, network) = (name.to_string(), network.to_string());
        table.row([network, name, binds, text(&members), text(&allow_from), text(&allow_to)]);
    }
    print_line(table)
}

/// Shows a security group.
pub(crate) fn show(GroupName { name, net }: &GroupName, client: &Client) -> Result<(), Failure> {
    let found = client.groups()?.into_iter().find(|group| (&group.name, &group.network) == (name, net));
    let Some(group) = found else {
        return Err(Failure::new(format!("there is no group `{name}` on network `{net}`: see `rdmesh group ls`")));
    };
    let mut table = Table::new(&["", ""]);
    group.members.iter().for_each(|member| table.row(["member".to_owned(), member.to_string()]));
    let mut rules = |side: &str, rules: &[Rule]| {
        rules.iter().for_each(|rule| table.row([side.to_owned(), rule.to_string()]));
    };
    rules("from", &group.allow_from);
    rules("to", &group.allow_to);
    print_line(table.to_string().trim_start())
}

/// Removes a security group.
pub(crate) fn remove(GroupName { name, net }: &GroupName, client: &Client) -> Result<(), Failure> {
    Ok(client.remove_group(net, name)?)
}

fn text<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    if items.is_empty() { "-".to_owned() } else { items.join(", ") }
}

const BOTH: &str =
    "It binds RDMA (queue pairs, datagrams, rdma_cm), and TCP, UDP and other IP on the endpoints' interfaces.";
/// A remark for operators, who would expect more of such rules.
const RDMA_ONLY: &str = "It binds RDMA (queue pairs, datagrams, rdma_cm), not TCP and UDP on the endpoints' interfaces: for these add --covers-ip.";
