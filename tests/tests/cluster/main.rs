//! Many hosts: the store of a cluster, over real etcd servers.

mod store;
