//! Memory keys: regions, windows, and who may reach what through them.

mod keys;
mod payload;

pub(crate) use keys::{AccessDenied, BindRequest, KeyTable};
pub(crate) use payload::{CopyError, Payload, Source, gather, gather_bytes, scatter_bytes};
