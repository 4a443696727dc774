//! `rdmesh faults`: fault injection in the router.

use crate::args::FaultsOptions;
use crate::failure::Failure;
use crate::show::print_line;
use rdmesh_fabric::Client;
use rdmesh_fabric::api::FaultsText;

/// Sets the faults that the router injects, or prints them.
pub(crate) fn faults(options: FaultsOptions, client: &Client) -> Result<(), Failure> {
    let now = match options.faults {
        None => client.faults()?,
        Some(text) => client.set_faults(&FaultsText { faults: (text != OFF).then_some(text) })?,
    };
    print_line(now.faults.as_deref().unwrap_or(OFF))
}

const OFF: &str = "off";
