//! Memory keys: regions and windows, and the access checks of local and remote keys.

mod keys;
mod payload;

pub(crate) use keys::{AccessDenied, BindRequest, KeyTable};
pub(crate) use payload::{
    CopyError, Payload, Source, calculate, compare_swap_wide, gather, gather_bytes, scatter_bytes, scatter_zeros,
};
