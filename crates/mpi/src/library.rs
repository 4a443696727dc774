//! The program's MPI library: its functions behind the intercepted ones, by their names in the profiling interface (`PMPI_…`,
//! MPI 4.1, chapter 15).
#![allow(unsafe_code)]

use crate::abi::{Abi, Handle, MPICH, Named, open_mpi};
use libc::{c_char, c_int, c_void};
use std::ffi::CStr;
use std::sync::OnceLock;

/// Declares the functions; their pointers are looked up together.
macro_rules! functions {
    ($($name:ident: $symbol:literal ($($arg:ident: $ty:ty),*);)*) => {
        /// Functions of the MPI library.
        pub(crate) struct Library {
            /// Binary interface, found out from the library's symbols.
            pub(crate) abi: Abi,
            $($name: unsafe extern "C" fn($($ty),*) -> c_int,)*
        }

        impl Library {
            fn of(source: Source) -> Option<Self> {
                Some(Self {
                    abi: source.abi()?,
                    $($name: {
                        let address = source.symbol($symbol)?;
                        // SAFETY: MPI defines the function with these parameters; handles that are narrower than a pointer are
                        // passed in the low half of its register.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> c_int>(address) }
                    },)*
                })
            }

            $(#[doc = concat!("`", stringify!($symbol), "`.")]
            #[allow(clippy::too_many_arguments, reason = "MPI's own")]
            pub(crate) fn $name(&self, $($arg: $ty),*) -> c_int {
                // SAFETY: the arguments are the program's own, or ours of the same kinds.
                unsafe { (self.$name)($($arg),*) }
            })*
        }
    };
}

type Pointer = *mut c_void;
type Numbers = *mut c_int;

functions! {
    init: c"PMPI_Init" (argc: Pointer, argv: Pointer);
    init_thread: c"PMPI_Init_thread" (argc: Pointer, argv: Pointer, required: c_int, provided: Numbers);
    finalize: c"PMPI_Finalize" ();
    send: c"PMPI_Send" (buffer: Pointer, count: c_int, datatype: Handle, dest: c_int, tag: c_int, comm: Handle);
    ssend: c"PMPI_Ssend" (buffer: Pointer, count: c_int, datatype: Handle, dest: c_int, tag: c_int, comm: Handle);
    rsend: c"PMPI_Rsend" (buffer: Pointer, count: c_int, datatype: Handle, dest: c_int, tag: c_int, comm: Handle);
    irsend: c"PMPI_Irsend" (buffer: Pointer, count: c_int, datatype: Handle, dest: c_int, tag: c_int, comm: Handle, request: Pointer);
    isend: c"PMPI_Isend" (buffer: Pointer, count: c_int, datatype: Handle, dest: c_int, tag: c_int, comm: Handle, request: Pointer);
    issend: c"PMPI_Issend" (buffer: Pointer, count: c_int, datatype: Handle, dest: c_int, tag: c_int, comm: Handle, request: Pointer);
    send_init: c"PMPI_Send_init" (buffer: Pointer, count: c_int, datatype: Handle, dest: c_int, tag: c_int, comm: Handle, request: Pointer);
    ssend_init: c"PMPI_Ssend_init" (buffer: Pointer, count: c_int, datatype: Handle, dest: c_int, tag: c_int, comm: Handle, request: Pointer);
    rsend_init: c"PMPI_Rsend_init" (buffer: Pointer, count: c_int, datatype: Handle, dest: c_int, tag: c_int, comm: Handle, request: Pointer);
    recv: c"PMPI_Recv" (buffer: Pointer, count: c_int, datatype: Handle, source: c_int, tag: c_int, comm: Handle, status: Pointer);
    irecv: c"PMPI_Irecv" (buffer: Pointer, count: c_int, datatype: Handle, source: c_int, tag: c_int, comm: Handle, request: Pointer);
    recv_init: c"PMPI_Recv_init" (buffer: Pointer, count: c_int, datatype: Handle, source: c_int, tag: c_int, comm: Handle, request: Pointer);
    mrecv: c"PMPI_Mrecv" (buffer: Pointer, count: c_int, datatype: Handle, message: Pointer, status: Pointer);
    imrecv: c"PMPI_Imrecv" (buffer: Pointer, count: c_int, datatype: Handle, message: Pointer, request: Pointer);
    sendrecv: c"PMPI_Sendrecv" (buffer: Pointer, count: c_int, datatype: Handle, dest: c_int, tag: c_int, into: Pointer, into_count: c_int, into_datatype: Handle, source: c_int, into_tag: c_int, comm: Handle, status: Pointer);
    sendrecv_replace: c"PMPI_Sendrecv_replace" (buffer: Pointer, count: c_int, datatype: Handle, dest: c_int, tag: c_int, source: c_int, into_tag: c_int, comm: Handle, status: Pointer);
    bcast: c"PMPI_Bcast" (buffer: Pointer, count: c_int, datatype: Handle, root: c_int, comm: Handle);
    reduce: c"PMPI_Reduce" (buffer: Pointer, into: Pointer, count: c_int, datatype: Handle, op: Handle, root: c_int, comm: Handle);
    allreduce: c"PMPI_Allreduce" (buffer: Pointer, into: Pointer, count: c_int, datatype: Handle, op: Handle, comm: Handle);
    reduce_local: c"PMPI_Reduce_local" (buffer: Pointer, into: Pointer, count: c_int, datatype: Handle, op: Handle);
    op_commutative: c"PMPI_Op_commutative" (op: Handle, flag: Numbers);
    gather: c"PMPI_Gather" (buffer: Pointer, count: c_int, datatype: Handle, into: Pointer, into_count: c_int, into_datatype: Handle, root: c_int, comm: Handle);
    gatherv: c"PMPI_Gatherv" (buffer: Pointer, count: c_int, datatype: Handle, into: Pointer, into_counts: Numbers, places: Numbers, into_datatype: Handle, root: c_int, comm: Handle);
    scatter: c"PMPI_Scatter" (buffer: Pointer, count: c_int, datatype: Handle, into: Pointer, into_count: c_int, into_datatype: Handle, root: c_int, comm: Handle);
    scatterv: c"PMPI_Scatterv" (buffer: Pointer, counts: Numbers, places: Numbers, datatype: Handle, into: Pointer, into_count: c_int, into_datatype: Handle, root: c_int, comm: Handle);
    allgather: c"PMPI_Allgather" (buffer: Pointer, count: c_int, datatype: Handle, into: Pointer, into_count: c_int, into_datatype: Handle, comm: Handle);
    allgatherv: c"PMPI_Allgatherv" (buffer: Pointer, count: c_int, datatype: Handle, into: Pointer, into_counts: Numbers, places: Numbers, into_datatype: Handle, comm: Handle);
    alltoall: c"PMPI_Alltoall" (buffer: Pointer, count: c_int, datatype: Handle, into: Pointer, into_count: c_int, into_datatype: Handle, comm: Handle);
    alltoallv: c"PMPI_Alltoallv" (buffer: Pointer, counts: Numbers, places: Numbers, datatype: Handle, into: Pointer, into_counts: Numbers, into_places: Numbers, into_datatype: Handle, comm: Handle);
    start: c"PMPI_Start" (request: Pointer);
    startall: c"PMPI_Startall" (count: c_int, requests: Pointer);
    probe: c"PMPI_Probe" (source: c_int, tag: c_int, comm: Handle, status: Pointer);
    iprobe: c"PMPI_Iprobe" (source: c_int, tag: c_int, comm: Handle, flag: Numbers, status: Pointer);
    improbe: c"PMPI_Improbe" (source: c_int, tag: c_int, comm: Handle, flag: Numbers, message: Pointer, status: Pointer);
    mprobe: c"PMPI_Mprobe" (source: c_int, tag: c_int, comm: Handle, message: Pointer, status: Pointer);
    wait: c"PMPI_Wait" (request: Pointer, status: Pointer);
    waitall: c"PMPI_Waitall" (count: c_int, requests: Pointer, statuses: Pointer);
    waitany: c"PMPI_Waitany" (count: c_int, requests: Pointer, index: Numbers, status: Pointer);
    waitsome: c"PMPI_Waitsome" (count: c_int, requests: Pointer, done: Numbers, indices: Numbers, statuses: Pointer);
    test: c"PMPI_Test" (request: Pointer, flag: Numbers, status: Pointer);
    testall: c"PMPI_Testall" (count: c_int, requests: Pointer, flag: Numbers, statuses: Pointer);
    testany: c"PMPI_Testany" (count: c_int, requests: Pointer, index: Numbers, flag: Numbers, status: Pointer);
    testsome: c"PMPI_Testsome" (count: c_int, requests: Pointer, done: Numbers, indices: Numbers, statuses: Pointer);
    request_free: c"PMPI_Request_free" (request: Pointer);
    request_get_status: c"PMPI_Request_get_status" (request: Handle, flag: Numbers, status: Pointer);
    cancel: c"PMPI_Cancel" (request: Pointer);
    comm_rank: c"PMPI_Comm_rank" (comm: Handle, rank: Numbers);
    comm_size: c"PMPI_Comm_size" (comm: Handle, size: Numbers);
    comm_split: c"PMPI_Comm_split" (comm: Handle, color: c_int, key: c_int, new: Pointer);
    comm_free: c"PMPI_Comm_free" (comm: Pointer);
    comm_disconnect: c"PMPI_Comm_disconnect" (comm: Pointer);
    comm_test_inter: c"PMPI_Comm_test_inter" (comm: Handle, flag: Numbers);
    comm_group: c"PMPI_Comm_group" (comm: Handle, group: Pointer);
    comm_remote_group: c"PMPI_Comm_remote_group" (comm: Handle, group: Pointer);
    comm_get_parent: c"PMPI_Comm_get_parent" (parent: Pointer);
    comm_call_errhandler: c"PMPI_Comm_call_errhandler" (comm: Handle, code: c_int);
    group_size: c"PMPI_Group_size" (group: Handle, size: Numbers);
    group_translate_ranks: c"PMPI_Group_translate_ranks" (from: Handle, count: c_int, ranks: Numbers, to: Handle, result: Numbers);
    group_free: c"PMPI_Group_free" (group: Pointer);
    type_size: c"PMPI_Type_size" (datatype: Handle, size: Numbers);
    type_get_extent: c"PMPI_Type_get_extent" (datatype: Handle, lower: *mut isize, extent: *mut isize);
    type_get_envelope: c"PMPI_Type_get_envelope" (datatype: Handle, integers: Numbers, addresses: Numbers, datatypes: Numbers, combiner: Numbers);
    type_get_contents: c"PMPI_Type_get_contents" (datatype: Handle, max_integers: c_int, max_addresses: c_int, max_datatypes: c_int, integers: Numbers, addresses: *mut isize, datatypes: Pointer);
    type_free: c"PMPI_Type_free" (datatype: Pointer);
    pack_size: c"PMPI_Pack_size" (count: c_int, datatype: Handle, comm: Handle, size: Numbers);
    pack: c"PMPI_Pack" (buffer: Pointer, count: c_int, datatype: Handle, packed: Pointer, size: c_int, position: Numbers, comm: Handle);
    unpack: c"PMPI_Unpack" (packed: Pointer, size: c_int, position: Numbers, buffer: Pointer, count: c_int, datatype: Handle, comm: Handle);
    get_count: c"PMPI_Get_count" (status: Pointer, datatype: Handle, count: Numbers);
    status_set_elements: c"PMPI_Status_set_elements_x" (status: Pointer, datatype: Handle, count: isize);
}

/// The library that the program has loaded; none where it has none.
pub(crate) fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    LIBRARY.get_or_init(|| Source::find().and_then(Library::of)).as_ref()
}

impl Library {
    /// Reads the handle at `at`, of the library's own width.
    pub(crate) fn handle_at(&self, at: *const c_void, index: usize) -> Handle {
        // SAFETY: the caller passes an array of handles of the program or of ours, with more than `index` elements.
        unsafe {
            if self.abi.handle_size == 4 {
                Handle(at.cast::<u32>().add(index).read() as usize)
            } else {
                Handle(at.cast::<usize>().add(index).read())
            }
        }
    }

    /// Writes the handle at `at`.
    pub(crate) fn set_handle(&self, at: *mut c_void, index: usize, handle: Handle) {
        // SAFETY: as above; the program gives the array to be written.
        unsafe {
            if self.abi.handle_size == 4 {
                at.cast::<u32>().add(index).write(handle.0 as u32);
            } else {
                at.cast::<usize>().add(index).write(handle.0);
            }
        }
    }

    /// A handle that came as an argument: the upper half of a narrow one's register is undefined.
    pub(crate) fn argument(&self, handle: Handle) -> Handle {
        if self.abi.handle_size == 4 { Handle(handle.0 as u32 as usize) } else { handle }
    }
}

/// Where the functions are found.
#[derive(Clone, Copy)]
struct Source(*mut c_void);

impl Source {
    /// Behind this library in the order of symbols; or, where the program has loaded MPI later and for itself, as Python does, in
    /// the library of that name.
    fn find() -> Option<Self> {
        let next = Self(libc::RTLD_NEXT);
        if next.symbol(c"PMPI_Init_thread").is_some() {
            return Some(next);
        }
        let names = [c"libmpi.so.40", c"libmpich.so.12", c"libmpi.so.12", c"libmpi.so", c"libmpich.so"];
        names.iter().find_map(|name| {
            // SAFETY: the name is a C string; nothing is loaded that is not loaded already.
            let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
            (!library.is_null()).then_some(Self(library))
        })
    }

    fn symbol(self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: a handle of the loader's, and a C string.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr().cast::<c_char>()) };
        (!address.is_null()).then_some(address)
    }

    /// By the variables that are Open MPI's handles, or by a function that only MPICH and its descendants have.
    fn abi(self) -> Option<Abi> {
        // A program may have copies of the library's variables, which the library then uses itself: the first definition counts.
        let variable = |name| {
            Self(libc::RTLD_DEFAULT).symbol(name).or_else(|| self.symbol(name)).map(|address| Handle(address as usize))
        };
        if let Some(comm_world) = variable(c"ompi_mpi_comm_world") {
            return Some(open_mpi(Named {
                comm_world,
                comm_self: variable(c"ompi_mpi_comm_self")?,
                comm_null: variable(c"ompi_mpi_comm_null")?,
                byte: variable(c"ompi_mpi_byte")?,
                request_null: variable(c"ompi_request_null")?,
                message_null: variable(c"ompi_message_null")?,
            }));
        }
        self.symbol(c"MPIR_Dup_fn").or_else(|| self.symbol(c"MPI_F_STATUS_IGNORE")).map(|_| MPICH)
    }
}
