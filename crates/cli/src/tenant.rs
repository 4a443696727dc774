//! `rdmesh tenant`: owners of networks.

use crate::args::OutputOptions;
use crate::failure::Failure;
use crate::show::{print_json, print_line};
use crate::table::Table;
use rdmesh_fabric::{Client, Name, Tenant};

/// Adds a tenant, or changes its limits.
pub(crate) fn add(tenant: &Tenant, client: &Client) -> Result<(), Failure> {
    client.set_tenant(tenant)?;
    print_line(format!("Tenant `{}` is set.", tenant.name))
}

/// Lists tenants.
pub(crate) fn list(options: &OutputOptions, client: &Client) -> Result<(), Failure> {
    let tenants = client.tenants()?;
    if options.json {
        return print_json(&tenants);
    }
    if tenants.is_empty() {
        return print_line("No tenant but `default`, which has the networks of which nothing else is said.");
    }
    let mut table = Table::new(&["TENANT", "MAX-NETWORKS", "MAX-ENDPOINTS"]);
    let limit = |limit: Option<u32>| limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string());
    for tenant in tenants {
        table.row([tenant.name.to_string(), limit(tenant.max_networks), limit(tenant.max_endpoints_per_host)]);
    }
    print_line(table)
}

/// Removes a tenant.
pub(crate) fn remove(name: &Name, client: &Client) -> Result<(), Failure> {
    Ok(client.remove_tenant(name)?)
}
