//! Moves of contexts from one worker to another, while their programs go on.
//!
//! Every worker takes part: it hands its packets over and then waits, with all others, until the context has moved. So no packet
//! is on its way between two workers meanwhile, and packets between two queue pairs stay in their order. That takes as long as the
//! longest pass of a worker, and some microseconds for each queue pair.
//!
//! Datagrams from the network that have arrived for the old worker are executed before the move, or handed over right after it.
//! One that the kernel delivers at that very moment may be overtaken, as in any network.

use super::handle::ShardHandle;
use super::served::{Command, Served};
use super::shard::MovingContext;
use rdmesh_nic::ContextId;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

/// A move, of which every worker has a part.
struct Move {
    id: ContextId,
    from: usize,
    to: usize,
    workers: usize,
    stage: Mutex<Stage>,
    context: Mutex<Option<MovingContext>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// So many workers go on as before.
    Gathering(usize),
    /// So many have packets of others, and replies to them. A datagram to a group has been delivered by all or by none.
    Settling(usize),
    /// All wait for the worker that gives the context away.
    Taking,
    /// All wait for the worker that gets it.
    Putting,
    /// All wait for the first one, which hands over what has arrived for the context since.
    Forwarding,
    Over,
}

/// A worker's part in a move. One that is not played to its end, because the worker has ended, ends the move.
struct Part {
    of: Arc<Move>,
    worker: usize,
    answer: SyncSender<ContextId>,
}

impl ShardHandle {
    /// Moves a context to another worker. Returns its name there; none where it is not on this one, or a worker has ended.
    pub(crate) fn move_context(&self, id: ContextId, to: &Self) -> Option<ContextId> {
        let _one = self.desk().common().lock_moves();
        let workers = self.all();
        let stage = Mutex::new(Stage::Gathering(workers.len()));
        let of = Arc::new(Move {
            id,
            from: self.number(),
            to: to.number(),
            workers: workers.len(),
            stage,
            context: Mutex::default(),
        });
        let (answer, received) = sync_channel(1);
        for handle in workers {
            let part = Part { of: Arc::clone(&of), worker: handle.number(), answer: answer.clone() };
            let command: Command = Box::new(move |served| {
                part.play(served);
                Box::new(|| {})
            });
            handle.desk().send(command).ok()?;
        }
        drop(answer);
        received.recv().ok()
    }
}

impl Part {
    /// Takes part until the move is over.
    fn play(self, served: &mut Served) {
        served.send_packets();
        self.of.arrive();
        let mut is_settled = false;
        loop {
            // Another worker may wait for room in this one's queue.
            served.take_packets();
            match self.of.stage() {
                Stage::Settling(_) if !is_settled => {
                    is_settled = true;
                    self.settle(served);
                }
                Stage::Forwarding if self.of.from == self.worker => {
                    served.receive_all();
                    self.of.enter(Stage::Over);
                }
                Stage::Taking if self.of.from == self.worker => self.take(served),
                Stage::Putting if self.of.to == self.worker => self.put(served),
                Stage::Over => return,
                _ => rustix::thread::sched_yield(),
            }
        }
    }

    fn settle(&self, served: &mut Served) {
        // What came before all stood still.
        served.take_packets();
        served.settle_arrivals();
        served.send_packets();
        self.of.arrive();
    }

    fn take(&self, served: &mut Served) {
        served.receive_all();
        served.take_packets();
        let context = served.take_context(self.of.id);
        let next = if context.is_some() { Stage::Putting } else { Stage::Over };
        // They come before all that the context will send from the other worker.
        served.send_packets();
        *self.of.context.lock().unwrap_or_else(PoisonError::into_inner) = context;
        self.of.enter(next);
    }

    fn put(&self, served: &mut Served) {
        let context = self.of.context.lock().unwrap_or_else(PoisonError::into_inner).take();
        served.take_packets();
        if let Some(context) = context {
            // The caller waits.
            let _ = self.answer.send(served.put_context(context));
        }
        self.of.enter(Stage::Forwarding);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.of.enter(Stage::Over);
    }
}

impl Move {
    fn stage(&self) -> Stage {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, stage: Stage) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    /// One more worker waits for the next stage.
    fn arrive(&self) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        *stage = match *stage {
            Stage::Gathering(1) => Stage::Settling(self.workers),
            Stage::Gathering(left) => Stage::Gathering(left - 1),
            Stage::Settling(1) => Stage::Taking,
            Stage::Settling(left) => Stage::Settling(left - 1),
            other => other,
        };
    }
}
