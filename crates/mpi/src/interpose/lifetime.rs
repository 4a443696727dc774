//! Beginning and end of MPI, and of communicators.

use super::collectives::Group;
use super::measuring::begin_with_thresholds;
use super::{intercept, mpi};
use crate::abi::Handle;
use crate::rank::{join, rank};
use crate::settings::Settings;
use libc::{c_int, c_void};

intercept! {
    fn MPI_Init, PMPI_Init(argc: *mut c_void, argv: *mut c_void) {
        let code = mpi!().init(argc, argv);
        begin(code);
        code
    }

    fn MPI_Init_thread, PMPI_Init_thread(argc: *mut c_void, argv: *mut c_void, required: c_int, provided: *mut c_int) {
        let code = mpi!().init_thread(argc, argv, required, provided);
        begin(code);
        code
    }

    fn MPI_Finalize, PMPI_Finalize() {
        if let Some(rank) = rank() {
            rank.leave();
        }
        mpi!().finalize()
    }

    fn MPI_Comm_free, PMPI_Comm_free(comm: *mut c_void) {
        let library = mpi!();
        forget(library.handle_at(comm, 0));
        library.comm_free(comm)
    }

    fn MPI_Comm_disconnect, PMPI_Comm_disconnect(comm: *mut c_void) {
        let library = mpi!();
        forget(library.handle_at(comm, 0));
        library.comm_disconnect(comm)
    }
}

/// Joins the job, if MPI is initialised and there is one.
fn begin(code: c_int) {
    let settings = Settings::of_environment();
    if code != 0 || settings.job.is_none() {
        return;
    }
    match join(&settings) {
        Ok(rank) => begin_with_thresholds(rank, settings.threshold),
        Err(reason) => eprintln!("rdmesh: librdmesh-mpi.so: messages of this rank go MPI's own way: {reason}"),
    }
}

fn forget(comm: Handle) {
    if let Some(rank) = rank() {
        rank.job().forget(comm);
        Group::forget(rank, comm);
    }
}
