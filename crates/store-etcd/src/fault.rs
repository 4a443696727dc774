//! Meaning of the errors of an etcd member.

use rdmesh_fabric::store::{Revision, StoreError};
use tonic::{Code, Status};

/// Consequence of an error for the request.
pub(crate) enum Fault {
    /// The token is not valid any more: the request has not been executed.
    Token,
    /// It is the answer.
    Answer(StoreError),
    /// The connection, or the member, has failed: the request may have been executed.
    Lost(String),
}

impl Fault {
    /// The meaning of `status`, in answer to a request about `revision`.
    pub(crate) fn of(status: &Status, revision: Revision) -> Self {
        let said = status.message();
        match status.code() {
            Code::Unauthenticated => Self::Token,
            Code::InvalidArgument if said.contains("revision of auth store is old") => Self::Token,
            Code::InvalidArgument | Code::PermissionDenied | Code::FailedPrecondition => {
                Self::Answer(StoreError::Refused(said.to_owned()))
            }
            Code::NotFound if said.contains("lease not found") => Self::Answer(StoreError::LeaseEnded),
            Code::OutOfRange => Self::Answer(StoreError::Forgotten(revision)),
            // Its quota of disk space, or of requests, is used up.
            Code::ResourceExhausted => Self::Answer(StoreError::Unavailable(said.to_owned())),
            _ => Self::Lost(format!("{}: {said}", status.code())),
        }
    }
}
