//! Address discipline: the programs of an endpoint that shares its network namespace use its addresses and no others.
//!
//! Extended BPF, attached to a control group, sees what the sockets made in it ask for and what they send and receive:
//!
//! * `bind` to another endpoint's address fails with `EADDRNOTAVAIL`; the wildcard address becomes the endpoint's own, so that
//!   unmodified servers of many endpoints listen at the same port;
//! * `connect` and unconnected datagrams go out from the endpoint's own address;
//! * the loopback address is the endpoint's own to the network, and what was asked for to the program: a server bound to
//!   127.0.0.1 is reached by programs of its endpoint only;
//! * packets from or to other addresses are dropped, however the socket came by them (a listener that never called `bind`,
//!   an option, a raw socket).
//!
//! A socket belongs to the control group of the process that made it, wherever its descriptor goes.

mod cgroup;
mod programs;

pub use cgroup::ControlGroup;

use programs::Own;
use rdmesh_bpf::{Attachment, Program};
use rustix::io::Errno;
use std::net::IpAddr;
use std::os::fd::AsFd;

/// Control group whose sockets use an endpoint's addresses and no others.
#[derive(Debug)]
pub struct Confinement {
    group: ControlGroup,
    attached: Vec<Attachment>,
}

impl Confinement {
    /// Holds the sockets that are made in `group` from now on to `addresses`.
    pub fn start(group: ControlGroup, addresses: &[IpAddr]) -> Result<Self, ConfineError> {
        let mut confinement = Self { group, attached: Vec::new() };
        match confinement.attach(addresses) {
            Ok(()) => Ok(confinement),
            Err(error) => {
                // What cannot be taken away goes with the group.
                let _ = confinement.withdraw();
                Err(error)
            }
        }
    }

    /// Control group that the programs are attached to.
    pub fn group(&self) -> &ControlGroup {
        &self.group
    }

    /// The confinement of `group` that a router began which has died.
    pub fn adopt(group: ControlGroup) -> Self {
        Self { group, attached: Vec::new() }
    }

    /// Ends the use of the addresses: the group's processes are killed if it was made for the endpoint; else its sockets can send and
    /// receive nothing more. Returns a group whose processes have not all ended yet.
    pub fn end(mut self) -> Result<Option<ControlGroup>, ConfineError> {
        if self.group.is_own() {
            let is_gone = self.group.kill().map_err(ConfineError::Group)?;
            return Ok((!is_gone).then_some(self.group));
        }
        let before = std::mem::take(&mut self.attached);
        // First the stricter programs, so that there is no moment without any.
        match self.attach(&[]) {
            // The group was removed, and its sockets with it.
            Err(ConfineError::Group(error)) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        }
        self.detach(&before).map(|()| None)
    }

    /// Leaves the group as it was before, with its processes.
    pub fn withdraw(self) -> Result<(), ConfineError> {
        self.detach(&self.attached)
    }

    fn detach(&self, attached: &[Attachment]) -> Result<(), ConfineError> {
        let directory = self.group.open().map_err(ConfineError::Group)?;
        attached.iter().try_for_each(|attached| attached.detach(directory.as_fd())).map_err(ConfineError::Kernel)
    }

    fn attach(&mut self, addresses: &[IpAddr]) -> Result<(), ConfineError> {
        let directory = self.group.open().map_err(ConfineError::Group)?;
        for program in load(addresses)? {
            self.attached.push(program.attach(directory.as_fd()).map_err(ConfineError::Kernel)?);
        }
        Ok(())
    }
}

/// Error of holding programs to an endpoint's addresses.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The control group cannot be used.
    #[error("control group: {0}")]
    Group(#[source] std::io::Error),
    /// The kernel takes no such programs.
    #[error("the kernel takes no programs for control groups: {0}")]
    Kernel(#[source] Errno),
}

/// The programs for these addresses, checked by the kernel.
fn load(addresses: &[IpAddr]) -> Result<Vec<Program>, ConfineError> {
    let own = Own::new(addresses).map_err(ConfineError::Kernel)?;
    let load = |has_errors| {
        let load_one = |(kind, code): (_, Vec<_>)| Program::load(kind, &code);
        own.programs(has_errors).into_iter().map(load_one).collect::<Result<Vec<_>, _>>()
    };
    // Before Linux 5.18 a refusal is EPERM, whatever the reason.
    load(true).or_else(|_| load(false)).map_err(ConfineError::Kernel)
}

/// Whether this host can hold programs to their addresses: what is missing, if it cannot.
pub fn check_confinement() -> Result<(), ConfineError> {
    ControlGroup::mount_point().map_err(ConfineError::Group)?;
    load(&[]).map(drop)
}

#[cfg(test)]
mod tests;
