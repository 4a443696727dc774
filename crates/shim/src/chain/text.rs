//! Chains: assembled from text, listed, and multiplied.
#![allow(unsafe_code)]

use super::border::{Failure, Result, code, free, given, object, put, store, text};
use libc::{c_char, c_int};
use rdmesh_chain::assemble::assemble;
use rdmesh_chain::program::{Chain, Cost as Figures};
use rdmesh_chain::verify::verify;
use rdmesh_preload::replace;

/// A verified chain.
pub(super) struct Verified(Chain);

impl Verified {
    /// Verifies a chain.
    pub(super) fn new(chain: Chain) -> Result<Self> {
        verify(&chain).map_err(Failure::invalid)?;
        Ok(Self(chain))
    }

    /// A chain that was verified already.
    pub(super) fn proved(chain: Chain) -> Self {
        Self(chain)
    }

    /// The chain.
    pub(super) fn chain(&self) -> &Chain {
        &self.0
    }
}

/// `struct rdmesh_chain_cost`.
#[repr(C)]
struct Cost {
    copies: u64,
    atomics: u64,
    orders: u64,
    requests: u64,
    steps: u64,
    bytes: u64,
}

replace! {
    /// See `rdmesh_chain.h`, as for all of these.
    fn rdmesh_chain_assemble(source: *const c_char) -> *mut Verified {
        object(|| {
            // SAFETY: what the program passes is as the header says; so it is below.
            let source = unsafe { text(source, "the text")? };
            Verified::new(assemble(source).map_err(Failure::invalid)?)
        })
    }

    /// Multiplies a chain.
    fn rdmesh_chain_instances(chain: *const Verified, count: u32) -> *mut Verified {
        object(|| {
            // SAFETY: as above.
            let chain = unsafe { given(chain, "the chain")? }.chain();
            if count > MOST_INSTANCES {
                return Err(Failure::invalid(format_args!("a chain has at most {MOST_INSTANCES} instances")));
            }
            chain.instances(count as usize).map(Verified).map_err(Failure::invalid)
        })
    }

    /// Lists a chain.
    fn rdmesh_chain_listing(chain: *const Verified, buffer: *mut c_char, size: usize) -> c_int {
        code(|| {
            // SAFETY: as above.
            let listing = unsafe { given(chain, "the chain")? }.chain().to_string();
            if !buffer.is_null() && size > 0 {
                // SAFETY: the buffer has `size` bytes, of which no other reference exists.
                put(&listing, unsafe { std::slice::from_raw_parts_mut(buffer.cast(), size) });
            }
            Ok(listing.len())
        })
    }

    /// The cost of a lap.
    fn rdmesh_chain_cost(chain: *const Verified, cost: *mut Cost) -> c_int {
        code(|| {
            // SAFETY: as above.
            let Figures { copies, atomics, orders, requests, steps, bytes } =
                unsafe { given(chain, "the chain")? }.chain().cost();
            // SAFETY: as above.
            unsafe { store(cost, Cost { copies, atomics, orders, requests, steps, bytes }) };
            Ok(0)
        })
    }

    /// Bytes of a message.
    fn rdmesh_chain_message_length(chain: *const Verified) -> c_int {
        code(|| {
            // SAFETY: as above.
            let chain = unsafe { given(chain, "the chain")? }.chain();
            Ok(chain.receives.first().map_or(0, |receive| receive.message(0)) as usize)
        })
    }

    /// Frees a chain.
    fn rdmesh_chain_free(chain: *mut Verified) -> () {
        // SAFETY: as above.
        unsafe { free(chain) }
    }
}

/// More than requests that a client has outstanding.
const MOST_INSTANCES: u32 = 1024;
