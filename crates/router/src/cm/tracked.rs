//! Connection tracking: security groups are about who begins, which only rdma_cm shows.

use crate::routes::SharedRoutes;
use rdmesh_verbs::{Gid, Vni};

/// A connection, or a resolved service, whose two addresses may exchange packets. It is tracked where there are no groups too:
/// some may be set while it lasts.
#[derive(Debug)]
pub(super) struct Tracked {
    routes: SharedRoutes,
    vni: Vni,
    from: Gid,
    to: Gid,
}

impl Tracked {
    /// Begins with a request of `from` that the groups allow.
    pub(super) fn begin(routes: &SharedRoutes, vni: Vni, from: Gid, to: Gid) -> Self {
        routes.change(|routes| routes.track(vni, from, to));
        Self { routes: routes.clone(), vni, from, to }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.routes.change(|routes| routes.untrack(self.vni, self.from, self.to));
    }
}
