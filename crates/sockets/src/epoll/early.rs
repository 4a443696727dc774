//! Sockets that are in epoll instances before they are connected, as nginx has those of its upstream servers.

use super::Epoll;
use super::member;
use crate::kernel;
use crate::lock::Spin;
use crate::table::{self, Object};
use libc::epoll_event;
use rdmesh_preload::gate;
use rdmesh_preload::settings::settings;
use std::ffi::c_int;
use std::sync::Arc;

/// Registrations of a TCP socket that may become a connection.
#[derive(Default)]
pub(crate) struct Early(Spin<Vec<Registration>>);

#[derive(Clone, Copy)]
struct Registration {
    epfd: c_int,
    wanted: epoll_event,
}

/// The kernel has made a change of `fd`, which is no stream.
pub(super) fn note(epfd: c_int, operation: c_int, fd: c_int, event: *const epoll_event) {
    if settings().upgrade_after().is_none() {
        return;
    }
    let wanted = member::wanted(event);
    let known = table::object(fd);
    match (operation, known.as_deref(), wanted) {
        (libc::EPOLL_CTL_ADD, None, Some(wanted)) if kernel::is_unconnected(fd) => {
            let early = Early(Spin::new(vec![Registration { epfd, wanted }]));
            table::set(fd, Arc::new(Object::Early(early)));
        }
        (_, Some(Object::Early(early)), wanted) => {
            early.change(epfd, wanted.filter(|_| operation != libc::EPOLL_CTL_DEL))
        }
        _ => {}
    }
}

impl Early {
    fn change(&self, epfd: c_int, wanted: Option<epoll_event>) {
        // A fork's child does not find it locked.
        let _gate = gate::enter();
        let mut all = self.0.lock();
        all.retain(|one| one.epfd != epfd);
        all.extend(wanted.map(|wanted| Registration { epfd, wanted }));
    }

    /// The socket, which is `fd`, has become a stream: the instances have it as one.
    pub(crate) fn hand_over(&self, fd: c_int) {
        let _gate = gate::enter();
        let all = std::mem::take(&mut *self.0.lock());
        all.into_iter().for_each(|one| Epoll::adopt(one.epfd, fd, one.wanted));
    }
}
