//! Connection release: REJ, DREQ and DREP, and identifiers that the owner gives up.

use super::connection::CmConnection;
use super::messages::{Apr, Drep, Dreq, Lap, Rej, Rejected};
use super::{Cm, CmError, CmState, CommId, Event, Kind, Mad, RejectReason, private};
use crate::timer::Time;
use arrayvec::ArrayVec;
use core::time::Duration;

impl Cm {
    /// Rejects a request or a reply, or aborts before the connection is established.
    pub fn reject(
        &mut self,
        now: Time,
        id: CommId,
        reason: RejectReason,
        ari: &[u8],
        data: &[u8],
    ) -> Result<(), CmError> {
        use CmState::*;
        let state = self.owned(id)?.state;
        let (ari, private) = (private(ari)?, private(data)?);
        match state {
            ReqSent | MraReqRcvd | ReqRcvd | MraReqSent => {
                self.exchange.send_rej(id.0, reason, ari, private);
                self.exchange.end(id.0);
            }
            RepRcvd | MraRepSent | RepSent | MraRepRcvd => {
                self.exchange.send_rej(id.0, reason, ari, private);
                self.exchange.enter_time_wait(now, id.0);
            }
            _ => return Err(CmError::State(state)),
        }
        Ok(())
    }

    /// Ends an established connection, or confirms that the peer has ended it.
    pub fn disconnect(&mut self, now: Time, id: CommId, data: &[u8]) -> Result<(), CmError> {
        match self.owned(id)?.state {
            CmState::Established => self.exchange.send_dreq(now, id.0, private(data)?),
            CmState::DreqRcvd => self.exchange.send_drep(now, id.0, private(data)?),
            state => return Err(CmError::State(state)),
        }
        Ok(())
    }

    /// Destroys an id in any state: the peer gets the message that ends its side, the owner gets no more events.
    pub fn destroy(&mut self, now: Time, id: CommId) {
        use CmState::*;
        let Ok(c) = self.owned(id) else { return };
        let (state, guid) = (c.state, c.local_guid);
        let none = ArrayVec::new;
        match state {
            Idle | SidrReqSent => {}
            SidrReqRcvd => self.exchange.refuse_service(id.0),
            ReqSent | MraReqRcvd => self.exchange.send_timeout_rej(id.0, guid),
            ReqRcvd | MraReqSent => {
                self.exchange.send_rej(id.0, RejectReason::CONSUMER_DEFINED, none(), ArrayVec::new())
            }
            RepRcvd | MraRepSent | RepSent | MraRepRcvd => {
                self.exchange.send_rej(id.0, RejectReason::CONSUMER_DEFINED, none(), ArrayVec::new());
                self.exchange.enter_time_wait(now, id.0);
            }
            Established => self.exchange.send_dreq(now, id.0, ArrayVec::new()),
            DreqRcvd => self.exchange.send_drep(now, id.0, ArrayVec::new()),
            DreqSent | TimeWait => {}
        }
        self.exchange.change(id.0, |c| c.orphan(now));
        let is_needed = self.exchange.table().get(id.0).is_some_and(|c| matches!(c.state, DreqSent | TimeWait));
        if !is_needed || self.exchange.table().is_crowded(id.0) {
            self.exchange.remove(id.0);
        }
    }

    /// Drops a connection or SIDR request that waits for the owner's answer, without a message to the peer: when the peer
    /// repeats it, there is a new `Request` or `ServiceRequest` (Linux, `cm_destroy_id`: "Do not reject to allow future
    /// retries"). Of an id in any other state nothing changes.
    pub fn forget(&mut self, id: CommId) {
        if self.owned(id).is_ok_and(|c| matches!(c.state, CmState::ReqRcvd | CmState::SidrReqRcvd)) {
            self.exchange.remove(id.0);
        }
    }

    pub(super) fn on_rej(&mut self, now: Time, mad: &Mad) {
        use CmState::*;
        let rej = Rej::decode(&mad.bytes);
        let Some((id, state)) = self.rejected(mad, &rej) else {
            self.counters.unexpected += 1;
            return;
        };
        let Rej { reason, ari, private, .. } = rej;
        match state {
            ReqSent | MraReqRcvd | RepSent | MraRepRcvd | ReqRcvd | MraReqSent
                if reason != RejectReason::STALE_CONNECTION =>
            {
                self.exchange.tell(id, Event::Rejected { reason, ari, private });
                self.exchange.end(id);
            }
            DreqSent => {
                self.exchange.tell(id, Event::Disconnected);
                self.exchange.enter_time_wait(now, id);
            }
            _ => {
                self.exchange.tell(id, Event::Rejected { reason, ari, private });
                self.exchange.enter_time_wait(now, id);
            }
        }
    }

    /// The connection that a REJ means, if it is one that can be rejected.
    fn rejected(&self, mad: &Mad, rej: &Rej) -> Option<(u32, CmState)> {
        use CmState::*;
        let (ends, id) = (mad.path.ends(), rej.remote_comm_id);
        let guid = rej.ari.first_chunk::<8>().filter(|_| rej.reason == RejectReason::TIMEOUT);
        let by_guid = guid.and_then(|guid| self.exchange.table().by_remote_id(ends, *guid, rej.local_comm_id));
        if let Some(id) = by_guid {
            let state = self.exchange.table().get(id)?.state;
            return (!matches!(state, DreqRcvd | TimeWait)).then_some((id, state));
        }
        // A REJ of a REQ need not carry the sender's communication id.
        let is_req = rej.rejected == Rejected::Req;
        let found = if is_req {
            self.exchange.table().find(ends, id)
        } else {
            self.exchange.table().find_both(ends, id, rej.local_comm_id)
        };
        let state = found?.state;
        let fits = match state {
            ReqSent | MraReqRcvd => is_req,
            RepSent | MraRepRcvd | ReqRcvd | MraReqSent | RepRcvd | MraRepSent | Established | DreqSent => !is_req,
            Idle | DreqRcvd | TimeWait | SidrReqSent | SidrReqRcvd => false,
        };
        fits.then_some((id, state))
    }

    /// Whether a datagram is the end of a connection that its owner has.
    pub fn is_end(&self, mad: &Mad) -> bool {
        use CmState::{DreqSent, Established, MraRepRcvd, RepSent};
        if super::mad::kind(&mad.bytes) != Some(Kind::Dreq) {
            return false;
        }
        let dreq = Dreq::decode(&mad.bytes);
        let found = self.exchange.table().find_both(mad.path.ends(), dreq.remote_comm_id, dreq.local_comm_id);
        found.is_some_and(|c| matches!(c.state, RepSent | MraRepRcvd | Established | DreqSent))
    }

    pub(super) fn on_dreq(&mut self, now: Time, mad: &Mad) {
        use CmState::*;
        let dreq = Dreq::decode(&mad.bytes);
        let id = dreq.remote_comm_id;
        let found =
            self.exchange.table().find_both(mad.path.ends(), id, dreq.local_comm_id).filter(|c| c.state != Idle);
        let Some(c) = found else {
            self.counters.unexpected += 1;
            return self.exchange.answer_drep(mad, &dreq);
        };
        if c.qp.local_qpn.value() != dreq.remote_qpn {
            self.counters.unexpected += 1;
            return;
        }
        match c.state {
            RepSent | MraRepRcvd | Established => {
                let tid = super::mad::tid(&mad.bytes);
                self.exchange.change(id, |c| {
                    c.rest(DreqRcvd);
                    c.tid = tid;
                });
                self.exchange.tell(id, Event::DisconnectRequested { private: dreq.private });
            }
            // Both ends disconnect at once: each answers the other.
            DreqSent => {
                let tid = super::mad::tid(&mad.bytes);
                self.exchange.change(id, |c| c.tid = tid);
                self.exchange.tell(id, Event::Disconnected);
                self.exchange.send_drep(now, id, ArrayVec::new());
            }
            TimeWait if c.last.as_ref().is_some_and(|last| last.kind == Kind::Drep) => {
                self.on_duplicate(Kind::Dreq, id, true);
            }
            TimeWait => {
                self.on_duplicate(Kind::Dreq, id, false);
                self.exchange.answer_drep(mad, &dreq);
            }
            DreqRcvd => self.on_duplicate(Kind::Dreq, id, false),
            _ => self.counters.unexpected += 1,
        }
    }

    pub(super) fn on_drep(&mut self, now: Time, mad: &Mad) {
        let drep = Drep::decode(&mad.bytes);
        let id = drep.remote_comm_id;
        match self.exchange.table().find_both(mad.path.ends(), id, drep.local_comm_id).map(|c| c.state) {
            Some(CmState::DreqSent) => {
                self.exchange.tell(id, Event::Disconnected);
                self.exchange.enter_time_wait(now, id);
            }
            Some(CmState::TimeWait) => self.counters.duplicate[Kind::Drep.index()] += 1,
            _ => self.counters.unexpected += 1,
        }
    }

    /// RoCE has no alternate paths (IBA A16.4.4).
    pub(super) fn on_lap(&mut self, mad: &Mad) {
        let lap = Lap::decode(&mad.bytes);
        let (local_comm_id, remote_comm_id) = (lap.remote_comm_id, lap.local_comm_id);
        match self.exchange.table().find_both(mad.path.ends(), local_comm_id, remote_comm_id).map(|c| c.state) {
            Some(CmState::Established) => {
                let apr = Apr { local_comm_id, remote_comm_id, status: Apr::UNSUPPORTED };
                self.exchange.send(mad.path, Kind::Apr, apr.encode(super::mad::tid(&mad.bytes)));
            }
            _ => self.counters.unexpected += 1,
        }
    }
}

impl CmConnection {
    /// The owner gives it up. A DREQ under way is repeated soon and seldom, independent of the owner's time-out.
    fn orphan(&mut self, now: Time) {
        self.is_owned = false;
        if !self.is_orphan() {
            return;
        }
        if let Some(last) = &mut self.last {
            last.left = last.left.min(ORPHAN_RETRIES);
            last.timeout = last.timeout.min(ORPHAN_TIMEOUT);
            self.deadline = self.deadline.map(|deadline| deadline.min(now.after(last.timeout)));
        }
    }
}

/// Retries of a DREQ whose connection the owner has given up.
const ORPHAN_RETRIES: u8 = 3;
/// Maximum time-out of its first answer; doubled each time.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(1);
