//! Queue pair commands: create, modify, query and destroy, and multicast membership.

use super::Engine;
use crate::command::{CommandError, ContextId, QpCounters, QpInfo, QpInit, Remains};
use crate::path::Path;
use crate::path::Route;
use crate::platform::Platform;
use crate::qp::{Core, RESTING_QPS, ReceiveSide, SendSide, WINDOW};
use crate::time::Time;
use crate::transport::Qp;
use rdmesh_verbs::{AttrMask, Gid, QpAttr, QpState, QpType, Qpn, Vni, check_modify};

type Result<T> = std::result::Result<T, CommandError>;
use CommandError::{Exhausted, Invalid, NoSuchObject};

impl<P: Platform> Engine<P> {
    /// Makes a queue pair in RESET. Returns its handle and its number.
    pub fn create_qp(&mut self, id: ContextId, init: QpInit<P>) -> Result<(u32, Qpn)> {
        let cx = self.context(id)?;
        cx.pds.get(init.pd).ok_or(NoSuchObject)?;
        cx.cqs.get(init.send_cq).ok_or(NoSuchObject)?;
        cx.cqs.get(init.recv_cq).ok_or(NoSuchObject)?;
        if let Some(srq) = init.srq {
            cx.srqs.get(srq).ok_or(NoSuchObject)?;
        } else if init.recv.is_none() {
            return Err(Invalid);
        }
        let (index, qpn) = self.next_qp().ok_or(Exhausted)?;
        let cx = self.context_mut(id)?;
        let handle = cx.qps.insert(index).ok_or(Exhausted)?;
        cx.enter_pd(init.pd);
        for cq in [init.send_cq, init.recv_cq] {
            cx.cqs.get_mut(cq).ok_or(NoSuchObject)?.users += 1;
        }
        if let Some(srq) = init.srq {
            cx.srqs.get_mut(srq).ok_or(NoSuchObject)?.users += 1;
        }
        let qp = Box::new(Qp::new(new_core(id, handle, qpn, init), self.out.next_epoch()));
        match self.qps.get_mut(index as usize) {
            Some(slot) => {
                *slot = Some(qp);
                self.free_qps.pop_front();
                self.time_wait.forget(index);
            }
            None => self.qps.push(Some(qp)),
        }
        self.out.schedule.join(index, self.context(id)?.owner());
        Ok((handle, qpn))
    }

    /// Index and number of the next queue pair. A peer that has not heard of the end of a connection takes the same number for
    /// the old one's, and a new connection for stale (IBA 12.9.8.3.1): others are used first.
    fn next_qp(&self) -> Option<(u32, Qpn)> {
        let (fresh, free) = (self.qps.len() as u32, self.free_qps.front().copied());
        let rested = free.filter(|_| self.free_qps.len() > RESTING_QPS);
        let at = |index| Some((index, self.out.qpn_of(index)?));
        at(rested.unwrap_or(fresh)).or_else(|| at(free?))
    }

    /// Changes attributes and state. The mask is checked against the transition; values are the caller's to check.
    pub fn modify_qp(&mut self, now: Time, id: ContextId, qp: u32, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        self.out.now = now;
        let index = self.qp_index(id, qp)?;
        let (qp, env) = self.qp(index).ok_or(NoSuchObject)?;
        let state = qp.core().state();
        let from = if mask.contains(AttrMask::CUR_STATE) { attr.cur_state } else { state };
        let to = if mask.contains(AttrMask::STATE) { attr.state } else { from };
        check_modify(qp.core().qp_type, from, to, mask).map_err(|_| Invalid)?;
        if from != state {
            return Err(Invalid);
        }
        assign(&mut qp.core_mut().attr, attr, mask);
        if from == QpState::Sqd && mask.contains(AttrMask::AV) {
            qp.move_peer(&env);
        }
        if mask.contains(AttrMask::STATE) {
            let notifies = mask.contains(AttrMask::EN_SQD_ASYNC_NOTIFY) && attr.sqd_async_notify;
            qp.core_mut().attr.sqd_async_notify = notifies;
            qp.enter(env, to);
        }
        Ok(())
    }

    /// A queue pair's attributes, sizes and counters.
    pub fn query_qp(&self, id: ContextId, qp: u32) -> Result<QpInfo> {
        let index = self.qp_index(id, qp)?;
        let qp = self.qps[index as usize].as_ref().ok_or(NoSuchObject)?;
        let core = qp.core();
        Ok(QpInfo {
            attr: core.attr,
            sq_draining: core.state() == QpState::Sqd && !core.send.window.is_empty(),
            caps: core.caps,
            qp_type: core.qp_type,
            qpn: core.qpn,
            send_cq: core.send_cq,
            recv_cq: core.recv_cq,
            srq: core.srq,
            signal_all: core.signal_all,
            path: self.path(qp),
            next_psn: core.send.next_psn,
            unacked_psn: qp.unacked(),
            expected_psn: core.recv.expected_psn,
            counters: core.counters,
        })
    }

    /// Destroys a queue pair in any state. Its completions stay in their queues.
    pub fn destroy_qp(&mut self, id: ContextId, qp: u32) -> Result<Remains> {
        Ok(Remains::new(self.remove_qp(id, qp)?))
    }

    pub(super) fn remove_qp(&mut self, id: ContextId, qp: u32) -> Result<Box<Qp<P>>> {
        let index = self.qp_index(id, qp)?;
        let qp = self.qps[index as usize].take().ok_or(NoSuchObject)?;
        self.free_qps.push_back(index);
        self.time_wait.add(index, &qp);
        self.out.timers.stop(index);
        let owner = self.context(id)?.owner();
        self.out.schedule.leave(index, owner);
        self.out.failed.remove(index);
        let core = qp.core();
        for gid in &core.groups {
            self.leave_group(owner.vni, *gid, index);
        }
        let cx = self.context_mut(id)?;
        cx.qps.remove(core.handle);
        cx.leave_pd(core.pd);
        cx.keys.unbind_qp(core.qpn);
        for cq in [core.send_cq, core.recv_cq] {
            if let Some(cq) = cx.cqs.get_mut(cq) {
                cq.users -= 1;
            }
        }
        if let Some(srq) = core.srq.and_then(|srq| cx.srqs.get_mut(srq)) {
            srq.users -= 1;
        }
        self.drop_arrived(index);
        Ok(qp)
    }

    /// Lets a datagram QP receive datagrams to a group.
    pub fn attach_mcast(&mut self, id: ContextId, qp: u32, gid: Gid) -> Result<()> {
        let index = self.datagram_qp(id, qp, gid)?;
        let vni = self.context(id)?.network.vni;
        let qp = self.qps[index as usize].as_mut().ok_or(NoSuchObject)?.core_mut();
        if qp.groups.contains(&gid) {
            return Ok(());
        }
        let members = self.groups.entry((vni, gid)).or_default();
        if members.len() >= GROUP_MEMBERS {
            return Err(Exhausted);
        }
        members.push(index);
        qp.groups.push(gid);
        Ok(())
    }

    /// Takes a datagram QP out of a group.
    pub fn detach_mcast(&mut self, id: ContextId, qp: u32, gid: Gid) -> Result<()> {
        let index = self.datagram_qp(id, qp, gid)?;
        let vni = self.context(id)?.network.vni;
        let qp = self.qps[index as usize].as_mut().ok_or(NoSuchObject)?.core_mut();
        let position = qp.groups.iter().position(|group| *group == gid).ok_or(Invalid)?;
        qp.groups.swap_remove(position);
        self.leave_group(vni, gid, index);
        Ok(())
    }

    fn leave_group(&mut self, vni: Vni, gid: Gid, index: u32) {
        let Some(members) = self.groups.get_mut(&(vni, gid)) else { return };
        members.retain(|member| *member != index);
        if members.is_empty() {
            self.groups.remove(&(vni, gid));
        }
    }

    /// Handles of the context's QPs.
    pub fn qps(&self, id: ContextId) -> Vec<u32> {
        self.context(id).map_or_else(|_| Vec::new(), |cx| cx.qps.iter().map(|(handle, _)| handle).collect())
    }

    /// Handles of the context's QPs whose completions go to `cq`.
    pub fn qps_of_cq(&self, id: ContextId, cq: u32) -> Vec<u32> {
        let Ok(cx) = self.context(id) else { return Vec::new() };
        let cores = cx.qps.iter().filter_map(|(_, index)| self.qps.get(*index as usize)?.as_ref()).map(|qp| qp.core());
        cores.filter(|core| core.send_cq == cq || core.recv_cq == cq).map(|core| core.handle).collect()
    }

    /// Which way a connected QP's packets go.
    fn path(&self, qp: &Qp<P>) -> Option<Path> {
        if let Some(path) = qp.path() {
            return Some(path);
        }
        let core = qp.core();
        let is_connected = core.qp_type != QpType::Ud && !matches!(core.state(), QpState::Reset | QpState::Init);
        let vni = self.context(core.context).ok()?.network.vni;
        let is_local = self.out.routes.find(vni, core.attr.av.dgid) == Route::Local;
        (is_connected && is_local).then_some(Path::Local)
    }

    fn datagram_qp(&self, id: ContextId, qp: u32, gid: Gid) -> Result<u32> {
        let index = self.qp_index(id, qp)?;
        let is_datagram = self.qps[index as usize].as_ref().is_some_and(|qp| qp.core().qp_type == QpType::Ud);
        if is_datagram && gid.is_multicast() { Ok(index) } else { Err(Invalid) }
    }

    fn qp_index(&self, id: ContextId, qp: u32) -> Result<u32> {
        self.context(id)?.qps.get(qp).copied().ok_or(NoSuchObject)
    }
}

fn new_core<P: Platform>(context: ContextId, handle: u32, qpn: Qpn, init: QpInit<P>) -> Core<P> {
    let window = WINDOW.min(init.caps.max_send_wr.max(1) as usize);
    Core {
        context,
        handle,
        qpn,
        qp_type: init.qp_type,
        pd: init.pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        caps: init.caps,
        signal_all: init.signal_all,
        attr: QpAttr::default(),
        counters: QpCounters::default(),
        send: SendSide::new(init.send, window),
        recv: ReceiveSide::new(if init.srq.is_some() { None } else { init.recv }),
        is_remote: false,
        groups: Vec::new(),
    }
}

/// Copies the masked attributes.
fn assign(to: &mut QpAttr, from: &QpAttr, mask: AttrMask) {
    macro_rules! copy {
        ($($flag:ident => $($field:ident),+;)*) => {
            $(if mask.contains(AttrMask::$flag) { $(to.$field = from.$field;)+ })*
        };
    }
    copy! {
        ACCESS_FLAGS => access;
        PKEY_INDEX => pkey_index;
        PORT => port;
        QKEY => qkey;
        AV => av;
        ALT_PATH => alt_av;
        PATH_MTU => path_mtu;
        TIMEOUT => timeout;
        RETRY_CNT => retry_cnt;
        RNR_RETRY => rnr_retry;
        RQ_PSN => rq_psn;
        SQ_PSN => sq_psn;
        MAX_QP_RD_ATOMIC => max_rd_atomic;
        MAX_DEST_RD_ATOMIC => max_dest_rd_atomic;
        MIN_RNR_TIMER => min_rnr_timer;
        DEST_QPN => dest_qpn;
        PATH_MIG_STATE => path_mig_state;
    }
}

/// Most QPs of one group in one engine: every datagram to it is copied to each.
const GROUP_MEMBERS: usize = 1024;
