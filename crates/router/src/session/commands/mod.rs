//! Verbs commands, by subject. Each refuses the same requests, with the same errno, as Linux's `ib_uverbs` and `rdma_rxe`.

mod address;
mod chain;
mod cq;
mod device;
mod ioctl;
mod linger;
mod memory;
mod modify;
mod qp;
mod rereg;
mod srq;

pub(super) use device::{CAPABILITIES, PORT_ACTIVE, PORT_LINK_UP};
pub(super) use memory::stretch;

use super::account::{Charge, Item};
use super::connection::Frame;
use super::context::Context;
use super::endpoint::Endpoint;
use super::failed_requests::FailedRequest;
use super::info::SessionTotals;
use super::objects::ObjectKind;
use super::program::Program;
use super::reply::Reply;
use crate::memory::{ProcessMemory, Stretch};
use crate::worker::Shard;
use rdmesh_nic::{CommandError, ContextId, QpInfo};
use rdmesh_uverbs::abi::{Attributes, Command, ParseError, number};
use rdmesh_uverbs::session::chain::ChainRequest;
use rdmesh_uverbs::session::linger::LingerRequest;
use rdmesh_uverbs::session::{RequestKind, Segment, SegmentKind};
use rdmesh_verbs::{AddressVector, DeviceLimits};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use zerocopy::{FromBytes, IntoBytes};

/// Room for a response that is honoured: well above any that there is, and below what one message carries.
const MAX_RESPONSE: usize = 32 * 1024;

/// Everything that a command may look at or change, besides its own bytes.
pub(super) struct Scope<'a> {
    pub(super) context: &'a mut Context,
    /// The context's number in the server.
    pub(super) number: u32,
    pub(super) endpoint: &'a mut Endpoint,
    pub(super) totals: &'a mut SessionTotals,
    pub(super) limits: &'a DeviceLimits,
    pub(super) program: &'a Program,
    /// Stretches of the registration that have come before it.
    pub(super) stretches: &'a [Stretch],
    /// The memory of the process, or why it cannot be opened, where it is known.
    pub(super) memory: Option<Result<ProcessMemory, Errno>>,
}

/// A command in execution.
struct Call<'a> {
    scope: Scope<'a>,
    command: Command<'a>,
    segments: &'a [Segment],
    fds: &'a [OwnedFd],
}

/// Whether a message is a command that needs the memory of the process.
pub(super) fn needs_memory(frame: &Frame<'_>) -> bool {
    let is_registration = |command: Command<'_>| command.number == number::REG_MR && !command.extended;
    let is_private = |segment: &Segment| segment.kind != SegmentKind::Arena as u32;
    frame.kind == RequestKind::Verbs && Command::parse(frame.body).is_ok_and(is_registration) && {
        let segments = frame.segments();
        segments.is_empty() || segments.iter().any(is_private)
    }
}

/// Executes the bytes of a `write()`: the answer, and its response as the program's buffer has it.
pub(super) fn write(
    scope: Scope<'_>,
    bytes: &[u8],
    segments: &[Segment],
    fds: &[OwnedFd],
) -> Result<(Reply, Vec<u8>), Errno> {
    let command = Command::parse(bytes).map_err(parse_errno)?;
    let is_opening = command.number == number::GET_CONTEXT && !command.extended;
    if scope.context.is_opening() != is_opening || command.out_len + command.driver_out_len > MAX_RESPONSE {
        return Err(Errno::INVAL);
    }
    let reply = execute(&mut Call { scope, command, segments, fds })?;
    let response = command.response(&reply.core, &reply.driver);
    Ok((reply, response))
}

/// Executes a command on managed queues: its response.
pub(super) fn chain(scope: Scope<'_>, bytes: &[u8]) -> Result<Vec<u8>, Errno> {
    let request = ChainRequest::parse(bytes).ok_or(Errno::INVAL)?;
    if scope.context.is_opening() {
        return Err(Errno::INVAL);
    }
    chain::execute(scope, request)
}

/// Executes a command on the context's lease: the answer, and its response.
pub(super) fn linger(scope: Scope<'_>, bytes: &[u8], fds: &[OwnedFd]) -> Result<Vec<u8>, Errno> {
    linger::execute(scope, LingerRequest::parse(bytes).ok_or(Errno::INVAL)?, fds)
}

/// Executes an `ioctl()` method: its response.
pub(super) fn ioctl(scope: Scope<'_>, bytes: &[u8]) -> Result<Vec<u8>, Errno> {
    let attributes = Attributes::parse(bytes).ok_or(Errno::INVAL)?;
    if scope.context.is_opening() {
        return Err(Errno::INVAL);
    }
    ioctl::method(scope, attributes)
}

fn execute(call: &mut Call<'_>) -> Result<Reply, Errno> {
    if call.command.extended {
        return match call.command.number {
            number::QUERY_DEVICE => device::ex_query(call),
            number::CREATE_CQ => cq::ex_create(call),
            number::CREATE_QP => qp::ex_create(call),
            number::MODIFY_QP => modify::ex_modify(call),
            _ => Err(Errno::OPNOTSUPP),
        };
    }
    match call.command.number {
        number::GET_CONTEXT => device::get_context(call),
        number::QUERY_DEVICE => device::query(call),
        number::QUERY_PORT => device::query_port(call),
        number::ALLOC_PD => memory::alloc_pd(call),
        number::DEALLOC_PD => memory::dealloc_pd(call),
        number::REG_MR => memory::reg_mr(call),
        number::REREG_MR => rereg::rereg_mr(call),
        number::DEREG_MR => memory::dereg_mr(call),
        number::ALLOC_MW => memory::alloc_mw(call),
        number::DEALLOC_MW => memory::dealloc_mw(call),
        number::CREATE_COMP_CHANNEL => cq::create_channel(call),
        number::CREATE_CQ => cq::create(call),
        number::RESIZE_CQ => cq::resize(call),
        number::REQ_NOTIFY_CQ => cq::request_notify(call),
        number::DESTROY_CQ => cq::destroy(call),
        number::CREATE_QP => qp::create(call),
        number::QUERY_QP => qp::query(call),
        number::MODIFY_QP => modify::modify(call),
        number::POST_SEND => qp::post_send(call),
        number::DESTROY_QP => qp::destroy(call),
        number::CREATE_SRQ => srq::create(call),
        number::CREATE_XSRQ => srq::create_extended(call),
        number::MODIFY_SRQ => srq::modify(call),
        number::QUERY_SRQ => srq::query(call),
        number::DESTROY_SRQ => srq::destroy(call),
        number::CREATE_AH => address::create(call),
        number::DESTROY_AH => address::destroy(call),
        number::ATTACH_MCAST => address::attach_mcast(call),
        number::DETACH_MCAST => address::detach_mcast(call),
        _ => Err(Errno::OPNOTSUPP),
    }
}

impl Call<'_> {
    /// The core's request.
    fn request<T: FromBytes + IntoBytes>(&self) -> Result<T, Errno> {
        self.command.request().map_err(parse_errno)
    }

    /// Insists on room for the provider's response `T`, as rxe does.
    fn needs_room<T>(&self) -> Result<(), Errno> {
        if self.command.driver_out_len < size_of::<T>() { Err(Errno::INVAL) } else { Ok(()) }
    }

    /// Runs `f` on the context's worker.
    fn on_shard<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Shard, ContextId) -> Result<R, CommandError> + Send + 'static,
    ) -> Result<R, Errno> {
        self.scope.on_shard(f)
    }

    /// Executes the requests that the program posted to a queue pair before this command.
    fn settle_qp(&self, qp: u32) {
        let (id, shard) = (self.scope.context.id(), self.scope.context.shard());
        shard.settle(move |shard| shard.settle_qp(id, qp));
    }

    /// Executes the requests that the program posted before this command, where their completions go to a queue.
    fn settle_cq(&self, cq: u32) {
        let (id, shard) = (self.scope.context.id(), self.scope.context.shard());
        shard.settle(move |shard| shard.settle_cq(id, cq));
    }

    /// Like [`Call::on_shard`], for the destruction of an object, after all that had been posted before: that it does not
    /// exist is ENOENT there.
    fn destroy_on_shard<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Shard, ContextId) -> Result<R, CommandError> + Send + 'static,
    ) -> Result<R, Errno> {
        let (id, shard) = (self.scope.context.id(), self.scope.context.shard());
        shard.call_settled(move |shard| f(shard, id)).map_err(|error| match error {
            CommandError::NoSuchObject => Errno::NOENT,
            other => command_errno(other),
        })
    }

    /// Charges for one more object of this kind.
    fn charge(&mut self, kind: ObjectKind) -> Result<Charge, Errno> {
        self.scope.charge(Item::Object(kind), 1)
    }

    /// Drops what is left of a destroyed object, on a thread that serves no program.
    fn discard(&self, deferred: impl Send + 'static) {
        self.scope.endpoint.account.disposal().discard(deferred);
    }

    /// Records a path of the program that cannot work.
    fn note_path(&mut self, av: &AddressVector) {
        let Scope { context, endpoint, program, .. } = &mut self.scope;
        endpoint.account.note_path(av, &context.shard().routes().current(), context.external_error(), program);
    }

    /// Records a path that security groups have refused, if they have.
    fn note_refusal<R>(&mut self, av: &AddressVector, result: Result<R, Errno>) -> Result<R, Errno> {
        let Scope { endpoint, program, .. } = &mut self.scope;
        result.inspect_err(|errno| {
            if *errno == Errno::ACCESS {
                endpoint.account.note_forbidden(av.dgid.ip(), program);
            }
        })
    }

    /// Records the failure of a queue pair with this final state, if any.
    fn note_end(&mut self, info: &QpInfo) {
        let Scope { endpoint, program, .. } = &mut self.scope;
        FailedRequest::of_queue_pair(info).into_iter().for_each(|request| endpoint.account.note(request, program));
    }

    fn created(&mut self, charge: Charge) {
        self.scope.context.holdings_mut().add(charge);
        self.scope.totals.objects_created += 1;
    }

    fn destroyed(&mut self, kind: ObjectKind) {
        self.scope.destroyed(kind);
    }
}

impl Scope<'_> {
    fn on_shard<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Shard, ContextId) -> Result<R, CommandError> + Send + 'static,
    ) -> Result<R, Errno> {
        let id = self.context.id();
        self.context.shard().call(move |shard| f(shard, id)).map_err(command_errno)
    }

    /// Charges for some of an item.
    fn charge(&mut self, item: Item, amount: u64) -> Result<Charge, Errno> {
        let account = &self.endpoint.account;
        let charged = account.charge(item, amount);
        // What the budget refuses is counted where it is tried again.
        let is_over = charged.is_err() && !account.share().has_refused();
        self.totals.refused_by_quota += u64::from(is_over);
        charged
    }

    fn destroyed(&mut self, kind: ObjectKind) {
        self.context.holdings_mut().give_back(Item::Object(kind), 1);
        self.totals.objects_destroyed += 1;
    }
}

fn parse_errno(error: ParseError) -> Errno {
    match error {
        ParseError::Malformed => Errno::INVAL,
        ParseError::TooShort => Errno::NOSPC,
        ParseError::Unsupported => Errno::OPNOTSUPP,
    }
}

fn command_errno(error: CommandError) -> Errno {
    match error {
        CommandError::NoSuchObject | CommandError::Invalid => Errno::INVAL,
        CommandError::Busy => Errno::BUSY,
        CommandError::Exhausted => Errno::NOMEM,
        CommandError::Unsupported => Errno::OPNOTSUPP,
        CommandError::Forbidden => Errno::ACCESS,
    }
}
