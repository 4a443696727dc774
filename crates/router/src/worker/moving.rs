//! Moves of contexts from one worker to another, while their programs go on.
//!
//! Every worker takes part: it hands its packets over and then waits, with all others, until the context has moved. So no packet
//! is on its way between two workers meanwhile, and packets between two queue pairs stay in their order. That takes as long as the
//! longest pass of a worker, and some microseconds for each queue pair.

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
    stage: Mutex<Stage>,
    context: Mutex<Option<MovingContext>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// So many workers go on as before.
    Gathering(usize),
    /// All wait for the worker that gives the context away.
    Taking,
    /// All wait for the worker that gets it.
    Putting,
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
        let of = Arc::new(Move { id, from: self.number(), to: to.number(), stage, context: Mutex::default() });
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
        loop {
            // Another worker may wait for room in this one's queue.
            served.take_packets();
            match self.of.stage() {
                Stage::Taking if self.of.from == self.worker => self.take(served),
                Stage::Putting if self.of.to == self.worker => self.put(served),
                Stage::Over => return,
                _ => rustix::thread::sched_yield(),
            }
        }
    }

    fn take(&self, served: &mut Served) {
        let context = served.take_context(self.of.id);
        let next = if context.is_some() { Stage::Putting } else { Stage::Over };
        // They come before all that the context will send from the other worker.
        served.send_packets();
        *self.of.context.lock().unwrap_or_else(PoisonError::into_inner) = context;
        self.of.enter(next);
    }

    fn put(&self, served: &mut Served) {
        let context = self.of.context.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(context) = context {
            // The caller waits.
            let _ = self.answer.send(served.put_context(context));
        }
        self.of.enter(Stage::Over);
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

    /// One more worker waits.
    fn arrive(&self) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        *stage = match *stage {
            Stage::Gathering(1) => Stage::Taking,
            Stage::Gathering(left) => Stage::Gathering(left - 1),
            other => other,
        };
    }
}
