//! Requests of chains that failed.

use super::super::label::Label;
use rdmesh_nic::ChainFault;
use rdmesh_verbs::WcStatus;
use std::fmt;

/// The error that has ended a group, for the list of failed requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailedChain {
    /// The group.
    pub group: u32,
    /// The request, and its failure.
    pub fault: ChainFault,
    /// Its label.
    pub label: Option<Label>,
}

/// Writes what has failed: the request by its label, the status in words, address and key.
pub(super) fn describe(failed: &FailedChain, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let FailedChain { group, fault, label } = failed;
    let queue = if fault.is_receive { "receive request" } else { "request" };
    write!(f, "chain {group} ended: {queue} ")?;
    match label {
        Some(label) => write!(f, "`{label}` (number {})", fault.index)?,
        None => write!(f, "number {}", fault.index)?,
    }
    write!(f, " failed with {}", fault.status.words())?;
    if (fault.addr, fault.key) == (0, 0) {
        Ok(())
    } else {
        write!(f, ", address {:#x}, key {:#x}", fault.addr, fault.key)
    }
}

/// The remedy.
pub(super) fn fix(failed: &FailedChain) -> String {
    let advice = match failed.fault.status {
        WcStatus::LocalProtectionError => {
            "the address lies in no region with this key, or the region lacks the right; for pointers that may be wrong there is the flag SOFT"
        }
        WcStatus::LocalLengthError => "its elements have another length than what arrives, or more than a message has",
        WcStatus::RemoteAccessError => "the peer has no region with this key that allows it there",
        WcStatus::RemoteInvalidRequest => {
            "the message has not exactly the declared length, or an atomic is not aligned to its width"
        }
        WcStatus::LocalQpOperationError => {
            "its slot holds no request that is allowed there, or it names an object outside the group (the key above)"
        }
        WcStatus::RnrRetryExceeded => "the peer had no receive request: give a client as many instances as requests",
        WcStatus::RetryExceeded => "the peer did not answer",
        _ => "see the request",
    };
    format!("{advice}; `rdmesh chain ls` shows the chain as long as its program runs")
}
