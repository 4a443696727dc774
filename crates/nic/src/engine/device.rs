//! Commands on the queue pairs of an opened device: create, modify, query and destroy, and multicast membership.

use super::table::QueuePairs;
use crate::command::{CommandError, ContextId, DeferredDrop, QpEntry, QpInfo, QpInit, SrqEntry};
use crate::device::{Context, Outputs};
use crate::path::{Network, Path, Route};
use crate::platform::Platform;
use crate::policy::Policy;
use crate::qp::Core;
use crate::timer::Time;
use crate::transport::{Env, Qp};
use alloc::boxed::Box;
use alloc::vec::Vec;
use rdmesh_verbs::{AddressVector, AttrMask, Gid, QpAttr, QpState, QpType, Qpn, check_modify};

type Result<T> = core::result::Result<T, CommandError>;
use CommandError::{Exhausted, Forbidden, Invalid, NoSuchObject};

/// An opened device, for commands. Those that concern no queue pair are its [`Context`]'s.
pub struct Device<'a, P: Platform> {
    pub(super) id: ContextId,
    pub(super) cx: &'a mut Context<P>,
    pub(super) qps: &'a mut QueuePairs<P>,
    pub(super) out: &'a mut Outputs<P::Memory>,
}

impl<P: Platform> Device<'_, P> {
    /// Its protection domains, regions, queues and handles: everything but queue pairs.
    pub fn context(&self) -> &Context<P> {
        self.cx
    }

    /// For commands that concern no queue pair.
    pub fn context_mut(&mut self) -> &mut Context<P> {
        self.cx
    }

    /// Makes a queue pair in RESET. Returns its handle and its number.
    pub fn create_qp(&mut self, init: QpInit<P>) -> Result<(u32, Qpn)> {
        self.cx.check_qp(&init)?;
        let (index, qpn) = self.qps.next(self.out).ok_or(Exhausted)?;
        let handle = self.cx.add_qp(index, &init).ok_or(Exhausted)?;
        let core = Core::new(self.id, handle, qpn, init);
        let qp = Box::new(Qp::new(core, self.out.next_epoch()));
        self.qps.insert(index, qp, self.out);
        self.out.schedule.join(index, self.cx.owner(), self.cx.policy());
        Ok((handle, qpn))
    }

    /// Changes attributes and state. The mask is checked against the transition; values are the caller's to check.
    pub fn modify_qp(&mut self, now: Time, qp: u32, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        self.out.now = now;
        let index = self.index(qp)?;
        if mask.contains(AttrMask::AV) {
            check_peer(&self.cx.network, self.out, &attr.av)?;
        }
        let qp = self.qps.get_mut(index).ok_or(NoSuchObject)?;
        let env = Env { index, cx: self.cx, out: self.out };
        let state = qp.core().state();
        let from = if mask.contains(AttrMask::CUR_STATE) { attr.cur_state } else { state };
        let to = if mask.contains(AttrMask::STATE) { attr.state } else { from };
        check_modify(qp.core().made().qp_type, from, to, mask).map_err(|_| Invalid)?;
        if from != state {
            return Err(Invalid);
        }
        qp.core_mut().assign(attr, mask);
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

    /// Makes an address handle. In send rings it goes by its handle plus one.
    pub fn create_ah(&mut self, pd: u32, av: AddressVector) -> Result<u32> {
        check_peer(&self.cx.network, self.out, &av)?;
        self.cx.add_ah(pd, av)
    }

    /// A queue pair's attributes, sizes and counters.
    pub fn query_qp(&self, qp: u32) -> Result<QpInfo> {
        let qp = self.qps.get(self.index(qp)?).ok_or(NoSuchObject)?;
        Ok(QpInfo { lanes: qp.lanes(), congestion: qp.congestion(), ..qp.core().info(self.path(qp), qp.unacked()) })
    }

    /// Destroys a queue pair in any state. Its completions stay in their queues.
    pub fn destroy_qp(&mut self, qp: u32) -> Result<DeferredDrop> {
        Ok(DeferredDrop::new(self.remove_qp(qp)?))
    }

    /// Lets a datagram QP receive datagrams to a group.
    pub fn attach_mcast(&mut self, qp: u32, gid: Gid) -> Result<()> {
        let index = self.datagram_qp(qp, gid)?;
        let is_member = |qp: &Qp<P>| qp.core().groups().contains(&gid);
        if self.qps.get(index).is_some_and(is_member) {
            return Ok(());
        }
        self.qps.join(self.cx.network.vni, gid, index).map_err(|_| Exhausted)?;
        self.qps.get_mut(index).ok_or(NoSuchObject)?.core_mut().enter_group(gid);
        Ok(())
    }

    /// Takes a datagram QP out of a group.
    pub fn detach_mcast(&mut self, qp: u32, gid: Gid) -> Result<()> {
        let index = self.datagram_qp(qp, gid)?;
        if !self.qps.get_mut(index).ok_or(NoSuchObject)?.core_mut().leave_group(gid) {
            return Err(Invalid);
        }
        self.qps.leave(self.cx.network.vni, gid, index);
        Ok(())
    }

    /// Handles of the queue pairs.
    pub fn qps(&self) -> Vec<u32> {
        self.cx.qps_from(0).map(|(handle, _)| handle).collect()
    }

    /// Handles of the queue pairs whose completions go to `cq`.
    pub fn qps_of_cq(&self, cq: u32) -> Vec<u32> {
        let cores = self.cx.qps_from(0).filter_map(|(_, index)| self.qps.get(index)).map(Qp::core);
        cores
            .filter(|core| core.made().send_cq == cq || core.made().recv_cq == cq)
            .map(|core| core.made().handle)
            .collect()
    }

    /// Attributes, sizes and counters of each queue pair.
    pub fn infos(&self) -> impl Iterator<Item = QpInfo> {
        self.cx.qps_from(0).filter_map(|(handle, _)| self.query_qp(handle).ok())
    }

    /// At most `limit` queue pairs, from handle `from` on.
    pub fn list_qps(&self, from: u32, limit: usize) -> Vec<QpEntry> {
        let entry = |(handle, index)| {
            let pd = self.qps.get(index)?.core().made().pd;
            Some(QpEntry { handle, pd, info: self.query_qp(handle).ok()? })
        };
        self.cx.qps_from(from).filter_map(entry).take(limit).collect()
    }

    /// At most `limit` shared receive queues, from handle `from` on.
    pub fn list_srqs(&self, from: u32, limit: usize) -> Vec<SrqEntry> {
        let mut entries = self.cx.srq_entries(from, limit);
        for qp in self.cx.qps_from(0).filter_map(|(_, index)| self.qps.get(index)) {
            let found =
                qp.core().made().srq.and_then(|srq| entries.binary_search_by_key(&srq, |entry| entry.handle).ok());
            if let Some(at) = found {
                entries[at].qps.push(qp.core().made().qpn);
            }
        }
        entries.iter_mut().for_each(|entry| entry.qps.sort_unstable());
        entries
    }

    /// Sets the policy of the endpoint whose device this is: for its queue pairs on this engine, and for those to come of this
    /// device.
    pub fn set_policy(&mut self, policy: Policy) {
        self.out.schedule.set_policy(self.cx.owner(), &policy);
        self.cx.set_policy(policy);
        let indices: Vec<u32> = self.cx.qps_from(0).map(|(_, index)| index).collect();
        self.out.chains.wake_all(indices);
    }

    /// Whether packets of `qp` are with other engines of this host, which read its memory when they execute them.
    pub fn has_packets_away(&self, qp: u32) -> bool {
        let index = self.cx.qp(qp);
        index.and_then(|index| self.qps.get(index)).is_some_and(Qp::has_packets_away)
    }

    /// Destroys queue pairs in any state, at most so many.
    pub(super) fn remove_qps(&mut self, limit: usize) -> Vec<Box<Qp<P>>> {
        let handles: Vec<u32> = self.cx.qps_from(0).map(|(handle, _)| handle).take(limit).collect();
        handles.into_iter().filter_map(|handle| self.remove_qp(handle).ok()).collect()
    }

    fn remove_qp(&mut self, qp: u32) -> Result<Box<Qp<P>>> {
        let index = self.index(qp)?;
        let owner = self.cx.owner();
        let qp = self.qps.remove(index, owner.vni, self.out).ok_or(NoSuchObject)?;
        self.out.timers.stop(index);
        self.out.schedule.leave(index, owner);
        self.out.forget_failed(index);
        if let Some(chain) = &qp.core().send.chain
            && let Some(at) = chain.refill
        {
            self.out.chains.forget(index, at, chain.last);
        }
        self.cx.remove_qp(qp.core());
        self.qps.drop_arrived(index, self.out);
        Ok(qp)
    }

    /// The path of a connected QP's packets.
    fn path(&self, qp: &Qp<P>) -> Option<Path> {
        if let Some(path) = qp.path() {
            return Some(path);
        }
        let core = qp.core();
        let is_connected = core.made().qp_type != QpType::Ud && !matches!(core.state(), QpState::Reset | QpState::Init);
        let is_local = self.out.routes.find(self.cx.network.vni, core.attr.av.dgid) == Route::Local;
        (is_connected && is_local).then_some(Path::Local)
    }

    fn datagram_qp(&self, qp: u32, gid: Gid) -> Result<u32> {
        let index = self.index(qp)?;
        let is_datagram = self.qps.get(index).is_some_and(|qp| qp.core().made().qp_type == QpType::Ud);
        if is_datagram && gid.is_multicast() { Ok(index) } else { Err(Invalid) }
    }

    fn index(&self, qp: u32) -> Result<u32> {
        self.cx.qp(qp).ok_or(NoSuchObject)
    }
}

/// An error where security groups keep an endpoint from a peer. Of a group of receivers each decides.
fn check_peer<M>(network: &Network, out: &mut Outputs<M>, av: &AddressVector) -> Result<()> {
    if av.dgid.is_multicast() || out.may_talk(network, network.source(av), av.dgid) {
        return Ok(());
    }
    out.access.refused += 1;
    Err(Forbidden)
}
