//! Response buffer of a command.
#![allow(unsafe_code)]

/// Address and size of the program's buffer for the response.
pub(super) struct Response {
    pub(super) address: u64,
    pub(super) len: usize,
}

impl Response {
    /// Copies as much of `bytes` as the program has room for.
    pub(super) fn fill(&self, bytes: &[u8]) {
        if self.address == 0 {
            return;
        }
        let target = std::ptr::with_exposed_provenance_mut::<u8>(self.address as usize);
        // SAFETY: the program says that `len` bytes at this address are for the response.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len().min(self.len)) };
    }
}
