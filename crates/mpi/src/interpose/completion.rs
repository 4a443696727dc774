//! Completion of requests: waits and tests of one, of any, of some and of all; freeing and cancelling.

use super::requests::Requests;
use super::{conclude, give, give_status, intercept, mpi, raise};
use crate::abi::{Handle, Status};
use crate::job::{Outcome, are_none_known, are_none_pending};
use crate::library::Library;
use crate::rank::{Rank, rank};
use libc::{c_int, c_void};

intercept! {
    fn MPI_Wait, PMPI_Wait(request: *mut c_void, status: *mut c_void) {
        let library = mpi!();
        let Some(rank) = involved() else { return library.wait(request, status) };
        let handle = library.handle_at(request, 0);
        if is_active(rank, handle) {
            let (outcome, stays) = rank.wait(|job| {
                let outcome = job.outcome(handle)?;
                Some((outcome, job.settle(handle)))
            });
            return ended(library, request, &outcome, stays, status);
        }
        if are_none_pending() {
            return library.wait(request, status);
        }
        rank.wait(|_| {
            let mut flag = 0;
            let code = library.test(request, &mut flag, status);
            (flag != 0 || code != 0).then_some(code)
        })
    }

    fn MPI_Test, PMPI_Test(request: *mut c_void, flag: *mut c_int, status: *mut c_void) {
        let library = mpi!();
        let Some(rank) = involved() else { return library.test(request, flag, status) };
        let handle = library.handle_at(request, 0);
        if !is_active(rank, handle) {
            return library.test(request, flag, status);
        }
        let mut job = rank.job();
        job.progress();
        let outcome = job.outcome(handle).map(|outcome| (outcome, job.settle(handle)));
        let gives_way = outcome.is_none() && job.is_beyond_mpi(handle);
        drop(job);
        if gives_way {
            rank.wait_a_little();
        }
        give(flag, outcome.is_some().into());
        outcome.map_or(0, |(outcome, stays)| ended(library, request, &outcome, stays, status))
    }

    fn MPI_Waitall, PMPI_Waitall(count: c_int, requests: *mut c_void, statuses: *mut c_void) {
        let library = mpi!();
        let Some(rank) = involved() else { return library.waitall(count, requests, statuses) };
        let mut sorted = Requests::sort(library, &rank.job(), count, requests);
        if sorted.own().is_empty() {
            return library.waitall(count, requests, statuses);
        }
        let outcomes = rank.wait(|job| job.outcomes(sorted.own_handles()).map(|(_, outcome)| outcome).collect::<Option<Vec<_>>>());
        let code = library.waitall(count, sorted.others(), statuses);
        sorted.give_back();
        end_all(rank, &sorted, &outcomes, code, count, statuses)
    }

    fn MPI_Testall, PMPI_Testall(count: c_int, requests: *mut c_void, flag: *mut c_int, statuses: *mut c_void) {
        let library = mpi!();
        let Some(rank) = involved() else { return library.testall(count, requests, flag, statuses) };
        let mut job = rank.job();
        job.progress();
        let mut sorted = Requests::sort(library, &job, count, requests);
        let outcomes: Option<Vec<_>> = job.outcomes(sorted.own_handles()).map(|(_, outcome)| outcome).collect();
        drop(job);
        let Some(outcomes) = outcomes else {
            rank.wait_a_little();
            give(flag, 0);
            return 0;
        };
        let mut are_done = 0;
        let code = library.testall(count, sorted.others(), &mut are_done, statuses);
        give(flag, are_done);
        if are_done == 0 {
            return code;
        }
        sorted.give_back();
        end_all(rank, &sorted, &outcomes, code, count, statuses)
    }

    fn MPI_Waitany, PMPI_Waitany(count: c_int, requests: *mut c_void, index: *mut c_int, status: *mut c_void) {
        let library = mpi!();
        let Some(rank) = involved() else { return library.waitany(count, requests, index, status) };
        if Requests::sort(library, &rank.job(), count, requests).own().is_empty() && are_none_pending() {
            return library.waitany(count, requests, index, status);
        }
        loop {
            let mut flag = 0;
            let code = test_any(rank, count, requests, index, &mut flag, status);
            if flag != 0 || code != 0 {
                return code;
            }
        }
    }

    fn MPI_Testany, PMPI_Testany(count: c_int, requests: *mut c_void, index: *mut c_int, flag: *mut c_int, status: *mut c_void) {
        let library = mpi!();
        match involved() {
            Some(rank) => test_any(rank, count, requests, index, flag, status),
            None => library.testany(count, requests, index, flag, status),
        }
    }

    fn MPI_Waitsome, PMPI_Waitsome(count: c_int, requests: *mut c_void, done: *mut c_int, indices: *mut c_int, statuses: *mut c_void) {
        let library = mpi!();
        let Some(rank) = involved() else { return library.waitsome(count, requests, done, indices, statuses) };
        loop {
            let mut number = 0;
            let code = test_some(rank, count, requests, &mut number, indices, statuses);
            if number != 0 || code != 0 {
                give(done, number);
                return code;
            }
        }
    }

    fn MPI_Testsome, PMPI_Testsome(count: c_int, requests: *mut c_void, done: *mut c_int, indices: *mut c_int, statuses: *mut c_void) {
        let library = mpi!();
        match involved() {
            Some(rank) => test_some(rank, count, requests, done, indices, statuses),
            None => library.testsome(count, requests, done, indices, statuses),
        }
    }

    fn MPI_Request_free, PMPI_Request_free(request: *mut c_void) {
        let library = mpi!();
        let handle = library.handle_at(request, 0);
        let Some(rank) = involved().filter(|rank| rank.job().has(handle)) else { return library.request_free(request) };
        rank.job().detach(handle);
        rank.wake_helper();
        library.set_handle(request, 0, library.abi.named.request_null);
        0
    }

    fn MPI_Request_get_status, PMPI_Request_get_status(request: Handle, flag: *mut c_int, status: *mut c_void) {
        let library = mpi!();
        let handle = library.argument(request);
        let Some(rank) = involved().filter(|rank| is_active(rank, handle)) else {
            return library.request_get_status(request, flag, status);
        };
        let mut job = rank.job();
        job.progress();
        let outcome = job.outcome(handle);
        drop(job);
        give(flag, outcome.is_some().into());
        if outcome.is_none() {
            rank.wait_a_little();
        }
        if let Some(outcome) = outcome {
            give_status(library, status, &outcome.status, false);
        }
        0
    }

    fn MPI_Cancel, PMPI_Cancel(request: *mut c_void) {
        let library = mpi!();
        let handle = library.handle_at(request, 0);
        match involved().filter(|rank| is_active(rank, handle)) {
            Some(rank) => rank.job().cancel(handle),
            None => library.cancel(request),
        }
    }
}

/// This rank, where a request may be one of ours.
fn involved() -> Option<&'static Rank> {
    rank().filter(|_| !are_none_known())
}

fn is_active(rank: &Rank, handle: Handle) -> bool {
    let job = rank.job();
    job.has(handle) && !job.is_idle(handle)
}

/// One request has ended.
fn ended(library: &Library, request: *mut c_void, outcome: &Outcome, stays: bool, status: *mut c_void) -> c_int {
    if !stays {
        library.set_handle(request, 0, library.abi.named.request_null);
    }
    conclude(library, outcome, status)
}

/// The place of a status in an array; none where the program ignores them.
fn status_at(library: &Library, statuses: *mut c_void, index: usize) -> Option<*mut c_void> {
    let is_ignored = statuses.addr() == library.abi.status_ignore;
    (!is_ignored).then(|| statuses.wrapping_byte_add(index * library.abi.status_size))
}

/// All have ended: gives the program ours, beside what MPI has given already with `code`.
fn end_all(
    rank: &Rank,
    sorted: &Requests<'_>,
    outcomes: &[Outcome],
    code: c_int,
    count: c_int,
    statuses: *mut c_void,
) -> c_int {
    let (library, abi) = (rank.library, &rank.library.abi);
    let has_failed = outcomes.iter().any(|outcome| outcome.code != 0);
    if has_failed && code == 0 {
        // MPI has set no error word, for it had no error.
        for at in (0..usize::try_from(count).unwrap_or(0)).filter_map(|index| status_at(library, statuses, index)) {
            set_error(library, at, 0);
        }
    }
    for (&index, outcome) in sorted.own().iter().zip(outcomes) {
        let stays = rank.job().settle(sorted.handle(index));
        sorted.ended(index, stays);
        if let Some(at) = status_at(library, statuses, index) {
            let mut status = outcome.status;
            status.set_error(abi, outcome.code);
            give_status(library, at, &status, has_failed || code != 0);
        }
    }
    outcomes.iter().for_each(|outcome| raise(library, outcome));
    if has_failed { abi.err_in_status } else { code }
}

fn set_error(library: &Library, status: *mut c_void, code: c_int) {
    let mut whole = Status::new();
    let size = library.abi.status_size;
    crate::memory::read(status.expose_provenance(), &mut whole.0[..size]);
    whole.set_error(&library.abi, code);
    crate::memory::write(status.expose_provenance(), &whole.0[..size]);
}

fn test_any(
    rank: &Rank,
    count: c_int,
    requests: *mut c_void,
    index: *mut c_int,
    flag: *mut c_int,
    status: *mut c_void,
) -> c_int {
    let library = rank.library;
    let mut job = rank.job();
    job.progress();
    let mut sorted = Requests::sort(library, &job, count, requests);
    let done = sorted
        .own()
        .iter()
        .zip(job.outcomes(sorted.own_handles()))
        .find_map(|(&at, (_, outcome))| Some((at, outcome?)));
    if let Some((at, outcome)) = done {
        let stays = job.settle(sorted.handle(at));
        drop(job);
        sorted.ended(at, stays);
        give(index, at as c_int);
        give(flag, 1);
        return conclude(library, &outcome, status);
    }
    drop(job);
    let (mut found, mut is_done) = (library.abi.undefined, 0);
    let code = library.testany(count, sorted.others(), &mut found, &mut is_done, status);
    sorted.give_back();
    // With no active request of MPI's, those of ours are waited for.
    let waits_for_own = found == library.abi.undefined && !sorted.own().is_empty();
    let is_done = if waits_for_own { 0 } else { is_done };
    if is_done == 0 {
        rank.wait_a_little();
    }
    give(index, found);
    give(flag, is_done);
    code
}

fn test_some(
    rank: &Rank,
    count: c_int,
    requests: *mut c_void,
    done: *mut c_int,
    indices: *mut c_int,
    statuses: *mut c_void,
) -> c_int {
    let (library, abi) = (rank.library, &rank.library.abi);
    let mut job = rank.job();
    job.progress();
    let mut sorted = Requests::sort(library, &job, count, requests);
    let outcomes = job.outcomes(sorted.own_handles());
    let ready: Vec<_> =
        sorted.own().iter().zip(outcomes).filter_map(|(&at, (_, outcome))| Some((at, outcome?))).collect();
    drop(job);
    let mut number = 0;
    let code = library.testsome(count, sorted.others(), &mut number, indices, statuses);
    sorted.give_back();
    let no_others = number == abi.undefined;
    if no_others && sorted.own().is_empty() {
        give(done, abi.undefined);
        return code;
    }
    let mut total = if no_others { 0 } else { usize::try_from(number).unwrap_or(0) };
    let has_failed = code != 0 || ready.iter().any(|(_, outcome)| outcome.code != 0);
    for (at, outcome) in &ready {
        let stays = rank.job().settle(sorted.handle(*at));
        sorted.ended(*at, stays);
        give(indices.wrapping_add(total), *at as c_int);
        if let Some(place) = status_at(library, statuses, total) {
            let mut status = outcome.status;
            status.set_error(abi, outcome.code);
            give_status(library, place, &status, has_failed);
        }
        total += 1;
    }
    if total == 0 {
        rank.wait_a_little();
    }
    give(done, total as c_int);
    ready.iter().for_each(|(_, outcome)| raise(library, outcome));
    if has_failed && code == 0 { abi.err_in_status } else { code }
}
