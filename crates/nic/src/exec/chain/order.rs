//! WAIT and ENABLE.

use super::{Exec, Failure, Step, Turn};
use crate::chain::{Enable, Side, Target};
use crate::platform::Platform;
use rdmesh_verbs::WcStatus;
use rdmesh_verbs::chain::{ChainOp, Ordering};

impl<P: Platform> Turn<'_, P> {
    /// WAIT: the queue stands still until there are so many completions.
    pub(super) fn wait(&mut self) -> Step {
        let Some(order) = self.queue.request().ordering() else { return self.end(Err(malformed())) };
        let (count, index) = (order.at(self.queue.lap()), self.exec.index);
        let Some(cq) = self.exec.cx.cq(order.object) else { return self.end(Err(no_object(&order))) };
        if cq.produced() >= count {
            self.queue.waits_for = None;
            return self.end(Ok(()));
        }
        // Woken by an ENABLE, it still stands in the list.
        if self.queue.waits_for.replace(order.object).is_none() {
            cq.wait(index, count);
        }
        Step::Parked
    }

    /// ENABLE and RECV_ENABLE: another queue, or this one, may go on.
    pub(super) fn enable(&mut self) -> Result<(), Failure> {
        let request = self.queue.request();
        let order = request.ordering().ok_or_else(malformed)?;
        let side = if request.control.op == ChainOp::Enable { Side::Send } else { Side::Receive };
        let enable = match order.relative {
            true => Enable::More(order.count),
            false => Enable::To(order.at(self.queue.lap())),
        };
        let (target, from) = (Target { qp: order.object, side }, self.exec.qp.made().handle);
        let enabled = self.exec.cx.chains.enable(Some(from), target, enable);
        let index = enabled.map_err(|_| no_object(&order))?;
        let wakes = match side {
            Side::Send => index != self.exec.index,
            Side::Receive => self.exec.cx.chains.must_tell(order.object),
        };
        if wakes {
            self.exec.out.chains.wake(index);
        }
        Ok(())
    }
}

/// ENABLE and RECV_ENABLE of an ordinary queue: of any group of its context.
pub(in crate::exec) fn enable_from_outside<P: Platform>(
    exec: &mut Exec<'_, P>,
    order: &Ordering,
    is_receive: bool,
) -> Result<(), WcStatus> {
    let side = if is_receive { Side::Receive } else { Side::Send };
    let enable = if order.relative { Enable::More(order.count) } else { Enable::To(order.count) };
    let enabled = exec.cx.chains.enable(None, Target { qp: order.object, side }, enable);
    exec.out.chains.wake(enabled.map_err(|_| WcStatus::LocalQpOperationError)?);
    Ok(())
}

fn malformed() -> Failure {
    Failure::new(WcStatus::LocalQpOperationError)
}

fn no_object(order: &Ordering) -> Failure {
    Failure { status: WcStatus::LocalQpOperationError, addr: order.count, key: order.object }
}
