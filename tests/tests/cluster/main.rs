//! Many hosts: the store of a cluster, over real etcd servers, routers that share it, and hosts with stock
//! programs.

mod groups;
mod hosts;
mod routers;
mod store;
