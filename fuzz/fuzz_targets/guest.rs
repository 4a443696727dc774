//! Fuzz target for what a virtual machine sends to its device process: packets, frames, requests, and a router's answers.
//!
//! Nothing that reaches the router may name memory that is not the guest's.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdmesh_vm::host::Trial;

fuzz_target!(|data: &[u8]| {
    let directory = tempfile::tempdir().expect("a folder");
    Trial::new(directory.path()).expect("a device").run(data);
});
