//! Work requests: fetched from the send queue, checked, and executed where that needs no peer.

use super::Exec;
use super::chain::order;
use crate::memory::BindRequest;
use crate::platform::{Platform, SendQueue};
use rdmesh_verbs::{SendFlags, SendOp, WcStatus};

impl<P: Platform> Exec<'_, P> {
    /// Takes the next work request from the ring into the window; false where there is none, or no room, or where it has to wait
    /// for earlier ones: until it may be executed, they may change it.
    pub(crate) fn fetch(&mut self) -> bool {
        let send = &self.qp.send;
        if send.chain.is_some() {
            return self.step();
        }
        let must_wait = || self.qp.must_wait(send.queue.precedence(), send.window.len());
        if send.window.is_full() || (!send.window.is_empty() && send.queue.is_ready() && must_wait()) {
            return false;
        }
        let qp_type = self.qp.made().qp_type;
        let entry = self.qp.send.window.next();
        let Some(fetched) = self.qp.send.queue.fetch(qp_type, &mut entry.wr) else { return false };
        if let Err(bad) = fetched {
            // Earlier requests complete first: the error waits for its turn.
            entry.begin(0, None);
            (entry.wr.wr_id, entry.wr.op, entry.bad) = (bad.wr_id, SendOp::Send { imm: None }, true);
            self.qp.send.window.push();
            return true;
        }
        let inline = entry.wr.flags.contains(SendFlags::INLINE).then(|| self.qp.send.queue.inline_data());
        let total = match entry.wr.op {
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::AtomicWrite { .. } => 8,
            SendOp::Flush { .. } => 0,
            op if op.is_local() => 0,
            _ => entry.wr.length(),
        };
        entry.begin(total, inline);
        self.qp.send.window.push();
        true
    }

    /// Executes a local operation, which is the oldest request.
    pub(crate) fn execute_local(&mut self) {
        self.out.spend(0);
        let result = match self.qp.send.window[0].wr.op {
            SendOp::LocalInvalidate { key } => {
                self.cx.keys.invalidate(self.qp.made().pd, None, key).map_err(|_| WcStatus::LocalQpOperationError)
            }
            SendOp::BindMw { mw, new_key, mr, addr, length, access } => {
                let request = BindRequest { mw, new_key, mr, addr, length, access };
                self.cx.keys.bind(self.qp.made().pd, self.qp.made().qpn, &request).map_err(|_| WcStatus::MwBindError)
            }
            SendOp::Enable { order, is_receive } => order::enable_from_outside(self, &order, is_receive),
            _ => Err(WcStatus::LocalQpOperationError),
        };
        match result {
            Ok(()) => {
                let entry = &mut self.qp.send.window[0];
                entry.complete = true;
                entry.started = true;
                self.qp.send.cursor += 1;
                self.complete_oldest();
            }
            Err(status) => self.fail_oldest(status),
        }
    }
}
