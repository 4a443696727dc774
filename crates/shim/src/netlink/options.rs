//! Options of netlink sockets (`SOL_NETLINK`).

use rustix::io::Errno;

/// Options that a program has set. All of them are flags.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Options {
    set: u32,
}

impl Options {
    /// Sets option `name`.
    pub(crate) fn set(&mut self, name: i32, value: i32) -> Result<(), Errno> {
        match name {
            libc::NETLINK_ADD_MEMBERSHIP | libc::NETLINK_DROP_MEMBERSHIP | libc::NETLINK_LISTEN_ALL_NSID => {
                Err(Errno::PERM)
            }
            _ if !FLAGS.contains(&name) => Err(Errno::NOPROTOOPT),
            _ if value != 0 => {
                self.set |= 1 << name;
                Ok(())
            }
            _ => {
                self.set &= !(1 << name);
                Ok(())
            }
        }
    }

    /// The value of option `name`.
    pub(crate) fn value(&self, name: i32) -> Result<i32, Errno> {
        if FLAGS.contains(&name) { Ok(i32::from(self.set & 1 << name != 0)) } else { Err(Errno::NOPROTOOPT) }
    }

    /// Whether of a request that failed the header alone is repeated.
    pub(super) fn caps_acknowledgements(&self) -> bool {
        self.set & 1 << libc::NETLINK_CAP_ACK != 0
    }
}

const FLAGS: [i32; 6] = [
    libc::NETLINK_PKTINFO,
    libc::NETLINK_BROADCAST_ERROR,
    libc::NETLINK_NO_ENOBUFS,
    libc::NETLINK_CAP_ACK,
    libc::NETLINK_EXT_ACK,
    libc::NETLINK_GET_STRICT_CHK,
];
