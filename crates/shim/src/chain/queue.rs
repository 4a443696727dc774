//! Managed queues by hand: `rdmesh_queue_*`.
#![allow(unsafe_code)]

use super::border::{Failure, Result, code, free, given, list, object, store};
use super::calls::Device;
use super::request::{Element, Request, elements};
use super::ring::Ring;
use crate::libibverbs::{Pd, Qp};
use libc::c_int;
use rdmesh_preload::replace;
use rdmesh_uverbs::session::MAX_MESSAGE;
use rdmesh_uverbs::session::chain::{
    Call, Enable, Manage, Managed, QueueSide, Register, RingKey as Registered, SealPart,
};
use rdmesh_verbs::chain::offset;

/// A queue pair with managed queues.
pub(super) struct Queue {
    device: Device,
    qp: u32,
    /// The rings of its managed queues, by side.
    rings: [Option<Ring>; 2],
}

/// `struct rdmesh_manage`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct How {
    pub(super) group: u32,
    pub(super) sends: u32,
    pub(super) receives: u32,
    pub(super) send_cycle: u32,
    pub(super) receive_cycle: u32,
}

/// `struct rdmesh_ring`.
#[repr(C)]
struct RingKey {
    key: u32,
    stride: u32,
    slots: u32,
}

/// `struct rdmesh_hole`.
#[repr(C)]
pub(super) struct Hole {
    slot: u32,
    at: u32,
    length: u32,
}

/// `struct rdmesh_allowed`.
#[repr(C)]
pub(super) struct Allowed {
    slot: u32,
    reserved: u32,
    ops: u64,
}

impl Queue {
    /// Makes queues of a queue pair managed.
    pub(super) fn manage(device: Device, qp: u32, how: &How) -> Result<Self> {
        let side = |managed: u32, bit| if managed != 0 { bit } else { 0 };
        let sides = side(how.sends, Manage::SEND) | side(how.receives, Manage::RECEIVE);
        let How { group, send_cycle, receive_cycle, .. } = *how;
        let request = Manage { qp, group, sides, send_cycle, receive_cycle, reserved: 0 };
        let what =
            "the queue pair cannot be managed: it must be RC or UC, before RTS, with sq_sig_all 0 and as many slots";
        let shape: Managed = device.ask(Call::Manage, &request, what)?;
        let map = |offset, stride, cycle| (cycle != 0).then(|| Ring::map(&device, offset, stride, cycle)).transpose();
        let rings = [
            map(shape.send_offset, shape.send_stride, shape.send_cycle)?,
            map(shape.receive_offset, shape.receive_stride, shape.receive_cycle)?,
        ];
        Ok(Self { device, qp, rings })
    }

    /// The ring of a side.
    pub(super) fn ring(&self, side: QueueSide) -> Result<&Ring> {
        self.rings[side as usize]
            .as_ref()
            .ok_or_else(|| Failure::invalid("that queue of the queue pair is not managed"))
    }

    /// Registers a ring.
    pub(super) fn register(&self, side: QueueSide, pd: Option<u32>, access: u32) -> Result<Registered> {
        let request = Register { qp: self.qp, side: side as u32, pd: pd.unwrap_or(Register::OWN_PD), access };
        self.device.ask(Call::Register, &request, "registering a ring")
    }

    /// Raises a queue's limit.
    pub(super) fn enable(&self, side: QueueSide, limit: u64) -> Result<()> {
        let request = Enable { qp: self.qp, side: side as u32, limit };
        self.device.order(Call::Enable, &request, "enabling a queue")
    }

    /// Seals a queue with this content: of each slot its bytes, a bit for each byte that may change, and the operations that it
    /// may have.
    pub(super) fn seal(&self, side: QueueSide, slots: &[(Vec<u8>, Vec<u8>, u64)]) -> Result<()> {
        let record = SealPart::record_len(self.ring(side)?.stride());
        let most = ((MAX_MESSAGE - HEADS) / record).max(1);
        for (part, slots) in slots.chunks(most).enumerate() {
            let (first, count) = ((part * most) as u32, slots.len() as u32);
            let mut body = Call::Seal.body(&SealPart { qp: self.qp, side: side as u32, first, count });
            for (bytes, holes, allowed) in slots {
                body.extend_from_slice(bytes);
                body.extend_from_slice(holes);
                body.extend_from_slice(&allowed.to_ne_bytes());
            }
            self.device.send(&body, "sealing a queue of which nothing may be enabled yet")?;
        }
        Ok(())
    }

    /// Seals a queue as its ring is now.
    fn seal_as_is(&self, side: QueueSide, holes: &[Hole], allowed: &[Allowed]) -> Result<()> {
        let ring = self.ring(side)?;
        let (stride, cycle) = (ring.stride(), ring.cycle());
        let mut slots: Vec<_> = (0..cycle).map(|slot| (ring.read(slot), vec![0; stride / 8], u64::MAX)).collect();
        for Hole { slot, at, length } in holes {
            let (at, length) = (*at as usize, *length as usize);
            let (_, bits, _) = slots
                .get_mut(*slot as usize)
                .filter(|_| at + length <= stride)
                .ok_or_else(|| Failure::invalid(format_args!("slot {slot} has no bytes {at}..{}", at + length)))?;
            (at..at + length).for_each(|at| bits[at / 8] |= 1 << (at % 8));
        }
        for Allowed { slot, ops, .. } in allowed {
            let entry = slots.get_mut(*slot as usize);
            entry.ok_or_else(|| Failure::invalid(format_args!("there is no slot {slot}")))?.2 = *ops;
        }
        self.seal(side, &slots)
    }

    fn emit_receive(&self, slot: usize, id: u64, sges: &[rdmesh_verbs::Sge]) -> Result<()> {
        let ring = self.ring(QueueSide::Receive)?;
        let len = offset::RECV_SGES + sges.len() * offset::SGE_LEN;
        if len > ring.stride() {
            let count = sges.len();
            return Err(Failure::invalid(format_args!(
                "{count} elements do not fit a slot; ask for more max_recv_sge"
            )));
        }
        let mut bytes = vec![0; ring.stride()];
        bytes[offset::WR_ID..8].copy_from_slice(&id.to_ne_bytes());
        bytes[offset::RECV_NUM_SGE] = sges.len() as u8;
        for (i, sge) in sges.iter().enumerate() {
            let at = offset::RECV_SGES + i * offset::SGE_LEN;
            bytes[at..at + 8].copy_from_slice(&sge.addr.to_ne_bytes());
            bytes[at + offset::SGE_LENGTH..][..4].copy_from_slice(&sge.length.to_ne_bytes());
            bytes[at + offset::SGE_KEY..][..4].copy_from_slice(&sge.lkey.0.to_ne_bytes());
        }
        ring.write(slot, &bytes)
    }
}

fn side(number: u32) -> Result<QueueSide> {
    QueueSide::from_number(number).ok_or_else(|| Failure::invalid(format_args!("{number} is no side of a queue pair")))
}

replace! {
    /// See `rdmesh_chain.h`, as for all of these.
    fn rdmesh_queue_manage(qp: *const Qp, how: *const How) -> *mut Queue {
        object(|| {
            // SAFETY: what the program passes is as the header says; so it is below.
            let (qp, how) = unsafe { (given(qp, "the queue pair")?, given(how, "how")?) };
            // SAFETY: as above.
            Queue::manage(unsafe { Device::of_qp(qp)? }, qp.handle, how)
        })
    }

    /// Registers a ring.
    fn rdmesh_queue_register(queue: *const Queue, number: u32, pd: *const Pd, access: c_int, ring: *mut RingKey) -> c_int {
        code(|| {
            // SAFETY: as above.
            let (queue, pd) = unsafe { (given(queue, "the queue")?, pd.as_ref()) };
            let Registered { key, stride, slots, .. } =
                queue.register(side(number)?, pd.map(|pd| pd.handle), access.cast_unsigned())?;
            // SAFETY: as above.
            unsafe { store(ring, RingKey { key, stride, slots }) };
            Ok(0)
        })
    }

    /// Puts a request into a slot.
    fn rdmesh_queue_emit(queue: *const Queue, slot: u32, request: *const Request) -> c_int {
        code(|| {
            // SAFETY: as above.
            let (queue, request) = unsafe { (given(queue, "the queue")?, given(request, "the request")?) };
            let ring = queue.ring(QueueSide::Send)?;
            // SAFETY: as above.
            ring.write(slot as usize, &unsafe { request.encode(ring.stride())? }).map(|()| 0)
        })
    }

    /// Puts a scatter list into a slot.
    fn rdmesh_queue_emit_receive(queue: *const Queue, slot: u32, id: u64, first: *const Element, count: u32) -> c_int {
        code(|| {
            // SAFETY: as above.
            let (queue, sges) = unsafe { (given(queue, "the queue")?, elements(first, count)?) };
            queue.emit_receive(slot as usize, id, &sges).map(|()| 0)
        })
    }

    /// Seals a queue.
    fn rdmesh_queue_seal(
        queue: *const Queue,
        number: u32,
        holes: *const Hole,
        num_holes: u32,
        allowed: *const Allowed,
        num_allowed: u32,
    ) -> c_int {
        code(|| {
            // SAFETY: as above.
            let (queue, holes, allowed) = unsafe {
                let holes = list(holes, num_holes as usize, "the list of holes")?;
                (given(queue, "the queue")?, holes, list(allowed, num_allowed as usize, "the list of operations")?)
            };
            queue.seal_as_is(side(number)?, holes, allowed).map(|()| 0)
        })
    }

    /// Raises a limit.
    fn rdmesh_queue_enable(queue: *const Queue, number: u32, limit: u64) -> c_int {
        // SAFETY: as above.
        code(|| unsafe { given(queue, "the queue")? }.enable(side(number)?, limit).map(|()| 0))
    }

    /// Forgets a queue.
    fn rdmesh_queue_free(queue: *mut Queue) -> () {
        // SAFETY: as above.
        unsafe { free(queue) }
    }
}

/// More than the heads of a message with a part of an image.
const HEADS: usize = 256;
