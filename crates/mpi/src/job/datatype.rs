//! Sizes of messages, and whether their data is in one piece.

use crate::abi::Handle;
use crate::library::Library;
use std::ptr::null_mut;

/// A buffer of the program, as MPI's calls name it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) address: usize,
    pub(crate) count: i32,
    pub(crate) datatype: Handle,
}

impl Buffer {
    /// Bytes of data in it; none where the arguments are wrong, of which MPI tells the program.
    pub(crate) fn len(&self, library: &Library) -> Option<u64> {
        let mut size = 0;
        let is_good = self.count >= 0 && library.type_size(self.datatype, &mut size) == 0;
        if !is_good {
            return None;
        }
        u64::try_from(size).ok()?.checked_mul(u64::try_from(self.count).ok()?)
    }

    /// Whether the data lies in one piece from the address on, in the order in which it is sent.
    pub(crate) fn is_in_one_piece(&self, library: &Library) -> bool {
        self.address != 0 && is_in_one_piece(self.datatype, library)
    }

    /// As a pointer.
    pub(crate) fn pointer(&self) -> *mut libc::c_void {
        std::ptr::with_exposed_provenance_mut(self.address)
    }
}

/// Basic datatypes without gaps, and contiguous ones and duplicates of those. Others may have another order, which their extent
/// does not tell.
fn is_in_one_piece(datatype: Handle, library: &Library) -> bool {
    let named = library.abi.combiner_named;
    match combiner(datatype, library) {
        Some(combiner) if combiner == named => has_no_gap(datatype, library),
        Some(combiner) if combiner == named + 1 || combiner == named + 2 => {
            inner(datatype, library, |inner| is_in_one_piece(inner, library))
        }
        _ => false,
    }
}

fn combiner(datatype: Handle, library: &Library) -> Option<i32> {
    let (mut integers, mut addresses, mut datatypes, mut combiner) = (0, 0, 0, 0);
    let code = library.type_get_envelope(datatype, &mut integers, &mut addresses, &mut datatypes, &mut combiner);
    (code == 0).then_some(combiner)
}

fn has_no_gap(datatype: Handle, library: &Library) -> bool {
    let (mut size, mut lower, mut extent) = (0, 0, 0);
    library.type_size(datatype, &mut size) == 0
        && library.type_get_extent(datatype, &mut lower, &mut extent) == 0
        && lower == 0
        && isize::try_from(size) == Ok(extent)
}

/// Asks about the datatype that this one is made of.
fn inner(datatype: Handle, library: &Library, ask: impl FnOnce(Handle) -> bool) -> bool {
    let (mut integer, mut slot) = (0, 0_u64);
    let at = (&raw mut slot).cast();
    if library.type_get_contents(datatype, 1, 0, 1, &mut integer, null_mut(), at) != 0 {
        return false;
    }
    let inner = library.handle_at(at, 0);
    let answer = ask(inner);
    if combiner(inner, library) != Some(library.abi.combiner_named) {
        // A reference that the call has made.
        library.type_free(at);
    }
    answer
}
