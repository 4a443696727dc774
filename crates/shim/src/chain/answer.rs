//! Replies of services, judged.

use rdmesh_chain::offload::Answer as Judged;
use std::ffi::c_void;
use std::ptr::null;

/// `struct rdmesh_answer`.
#[repr(C)]
pub(super) struct Answer {
    kind: u32,
    version: u32,
    value: *const c_void,
    length: usize,
}

impl Answer {
    /// Judgement of a reply, in which the value lies.
    pub(super) fn of(judged: &Judged<&[u8]>) -> Self {
        let none = |kind| Self { kind, version: 0, value: null(), length: 0 };
        match judged {
            Judged::Value { version, value } => {
                Self { version: *version, value: value.as_ptr().cast(), length: value.len(), ..none(0) }
            }
            Judged::Miss => none(1),
            Judged::OtherKey => none(2),
            Judged::Torn => none(3),
            Judged::Stale => none(4),
        }
    }
}
