//! Netlink addresses (`struct sockaddr_nl`), in the program's memory.
#![allow(unsafe_code)]

use libc::{sockaddr, sockaddr_nl, socklen_t};
use rustix::io::Errno;

/// Reads the address that the program gives; its port.
///
/// Other sockets than the kernel's, and groups, are for administrators.
///
/// # Safety
/// `address` must be null or valid for `len` bytes.
pub(crate) unsafe fn read(address: *const sockaddr, len: socklen_t) -> Result<(u32, u32), Errno> {
    if address.is_null() {
        return Err(Errno::FAULT);
    }
    if (len as usize) < size_of::<sockaddr_nl>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: by the contract; the struct is plain data.
    let address = unsafe { address.cast::<sockaddr_nl>().read_unaligned() };
    if i32::from(address.nl_family) != libc::AF_NETLINK {
        return Err(Errno::INVAL);
    }
    Ok((address.nl_pid, address.nl_groups))
}

/// Checks that the program's message is addressed to the kernel.
///
/// # Safety
/// As for [`read`]; a null address is the one that the socket is connected to.
pub(crate) unsafe fn must_be_kernel(address: *const sockaddr, len: socklen_t) -> Result<(), Errno> {
    if address.is_null() || len == 0 {
        return Ok(());
    }
    // SAFETY: by the contract.
    match unsafe { read(address, len) }? {
        (0, 0) => Ok(()),
        _ => Err(Errno::PERM),
    }
}

/// Writes the address of port `port_id` to where the program wants it, as much as fits, and its length; nothing for null.
///
/// # Safety
/// `address` must be null or valid for `*len` bytes, `len` null or valid.
pub(crate) unsafe fn write(port_id: u32, address: *mut sockaddr, len: *mut socklen_t) {
    if address.is_null() || len.is_null() {
        return;
    }
    // SAFETY: zeros are a valid struct.
    let mut whole: sockaddr_nl = unsafe { std::mem::zeroed() };
    whole.nl_family = libc::AF_NETLINK as u16;
    whole.nl_pid = port_id;
    // SAFETY: by the contract there is room for `*len` bytes; no more are written.
    unsafe {
        let room = (*len as usize).min(size_of::<sockaddr_nl>());
        std::ptr::copy_nonoverlapping((&raw const whole).cast::<u8>(), address.cast(), room);
        *len = size_of::<sockaddr_nl>() as socklen_t;
    }
}
