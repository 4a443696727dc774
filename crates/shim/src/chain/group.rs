//! Groups of managed queues: `rdmesh_group_*`.
#![allow(unsafe_code)]

use super::border::{Failure, Result, code, put, store};
use super::calls::Device;
use crate::libibverbs::{VerbsContext, function};
use libc::{c_int, c_void};
use rdmesh_preload::replace;
use rdmesh_uverbs::session::chain::{Call, Group, List};
use std::ffi::{CStr, c_char};
use zerocopy::FromBytes;

/// `struct rdmesh_stats`.
#[repr(C)]
pub(super) struct Stats {
    group: u32,
    state: u32,
    queue_pairs: u32,
    has_fault: u32,
    copies: u64,
    atomics: u64,
    orders: u64,
    steps: u64,
    bytes: u64,
    soft_faults: u64,
    starved: u64,
}

impl From<&Group> for Stats {
    fn from(of: &Group) -> Self {
        Self {
            group: of.group,
            state: of.state,
            queue_pairs: of.qps,
            has_fault: of.has_fault,
            copies: of.copies,
            atomics: of.atomics,
            orders: of.orders,
            steps: of.steps,
            bytes: of.bytes,
            soft_faults: of.soft_faults,
            starved: of.starved,
        }
    }
}

/// `struct rdmesh_fault`.
#[repr(C)]
pub(super) struct Fault {
    queue_pair: u32,
    side: u32,
    index: u64,
    status: u32,
    key: u32,
    address: u64,
    label: [u8; 64],
    text: [u8; 192],
}

impl Fault {
    /// The request that ended a group, if one has; `label` knows the name of a queue pair's request at an index.
    pub(super) fn of(group: &Group, label: impl FnOnce(u32, bool, u64) -> String) -> Option<Self> {
        if group.has_fault == 0 {
            return None;
        }
        let (index, is_receive) = (group.fault_index, group.fault_side != 0);
        let (queue_pair, status) = (group.fault_qp, words(group.fault_status));
        let label = label(queue_pair, is_receive, index);
        let kind = if is_receive { "receive request" } else { "request" };
        let named = if label.is_empty() { format!("{kind} {index}") } else { format!("`{label}` ({kind} {index})") };
        let Group { fault_addr: address, fault_key: key, .. } = *group;
        let text = format!("{named} of queue pair {queue_pair}: {status} at address {address:#x} with key {key:#x}");
        let mut fault = Self {
            queue_pair,
            side: group.fault_side,
            index,
            status: group.fault_status,
            key,
            address,
            label: [0; 64],
            text: [0; 192],
        };
        put(&label, &mut fault.label);
        put(&text, &mut fault.text);
        Some(fault)
    }
}

/// A status of a completion in libibverbs' words.
fn words(status: u32) -> String {
    let found = function(c"ibv_wc_status_str");
    if found.is_null() {
        return format!("status {status}");
    }
    // SAFETY: libibverbs' function of that name has this signature, and returns constant strings.
    let text = unsafe {
        let describe = std::mem::transmute::<*mut c_void, extern "C" fn(u32) -> *const c_char>(found);
        CStr::from_ptr(describe(status))
    };
    text.to_string_lossy().into_owned()
}

/// Groups from a number on, as many as fit one message.
fn groups(device: &Device, from: u32) -> Result<Vec<Group>> {
    let response = device.send(&Call::List.body(&List { from, reserved: 0 }), "listing groups")?;
    Ok(response.chunks_exact(size_of::<Group>()).filter_map(|bytes| Group::read_from_bytes(bytes).ok()).collect())
}

/// The group with a number.
pub(super) fn group(device: &Device, number: u32) -> Result<Group> {
    let found = groups(device, number)?.into_iter().next().filter(|group| group.group == number);
    found.ok_or_else(|| Failure::invalid(format_args!("there is no group {number}")))
}

fn order(context: *const VerbsContext, call: Call, group: u32) -> c_int {
    // SAFETY: a context of libibverbs', as the header says.
    code(|| unsafe { Device::of(context)? }.order_group(call, group).map(|()| 0))
}

replace! {
    /// See `rdmesh_chain.h`, as for all of these.
    fn rdmesh_group_list(context: *const VerbsContext, from: u32, list: *mut Stats, most: c_int) -> c_int {
        code(|| {
            // SAFETY: a context of libibverbs', as the header says.
            let groups = groups(&unsafe { Device::of(context)? }, from)?;
            let most = if list.is_null() { 0 } else { usize::try_from(most).unwrap_or(0) };
            for (at, group) in groups.iter().take(most).enumerate() {
                // SAFETY: there is room for `most` of them, as the header says.
                unsafe { list.add(at).write(Stats::from(group)) };
            }
            Ok(groups.len().min(most))
        })
    }

    /// The request that ended a group.
    fn rdmesh_group_last_error(context: *const VerbsContext, number: u32, fault: *mut Fault) -> c_int {
        code(|| {
            // SAFETY: a context of libibverbs', as the header says.
            let group = group(&unsafe { Device::of(context)? }, number)?;
            let Some(found) = Fault::of(&group, |_, _, _| String::new()) else { return Ok(0) };
            // SAFETY: null or valid, as the header says.
            unsafe { store(fault, found) };
            Ok(1)
        })
    }

    /// Stops a group.
    fn rdmesh_group_stop(context: *const VerbsContext, group: u32) -> c_int {
        order(context, Call::Stop, group)
    }

    /// Lets a group go on.
    fn rdmesh_group_resume(context: *const VerbsContext, group: u32) -> c_int {
        order(context, Call::Resume, group)
    }

    /// Ends a group.
    fn rdmesh_group_kill(context: *const VerbsContext, group: u32) -> c_int {
        order(context, Call::Kill, group)
    }
}

const _: () = assert!(size_of::<Stats>() == 72 && size_of::<Fault>() == 288);
