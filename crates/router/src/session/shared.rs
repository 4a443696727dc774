//! Parts of the router that the session thread and the thread of rdma_cm both work with.

use crate::disposal::Reclaimer;
use crate::io::ExternalPaths;
use crate::worker::{Mode, ShardHandle};

/// A set of them for one thread.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) shards: Vec<ShardHandle>,
    /// How the threads wait.
    pub(super) mode: Mode,
    pub(super) external_paths: ExternalPaths,
    pub(super) reclaimer: Reclaimer,
}
