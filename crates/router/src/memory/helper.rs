//! Copies that may take for ever, made by another thread.
//!
//! A tenant decides what lies behind its private pages: a file of a filesystem that it serves itself can make the
//! router's access wait as long as the tenant likes. So a worker never makes that access: a helper thread does, with a
//! buffer of its own, and the worker waits for it for a bounded time. A helper that does not come back is left to itself,
//! and what it reads late goes nowhere.

use rdmesh_nic::platform::Fault;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// How often the programs of one endpoint may let a worker wait in vain. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Patience(Arc<AtomicU32>);

impl Patience {
    const STRIKES: u32 = 4;

    fn is_exhausted(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= Self::STRIKES
    }

    fn strike(&self) {
        let strikes = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::warn!(
            strikes,
            of = Self::STRIKES,
            "private memory of a tenant could not be reached in time: no more of its endpoint after the last"
        );
    }
}

type Buffer = Vec<u8>;
type Job = Box<dyn FnOnce(&mut Buffer) -> Result<(), Fault> + Send>;

/// A thread that makes copies for one worker.
struct Helper {
    jobs: SyncSender<(Job, Buffer)>,
    done: Receiver<(Result<(), Fault>, Buffer)>,
    buffer: Buffer,
}

thread_local! {
    static HELPER: RefCell<Option<Helper>> = const { RefCell::new(None) };
}

/// Bytes of one copy.
pub(super) const CHUNK: usize = 64 * 1024;
/// How long a copy may take: longer than any disk, shorter than anybody's retries.
const DEADLINE: Duration = Duration::from_millis(500);

/// Lets this thread's helper run `job` on a buffer that `fill` prepares, and `drain` look at it when it is done.
pub(super) fn run(
    patience: &Patience,
    fill: impl FnOnce(&mut Buffer),
    job: impl FnOnce(&mut Buffer) -> Result<(), Fault> + Send + 'static,
    drain: impl FnOnce(&Buffer),
) -> Result<(), Fault> {
    if patience.is_exhausted() {
        return Err(Fault);
    }
    HELPER.with_borrow_mut(|helper| {
        let Some(present) = helper.take().or_else(Helper::start) else { return Err(Fault) };
        let Helper { jobs, done, mut buffer } = present;
        fill(&mut buffer);
        jobs.send((Box::new(job), buffer)).map_err(|_| Fault)?;
        let Ok((result, buffer)) = done.recv_timeout(DEADLINE) else {
            patience.strike();
            return Err(Fault);
        };
        if result.is_ok() {
            drain(&buffer);
        }
        *helper = Some(Helper { jobs, done, buffer });
        result
    })
}

impl Helper {
    /// None where there cannot be another thread.
    fn start() -> Option<Self> {
        let (jobs, receiver) = sync_channel::<(Job, Buffer)>(1);
        let (sender, done) = sync_channel(1);
        let thread = std::thread::Builder::new().name("rdmesh-copy".into()).spawn(move || {
            for (job, mut buffer) in receiver {
                let result = job(&mut buffer);
                // Nobody waits any more: the thread has been given up.
                if sender.send((result, buffer)).is_err() {
                    break;
                }
            }
        });
        thread.ok()?;
        Some(Self { jobs, done, buffer: Vec::with_capacity(CHUNK) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    #[test]
    fn what_never_ends_is_given_up_and_then_not_tried_again() {
        let patience = Patience::default();
        let mut stuck = Vec::new();
        for _ in 0..Patience::STRIKES {
            let (release, wait) = channel::<()>();
            stuck.push(release);
            let never = move |_: &mut Buffer| wait.recv().map_err(|_| Fault);
            assert_eq!(run(&patience, |_| {}, never, |_| panic!("nothing came")), Err(Fault));
        }
        let start = Instant::now();
        assert_eq!(run(&patience, |_| {}, |_| Ok(()), |_| {}), Err(Fault));
        assert!(start.elapsed() < DEADLINE);
        // Another endpoint is served.
        assert_eq!(run(&Patience::default(), |_| {}, |_| Ok(()), |_| {}), Ok(()));
    }
}
