//! The device ABI, both ends of it: kernel structs, rings, context page and session messages.
//!
//! * [`abi`]: the structs of the kernel's uapi headers (`ib_user_verbs.h`, `rdma_user_rxe.h`), as bytes.
//! * [`guard`]: accesses to pages that the other side may take away.
//! * [`shared`]: sealed memory that tenant and router both map.
//! * [`ring`]: the work and completion queues of `rdma_user_rxe.h`, seen from the device's side.
//! * [`page`]: the context page: doorbells, completion arming, QP states.
//! * [`session`]: the messages on the socket between the preload library and the router.
//!
//! The other side of everything here is hostile: values are copied out once, checked, and the copy is used.

pub mod abi;
pub mod guard;
pub mod page;
pub mod ring;
pub mod session;
pub mod shared;
