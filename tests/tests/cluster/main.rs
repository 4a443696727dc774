//! Many hosts: the store of a cluster, over real etcd servers, and routers that share it.

mod groups;
mod routers;
mod store;
