//! `rdmesh network`: commands on tenant networks.

use crate::args::OutputOptions;
use crate::failure::Failure;
use crate::show::{print_json, print_line};
use crate::table::Table;
use rdmesh_fabric::api::{AttachInterface, CreateNetwork};
use rdmesh_fabric::{Client, Name};
use serde_json::json;

/// Makes a network.
pub(crate) fn add(network: &CreateNetwork, client: &Client) -> Result<(), Failure> {
    let made = client.add_network(network)?;
    print_line(format!("Network `{}` of tenant `{}` has number {}.", made.name, made.tenant, made.vni))
}

/// Removes a network that nothing is on.
pub(crate) fn remove(network: &Name, client: &Client) -> Result<(), Failure> {
    Ok(client.remove_network(network)?)
}

/// Makes an interface of the host a part of a network.
pub(crate) fn attach(network: &Name, interface: String, vni: Option<u32>, client: &Client) -> Result<(), Failure> {
    let attached = client.attach_interface(network, &AttachInterface { interface, vni })?;
    print_line(format!("Attached to network `{network}`: {}.", attached.join(", ")))
}

/// Gives an interface back to the host.
pub(crate) fn detach(network: &Name, interface: &str, client: &Client) -> Result<(), Failure> {
    client.detach_interface(network, interface)?;
    Ok(())
}

/// Lists networks.
pub(crate) fn list(options: &OutputOptions, client: &Client) -> Result<(), Failure> {
    let networks = client.networks()?;
    let listed = networks.into_iter().map(|network| Ok((client.interfaces(&network.name)?, network)));
    let listed = listed.collect::<Result<Vec<_>, Failure>>()?;
    if options.json {
        let with_interfaces = listed.iter().map(|(interfaces, network)| {
            let (name, vni, subnets) = (&network.name, network.vni, &network.subnets);
            let (tenant, mtu) = (&network.tenant, network.mtu);
            json!({ "name": name, "tenant": tenant, "vni": vni, "subnets": subnets, "mtu": mtu, "interfaces": interfaces })
        });
        return print_json(&with_interfaces.collect::<Vec<_>>());
    }
    if listed.is_empty() {
        return print_line("No networks: `rdmesh run --net NETWORK -- COMMAND` makes one.");
    }
    let mut table = Table::new(&["NETWORK", "TENANT", "NUMBER", "ADDRESSES", "MTU", "INTERFACES"]);
    for (interfaces, network) in listed {
        let subnets: Vec<String> = network.subnets.iter().map(ToString::to_string).collect();
        let interfaces = if interfaces.is_empty() { "-".to_owned() } else { interfaces.join(", ") };
        table.row([
            network.name.to_string(),
            network.tenant.to_string(),
            network.vni.to_string(),
            subnets.join(", "),
            network.mtu.map_or_else(|| "-".to_owned(), |mtu| mtu.to_string()),
            interfaces,
        ]);
    }
    print_line(table)
}
