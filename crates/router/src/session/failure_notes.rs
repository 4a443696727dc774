//! Records of failed requests: what is worth noting of a command that failed, and of a path that cannot work.

use super::account::Account;
use super::failed_requests::{FailedRequest, Subject, subject};
use super::program::Program;
use crate::io::ExternalPathError;
use rdmesh_nic::{Route, Routes};
use rdmesh_uverbs::session::RequestKind;
use rdmesh_verbs::{AddressVector, Gid};
use rustix::io::Errno;
use std::net::IpAddr;

impl Account {
    /// Records a command that failed.
    pub(super) fn note_failure(&self, kind: RequestKind, body: &[u8], errno: Errno, program: &Program) {
        let limit = self.take_refusal();
        let request = match subject(kind, body) {
            _ if errno == Errno::NOMEM && limit.is_some() => limit.map(FailedRequest::Limit),
            Subject::QueuePair(number) if errno == Errno::OPNOTSUPP => Some(FailedRequest::QpType(number)),
            Subject::Registration if errno == Errno::OPNOTSUPP => Some(FailedRequest::PrivatePages),
            Subject::Resolution(Some(peer)) if errno == Errno::NETUNREACH => {
                Some(FailedRequest::NoPath { peer, external: None })
            }
            // Recorded with the peer.
            _ if errno == Errno::ACCESS && kind == RequestKind::Verbs => None,
            // A non-blocking program asks for events when there are none.
            _ if errno == Errno::AGAIN => None,
            // The `rdma` tool reports its errors itself.
            _ if kind == RequestKind::Netlink => None,
            // Programs look at every entry of the GID table, most of which are empty: such a failure is not recorded either.
            _ if errno == Errno::NODATA => None,
            subject => Some(FailedRequest::Refused { what: subject.name(), errno }),
        };
        if let Some(request) = request {
            self.note(request, program);
        }
    }

    /// Records that security groups keep the endpoint from a peer, and logs it once.
    pub(super) fn note_forbidden(&self, peer: IpAddr, program: &Program) {
        if self.is_first("security groups") {
            let (endpoint, network) = (&self.spec().name, &self.spec().network);
            tracing::info!(endpoint, network, %peer, "security groups refuse a connection; `rdmesh doctor` lists those to come");
        }
        self.note(FailedRequest::Forbidden { peer }, program);
    }

    /// Records an error in a path that was accepted as it is.
    pub(super) fn note_path(
        &self,
        av: &AddressVector,
        routes: &Routes,
        external: Option<ExternalPathError>,
        program: &Program,
    ) {
        let gids = &self.spec().gids;
        let Some(gid) = gids.get(usize::from(av.sgid_index)).copied() else { return };
        let to = av.dgid.ip();
        let is_like = |gid: &Gid| !gid.is_zero() && gid.ip().is_ipv4() == to.is_ipv4();
        let request = if !is_like(&gid) {
            let better = gids.iter().position(is_like).and_then(|index| index.try_into().ok());
            FailedRequest::WrongGid { index: av.sgid_index, gid, better, peer: to }
        } else if !to.is_multicast() && external.is_some() && routes.find(self.spec().vni, av.dgid) == Route::External {
            FailedRequest::NoPath { peer: to, external }
        } else {
            return;
        };
        self.note(request, program);
    }
}
