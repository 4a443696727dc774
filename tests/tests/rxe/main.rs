//! Interoperability with a stock kernel's rdma_rxe and rdma_cm, which know nothing of rdmesh: plain RoCEv2, each side as server
//! and as client.

mod connections;
mod data;
mod sysfs;
mod world;
