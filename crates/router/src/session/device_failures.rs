//! Records of failures that a device's queues have noticed by themselves, without a command.

use super::account::Account;
use super::context::Context;
use super::failed_requests::FailedRequest;
use rdmesh_nic::Device;

/// Records what a device's queues have noticed since the last call.
pub(super) fn note_failures(context: &mut Context, account: &Account) {
    note_bad_indices(context, account);
    note_chain_faults(context, account);
}

/// Records indices beyond the ends of a device's queues that its program has written since the last call.
fn note_bad_indices(context: &Context, account: &Account) {
    let count = context.queues().take_bad_indices();
    if count != 0 {
        account.note_bad_indices(count);
        let opener = context.opener();
        account.failed_requests(|known| {
            known.note_all(FailedRequest::BadIndex, count, opener.pid(), || opener.comm().to_owned())
        });
    }
}

/// Records the errors that have ended groups of a device's managed queues since the last call.
fn note_chain_faults(context: &mut Context, account: &Account) {
    if context.managed().is_empty() {
        return;
    }
    let id = context.id();
    let entries = context.shard().call(move |shard| shard.engine().device(id).map(|mut device| device.chains().list()));
    let faults = context.managed_mut().take_new_faults(entries.as_deref().unwrap_or_default());
    note(context, account, faults.into_iter().map(FailedRequest::Chain));
}

/// Records failures of a device's queue pairs, at its end.
pub(super) fn note_failed_requests(context: &mut Context, account: &Account) {
    note_failures(context, account);
    let id = context.id();
    let failed_requests: Vec<FailedRequest> = context.shard().call(move |shard| {
        let device = shard.engine().device(id).ok();
        let infos = device.iter().flat_map(Device::infos);
        infos.filter_map(|info| FailedRequest::of_queue_pair(&info)).take(MAX_FAILED_REQUESTS).collect()
    });
    note(context, account, failed_requests.into_iter());
}

fn note(context: &Context, account: &Account, requests: impl Iterator<Item = FailedRequest>) {
    let opener = context.opener();
    account.failed_requests(|known| {
        requests.for_each(|request| known.note(request, opener.pid(), || opener.comm().to_owned()));
    });
}

/// Maximum number of failed queue pairs that are recorded for one context.
const MAX_FAILED_REQUESTS: usize = 4;
