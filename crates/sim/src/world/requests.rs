//! Random requests of the programs.

use super::World;
use super::setup::{ALL, QKEY};
use crate::chance::{mix, pattern};
use crate::layout::{BASE, BUFFER, CELLS, DATA, SLOT, TARGET};
use crate::model::{Check, End, Fault, Kind, Op, WindowState};
use crate::platform::INLINE;
use rdmesh_verbs::{Access, Key, QpType, SendFlags, SendOp, SendWr, Sge};

/// Parameters of a new request: its operation, length, error, and key.
pub(super) struct Wish {
    pub(super) kind: Kind,
    pub(super) len: u64,
    pub(super) fault: Option<Fault>,
    pub(super) key: Key,
}

impl World {
    /// Posts some requests of `end`. Returns whether it did.
    pub(super) fn post_requests(&mut self, end: usize) -> Check<bool> {
        let this = &self.model.ends[end];
        let broken = this.flow.failed || this.excused;
        let room = (this.plan.depth as usize).saturating_sub(this.flow.ops.len() - this.flow.completed);
        let burst = self.workload.between(0, 9).min(room as u64).min(u64::from(self.model.ends[end].left));
        let mut posted = false;
        for _ in 0..if broken { burst.min(1) } else { burst } {
            let wish = self.wish(end);
            if !self.post(end, &wish)? {
                break;
            }
            self.model.ends[end].left -= 1;
            posted = true;
        }
        Ok(posted)
    }

    /// Binds the windows of `end`, before anything else.
    pub(super) fn bind_windows(&mut self, end: usize) -> Check {
        for window in 0..self.model.ends[end].windows.len() {
            let old = self.model.ends[end].windows[window].key;
            let key = Key::from_parts(old.index(), old.tag().wrapping_add(1));
            self.model.ends[end].windows[window].key = key;
            self.post(end, &Wish { kind: Kind::Bind { window }, len: 0, fault: None, key: old })?;
        }
        Ok(())
    }

    fn wish(&mut self, end: usize) -> Wish {
        let plan = self.model.ends[end].plan;
        let choices = match plan.qp_type {
            QpType::Ud => return self.datagram(end),
            QpType::Uc => 3,
            QpType::Rc => plan.weights.len(),
        };
        let weights = &plan.weights[..choices];
        let total: u32 = weights.iter().sum();
        let mut draw = self.workload.between(0, u64::from(total.max(1))) as u32;
        let choice = weights
            .iter()
            .position(|&w| {
                w > draw || {
                    draw -= w;
                    false
                }
            })
            .unwrap_or(0);
        if self.workload.happens(plan.wrong) && plan.qp_type == QpType::Rc {
            return self.wrong(end, choice);
        }
        let (kind, len) = self.kind(end, choice);
        let key = self.remote_key(end, &kind);
        Wish { kind, len, fault: None, key }
    }

    fn datagram(&mut self, end: usize) -> Wish {
        let imm = self.immediate(end);
        let len = self.length(end).min(u64::from(self.model.ends[end].plan.mtu.bytes()));
        Wish { kind: Kind::Datagram { imm }, len, fault: None, key: Key(0) }
    }

    fn immediate(&mut self, end: usize) -> Option<u32> {
        let number = (end as u32) << 16 | self.model.ends[end].flow.ops.len() as u32;
        self.workload.happens(0.4).then_some(number)
    }

    fn kind(&mut self, end: usize, choice: usize) -> (Kind, u64) {
        let peer = &self.model.ends[self.model.ends[end].peer];
        let (start, space) = (peer.slot as u64 * SLOT, peer.space);
        let unique = mix(self.plan.seed, (end as u64) << 32 | self.model.ends[end].flow.ops.len() as u64);
        let length = self.length(end);
        match choice {
            1 | 2 => {
                let len = length.min(TARGET.end - TARGET.start);
                let imm = if choice == 2 { Some(unique as u32) } else { None };
                (Kind::Write { target: start + self.within(TARGET.start, TARGET.end, len), imm }, len)
            }
            3 => (Kind::Read { target: start + self.within(TARGET.start, CELLS.end, length) }, length),
            4..=6 => {
                // Some words are shared by all requests.
                let start = if self.workload.happens(0.3) { 0 } else { start };
                let cell = start + CELLS.start + 8 * self.workload.between(0, 4);
                let now = self.model.spaces[space].region.get(cell, 8);
                let now = u64::from_ne_bytes(now.try_into().expect("eight bytes"));
                let compare = if self.workload.happens(0.7) { now } else { !unique };
                match choice {
                    4 => (Kind::Add { cell, add: unique }, 8),
                    5 => (Kind::Swap { cell, compare, swap: unique }, 8),
                    _ => (Kind::Put { cell, value: unique }, 8),
                }
            }
            7 => (Kind::Flush, 0),
            8 => {
                let invalidate = self.spend_window(end);
                (Kind::Send { imm: None, invalidate }, length.min(BUFFER))
            }
            _ => (Kind::Send { imm: self.immediate(end), invalidate: None }, length.min(BUFFER)),
        }
    }

    /// Takes a window of the peer for a SEND that ends it.
    fn spend_window(&mut self, end: usize) -> Option<Key> {
        let peer = self.model.ends[end].peer;
        let windows = &mut self.model.ends[peer].windows;
        let window = windows.iter_mut().find(|window| window.state == WindowState::Ready)?;
        window.state = WindowState::Spent;
        Some(window.key)
    }

    fn remote_key(&mut self, end: usize, kind: &Kind) -> Key {
        let peer = self.model.ends[end].peer;
        let key = self.nodes[self.node_of(peer)].key;
        let window = self.model.ends[peer].windows.iter().find(|window| window.state == WindowState::Ready);
        match (kind, window.map(|window| window.key)) {
            (Kind::Write { .. }, Some(window)) if self.workload.happens(0.5) => window,
            _ => key,
        }
    }

    /// A request with something wrong.
    fn wrong(&mut self, end: usize, choice: usize) -> Wish {
        let (mut kind, mut len) = self.kind(end, choice);
        let peer = self.model.ends[end].peer;
        let mut key = self.nodes[self.node_of(peer)].key;
        let spent = self.model.ends[peer].windows.iter().find(|w| w.state == WindowState::Spent).map(|w| w.key);
        let end_of_memory = self.model.spaces[self.model.ends[peer].space].slots.len() as u64 * SLOT;
        let fault = match (&mut kind, self.workload.between(0, 3)) {
            (Kind::Send { invalidate: None, .. }, 0) => {
                len = BUFFER + 1 + self.workload.between(0, 5000);
                Fault::TooLong
            }
            (Kind::Add { cell, .. } | Kind::Swap { cell, .. }, 0) => {
                *cell += 4;
                Fault::Misaligned
            }
            (Kind::Write { target, .. }, 0) if spent.is_some() => {
                (key, len) = (spent.unwrap_or(key), len.clamp(1, 100));
                *target = self.model.ends[peer].slot as u64 * SLOT + TARGET.start;
                Fault::AfterInvalidate
            }
            (Kind::Write { target, .. } | Kind::Read { target }, 1) => {
                len = len.max(2);
                *target = end_of_memory - len / 2;
                Fault::OutOfBounds
            }
            (
                Kind::Write { .. } | Kind::Read { .. } | Kind::Add { .. } | Kind::Swap { .. } | Kind::Put { .. },
                0 | 1,
            ) => {
                len = len.max(1);
                key = Key(key.0 ^ 0x5a);
                Fault::RemoteKey
            }
            (Kind::Send { .. } | Kind::Write { .. } | Kind::Read { .. }, _) => {
                len = len.clamp(1, BUFFER);
                Fault::LocalKey
            }
            _ => return Wish { kind, len, fault: None, key },
        };
        Wish { kind, len, fault: Some(fault), key }
    }

    fn length(&mut self, end: usize) -> u64 {
        let plan = self.model.ends[end].plan;
        let mtu = u64::from(plan.mtu.bytes());
        let len = match self.workload.between(0, 10) {
            0 => 0,
            1..=3 => self.workload.between(1, 64),
            4..=6 => mtu * self.workload.scale(1, 20) + self.workload.between(0, 3) - 1,
            _ => self.workload.scale(1, plan.largest),
        };
        len.min(plan.largest)
    }

    fn within(&mut self, start: u64, end: u64, len: u64) -> u64 {
        self.workload.between(start, end - len + 1)
    }

    /// Posts a request; false where there is no room for its data.
    pub(super) fn post(&mut self, end: usize, wish: &Wish) -> Check<bool> {
        let Wish { kind, len, fault, .. } = *wish;
        let this = &self.model.ends[end];
        let index = this.flow.ops.len();
        let carries = matches!(kind, Kind::Send { .. } | Kind::Write { .. } | Kind::Datagram { .. });
        let inline = carries && fault.is_none() && len <= INLINE as u64 && self.workload.happens(0.3);
        let place = if inline || matches!(kind, Kind::Put { .. }) { 0 } else { len };
        let Some(start) = self.model.ends[end].room(place) else { return Ok(false) };
        let this = &mut self.model.ends[end];
        if place != 0 {
            this.used.push_back((index, start, place));
            this.next_data = start + place;
        }
        let local = this.slot as u64 * SLOT + start;
        // A steady stream is always the same, so that its requests may share their data.
        let number = if self.steady { 0 } else { index as u64 };
        let name = mix(self.plan.seed ^ 0xda7a, (end as u64) << 32 | number);
        let data = if carries { pattern(name, len as usize) } else { Vec::new() };
        if carries && !inline {
            self.model.spaces[this.space].region.put(local, &data);
        }
        let signaled = this.plan.signal_all || matches!(kind, Kind::Bind { .. }) || self.workload.happens(0.5);
        // A request that waits for room needs a completion that frees some.
        let held: u64 = this.used.iter().map(|(_, _, len)| len).sum();
        let full = index + 1 - this.flow.completed >= this.plan.depth as usize || held > DATA.end / 4;
        let signaled = signaled || this.left <= 1 || full;
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        flags.set(SendFlags::INLINE, inline);
        flags.set(SendFlags::SOLICITED, self.workload.happens(0.1));
        flags.set(SendFlags::FENCE, !self.steady && this.qp_type == QpType::Rc && self.workload.happens(0.1));
        let op = self.operation(end, wish);
        let sges = if place == 0 { Vec::new() } else { self.pieces(end, local, place, fault == Some(Fault::LocalKey)) };
        let inline_len = if inline { len as u32 } else { 0 };
        let wr = SendWr { wr_id: End::wr_id(end, index), flags, op, sges: sges.into_iter().collect(), inline_len };
        let this = &mut self.model.ends[end];
        this.sends.post(wr, if inline { &data } else { &[] });
        this.flow.ops.push(Op {
            kind,
            len,
            local,
            data,
            fault,
            signaled,
            posted: self.now,
            lower: None,
            done: 0,
            result: None,
            delivered: 0,
        });
        self.model.step += 1;
        self.model.advance(end);
        let (host, node, handle) = (self.model.ends[end].host, self.node_of(end), self.model.ends[end].handle);
        let shard = self.plan.nodes[node].shard as usize;
        self.hosts[host].engines[shard].doorbell(self.nodes[node].context, handle);
        self.note([8, end as u64, index as u64], || {
            format!("end {end} posts {index}: {kind:?}, {len} bytes, {fault:?}")
        });
        self.wake(host);
        Ok(true)
    }

    fn operation(&self, end: usize, wish: &Wish) -> SendOp {
        let rkey = wish.key;
        let at = |offset: u64| BASE + offset;
        match wish.kind {
            Kind::Send { imm, invalidate: None } => SendOp::Send { imm },
            Kind::Send { invalidate: Some(rkey), .. } => SendOp::SendInvalidate { rkey },
            Kind::Write { target, imm } => SendOp::Write { remote_addr: at(target), rkey, imm },
            Kind::Read { target } => SendOp::Read { remote_addr: at(target), rkey },
            Kind::Add { cell, add } => SendOp::FetchAdd { remote_addr: at(cell), rkey, add },
            Kind::Swap { cell, compare, swap } => SendOp::CompareSwap { remote_addr: at(cell), rkey, compare, swap },
            Kind::Put { cell, value } => {
                SendOp::AtomicWrite { remote_addr: at(cell), rkey, value: value.to_ne_bytes() }
            }
            Kind::Flush => SendOp::Flush { remote_addr: BASE, rkey, length: 64, kind: 1, range: true },
            Kind::Bind { window } => {
                let this = &self.model.ends[end];
                SendOp::BindMw {
                    mw: rkey,
                    new_key: this.windows[window].key,
                    mr: self.nodes[self.node_of(end)].key,
                    addr: at(this.slot as u64 * SLOT + TARGET.start),
                    length: TARGET.end - TARGET.start,
                    access: Access::REMOTE_WRITE | Access::REMOTE_READ,
                }
            }
            Kind::Datagram { imm } => {
                let this = &self.model.ends[end];
                SendOp::Datagram { ah: this.ah + 1, qpn: self.model.ends[this.peer].qpn, qkey: QKEY, imm }
            }
        }
    }

    /// Cuts a place into pieces.
    fn pieces(&mut self, end: usize, mut at: u64, mut len: u64, wrong: bool) -> Vec<Sge> {
        let key = self.nodes[self.node_of(end)].key;
        let lkey = if wrong { Key(key.0 ^ 0x77) } else { key };
        let mut pieces = Vec::new();
        while len != 0 {
            let length =
                if pieces.len() == 3 || self.workload.happens(0.6) { len } else { self.workload.between(1, len + 1) };
            pieces.push(Sge { addr: BASE + at, length: length as u32, lkey });
            (at, len) = (at + length, len - length);
        }
        pieces
    }
}

const _: () = assert!(BUFFER + 5001 <= DATA.end && ALL.contains(Access::MW_BIND));
