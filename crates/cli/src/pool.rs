//! `rdmesh pool`, `rdmesh endpoint acquire` and `release`: endpoints that are made before they are needed.

use crate::args::{
    AcquireOptions, ConfineOptions, OutputOptions, PoolCommand, PoolKey, PoolOptions, ReleaseOptions, ResizeOptions,
};
use crate::endpoint;
use crate::failure::Failure;
use crate::show::{print_json, print_line};
use crate::table::Table;
use rdmesh_fabric::api::{AcquireEndpoints, ConfineEndpoint, Lifetime, PoolInfo, ReleaseEndpoints};
use rdmesh_fabric::{Client, Name, Pool};

/// Executes a command on pools.
pub(crate) fn execute(command: PoolCommand, client: &Client) -> Result<(), Failure> {
    match command {
        PoolCommand::Create(options) => create(&options, client),
        PoolCommand::Resize(options) => resize(&options, client),
        PoolCommand::Ls(options) => list(&options, client),
        PoolCommand::Rm(key) => Ok(client.remove_pool(&key.net, &key.name).map(drop)?),
    }
}

/// Makes a pool.
fn create(options: &PoolOptions, client: &Client) -> Result<(), Failure> {
    if find(&options.key, client).is_ok() {
        let PoolKey { name, net } = &options.key;
        return Err(Failure::new(format!(
            "there is a pool `{name}` on network `{net}` already: `rdmesh pool resize` changes its size"
        )));
    }
    grow(&options.pool(), 0, client)
}

/// Changes the number of a pool's endpoints.
fn resize(options: &ResizeOptions, client: &Client) -> Result<(), Failure> {
    let pool = find(&options.key, client)?;
    let before = pool.size;
    grow(&Pool { size: options.size, ..pool }, before, client)
}

/// Sets the size of a pool that has `size` endpoints now, step by step: each answer takes no longer than an answer may.
fn grow(pool: &Pool, mut size: u32, client: &Client) -> Result<(), Failure> {
    loop {
        size = pool.size.min(size.saturating_add(STEP));
        let info = client.set_pool(&Pool { size, ..pool.clone() })?;
        if size == pool.size {
            return say(&info);
        }
    }
}

/// Lists pools.
fn list(options: &OutputOptions, client: &Client) -> Result<(), Failure> {
    let pools = client.pools()?;
    if options.json {
        return print_json(&pools);
    }
    if pools.is_empty() {
        return print_line("No pools: `rdmesh pool create NAME --size N` makes one.");
    }
    let mut table = Table::new(&["NETWORK", "POOL", "SIZE", "READY", "ACQUIRED", "RESTING"]);
    for PoolInfo { pool, ready, acquired, resting, .. } in pools {
        let counts = [pool.size, ready, acquired, resting].map(|count| count.to_string());
        let [size, ready, acquired, resting] = counts;
        table.row([pool.network.to_string(), pool.name.to_string(), size, ready, acquired, resting]);
    }
    print_line(table)
}

/// Takes endpoints from a pool.
pub(crate) fn acquire(options: &AcquireOptions, client: &Client) -> Result<(), Failure> {
    let request = AcquireEndpoints { count: options.count, lifetime: Lifetime::Persistent, enters: false };
    let acquired = client.acquire_endpoints(&options.key.net, &options.key.name, &request)?;
    if options.output.json { print_json(&acquired) } else { print_line(endpoint::table(&acquired)) }
}

/// Holds the processes of a control group to an endpoint's address.
pub(crate) fn confine(options: ConfineOptions, client: &Client) -> Result<(), Failure> {
    let ConfineOptions { name, net, cgroup } = options;
    let path = std::path::absolute(&cgroup).unwrap_or(cgroup);
    client.confine_endpoint(&net, &name, &ConfineEndpoint { path }).map(drop).map_err(Failure::from)
}

/// Gives endpoints back to their pools.
pub(crate) fn release(options: &ReleaseOptions, client: &Client) -> Result<(), Failure> {
    let is_of = |name: &Name, pool: &Pool| pool.network == options.net && of_pool(name, &pool.name);
    let pools = client.pools()?;
    for name in &options.names {
        if !pools.iter().any(|info| is_of(name, &info.pool)) {
            return Err(Failure::new(format!("endpoint `{name}` of network `{}` is of no pool", options.net)));
        }
    }
    for PoolInfo { pool, .. } in &pools {
        let names: Vec<Name> = options.names.iter().filter(|name| is_of(name, pool)).cloned().collect();
        if !names.is_empty() {
            client.release_endpoints(&pool.network, &pool.name, &ReleaseEndpoints { names })?;
        }
    }
    Ok(())
}

/// Whether an endpoint of that name is one of `pool`.
fn of_pool(endpoint: &Name, pool: &Name) -> bool {
    endpoint.as_str().rsplit_once('-').is_some_and(|(own, _)| own == pool.as_str())
}

fn find(key: &PoolKey, client: &Client) -> Result<Pool, Failure> {
    let is_it = |pool: &Pool| pool.name == key.name && pool.network == key.net;
    let found = client.pools()?.into_iter().map(|info| info.pool).find(is_it);
    found.ok_or_else(|| {
        Failure::new(format!(
            "there is no pool `{}` on network `{}` here: `rdmesh pool ls` lists those there are",
            key.name, key.net
        ))
    })
}

fn say(info: &PoolInfo) -> Result<(), Failure> {
    let PoolInfo { pool, ready, acquired, resting, .. } = info;
    print_line(format!(
        "Pool `{}` on network `{}`: {ready} endpoints ready, {acquired} acquired, {resting} resting.",
        pool.name, pool.network
    ))
}

/// Endpoints that are made with one request.
const STEP: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoints_name_tells_its_pool() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        assert!(of_pool(&name("fn-12"), &name("fn")));
        assert!(of_pool(&name("my-fn-12"), &name("my-fn")));
        assert!(!of_pool(&name("my-fn-12"), &name("my")));
        assert!(!of_pool(&name("fn"), &name("fn")));
    }
}
