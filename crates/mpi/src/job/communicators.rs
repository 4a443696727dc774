//! Communicators: which rank of `MPI_COMM_WORLD` a rank of each is; in one between two groups, a rank of the other group.

use crate::abi::Handle;
use crate::library::Library;
use std::collections::HashMap;

/// Ranks of the communicators that were used, until they are freed.
#[derive(Default)]
pub(crate) struct Communicators {
    /// None where MPI does not tell.
    known: HashMap<Handle, Option<Vec<i32>>>,
}

impl Communicators {
    /// The rank in `MPI_COMM_WORLD` of a rank of `comm`; none for one of another world.
    pub(crate) fn world_rank(&mut self, comm: Handle, rank: i32, library: &Library) -> Option<u32> {
        if comm == library.abi.named.comm_world {
            return u32::try_from(rank).ok();
        }
        let ranks = self.known.entry(comm).or_insert_with(|| ranks(comm, library)).as_ref()?;
        u32::try_from(*ranks.get(usize::try_from(rank).ok()?)?).ok()
    }

    /// The handle will mean another one.
    pub(crate) fn forget(&mut self, comm: Handle) {
        self.known.remove(&comm);
    }
}

fn ranks(comm: Handle, library: &Library) -> Option<Vec<i32>> {
    let mut is_between_groups = 0;
    if library.comm_test_inter(comm, &mut is_between_groups) != 0 {
        return None;
    }
    with_group(comm, is_between_groups != 0, library, |group| {
        with_group(library.abi.named.comm_world, false, library, |world| {
            let mut size = 0;
            if library.group_size(group, &mut size) != 0 {
                return None;
            }
            let mut own: Vec<i32> = (0..size).collect();
            let mut result = vec![library.abi.undefined; own.len()];
            let code = library.group_translate_ranks(group, size, own.as_mut_ptr(), world, result.as_mut_ptr());
            (code == 0).then_some(result)
        })
    })
}

fn with_group<T>(comm: Handle, is_other: bool, library: &Library, ask: impl FnOnce(Handle) -> Option<T>) -> Option<T> {
    let mut slot = 0_u64;
    let at = (&raw mut slot).cast();
    let code = if is_other { library.comm_remote_group(comm, at) } else { library.comm_group(comm, at) };
    if code != 0 {
        return None;
    }
    let answer = ask(library.handle_at(at, 0));
    library.group_free(at);
    answer
}
