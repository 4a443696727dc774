//! Sockets that are in epoll instances before they are connected, as nginx has those of its upstream servers.

use super::Epoll;
use super::member::{self, register};
use crate::kernel;
use crate::lock::Spin;
use crate::table::{self, Object};
use libc::epoll_event;
use rdmesh_preload::settings::settings;
use rdmesh_streams::report::Reason;
use rustix::io::Errno;
use std::ffi::c_int;
use std::sync::Arc;

/// What a program wants to know of a socket that may become a connection.
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

/// The kernel changes no member that is exclusive (`EPOLLEXCLUSIVE`).
fn is_exclusive(wanted: epoll_event) -> bool {
    wanted.events & libc::EPOLLEXCLUSIVE as u32 != 0
}

impl Early {
    fn change(&self, epfd: c_int, wanted: Option<epoll_event>) {
        let mut all = self.0.lock();
        all.retain(|one| one.epfd != epfd);
        all.extend(wanted.map(|wanted| Registration { epfd, wanted }));
    }

    /// The socket, which is `fd`, has become a stream: the instances have it as one.
    pub(crate) fn hand_over(&self, fd: c_int) {
        let all = std::mem::take(&mut *self.0.lock());
        for Registration { epfd, wanted } in all {
            match register(epfd, libc::EPOLL_CTL_MOD, fd, wanted.events, wanted.u64) {
                Ok(()) => Epoll::adopt(epfd, fd, wanted),
                // The instance has been closed, and its descriptor may be another's.
                Err(Errno::NOENT | Errno::BADF | Errno::INVAL | Errno::PERM) if !is_exclusive(wanted) => {}
                // What the kernel does not change it alone reports.
                Err(_) => drop(table::with_stream(fd, |stream| stream.move_to_tcp(fd, Reason::Waiters))),
            }
        }
    }
}
