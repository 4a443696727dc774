//! Handlers of session messages.

use super::account::{Account, Item};
use super::clients::Incoming;
use super::commands::{self, Scope};
use super::connection::{Answer, Attempt, Flow, Frame, Subject, Until};
use super::context::Context;
use super::control::CmControl;
use super::lookups::Found;
use super::netlink::asks_for_port;
use super::reply::Reply;
use super::server::Server;
use crate::budget::Resource;
use rdmesh_uverbs::ring::Extent;
use rdmesh_uverbs::session::{RequestKind, Token};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use zerocopy::FromBytes;

impl Server {
    /// Executes a message and answers it; an error where it has to wait.
    pub(super) fn execute(&mut self, id: u64, incoming: &Incoming<'_>) -> Result<Flow, Until> {
        let Incoming { bytes, fds, attempt } = incoming;
        let frame = match Frame::parse(bytes) {
            Ok(frame) => frame,
            Err(error) => return Ok(self.clients.expel(id, &error.to_string())),
        };
        let Some(subject) = self.clients.get(id).map(|connection| connection.subject) else { return Ok(Flow::Close) };
        match self.look_first(id, &frame) {
            Ok(false) => {}
            Ok(true) => return Err(Until::Lookup),
            Err(errno) => {
                let refused = self.refused(id);
                refused.into_iter().for_each(|resource| self.note_exhausted(id, resource));
                return Ok(self.answer(id, &frame, &Err(errno)));
            }
        }
        let may_wait = *attempt == Attempt::First && frame.may_wait();
        let answer = match (frame.kind, subject) {
            (RequestKind::Open, None) => self.with_room(id, may_wait, |server| server.open(id, fds))?,
            (RequestKind::Attach, None) => self.attach(id, frame.body),
            (RequestKind::OpenCm | RequestKind::AttachCm, None) => return Ok(Flow::HandOver),
            (RequestKind::Verbs | RequestKind::Ioctl, Some(Subject::Context(context))) => {
                self.with_room(id, may_wait, |server| server.command(id, context, &frame, fds))?
            }
            (RequestKind::Counter, _) => self.counter(id, frame.body),
            (RequestKind::Netlink, _) => self.netlink(id, frame.body),
            (RequestKind::Verbs | RequestKind::Ioctl | RequestKind::Cm | RequestKind::CmUnlessEvents, None) => {
                return Ok(self.clients.expel(id, "command before the device was opened"));
            }
            (_, Some(_)) => Err(Errno::INVAL),
        };
        Ok(self.answer(id, &frame, &answer))
    }

    fn answer(&mut self, id: u64, frame: &Frame<'_>, answer: &Answer) -> Flow {
        let subject = self.clients.get(id).and_then(|connection| connection.subject);
        let wanted = if answer.is_err() { self.wanted(subject) } else { None };
        self.clients.answer(id, frame, answer, wanted)
    }

    /// The part of the queue memory that the program must populate before the command that failed just now can succeed.
    fn wanted(&self, subject: Option<Subject>) -> Option<Extent> {
        let Some(Subject::Context(context)) = subject else { return None };
        self.devices.get(context)?.queues.take_wanted()
    }

    /// Executes a command. Where the endpoint's budget is exhausted, unused mappings are evicted, and the command has to wait
    /// until they have gone, if it may.
    fn with_room(
        &mut self,
        id: u64,
        may_wait: bool,
        command: impl FnOnce(&mut Self) -> Answer,
    ) -> Result<Answer, Until> {
        let answer = command(self);
        let refused = self.refused(id);
        let Some(resource) = refused.filter(|_| answer.is_err()) else { return Ok(answer) };
        if may_wait {
            let evicted = self.accounts.evict();
            // What the endpoint itself has given up counts as its own until then.
            let is_reclaiming = self.account_of(id).is_some_and(|account| account.disposal.is_reclaiming());
            if !evicted.is_empty() || is_reclaiming {
                return Err(Until::Room(evicted));
            }
        }
        self.note_exhausted(id, resource);
        Ok(Err(resource.errno()))
    }

    /// The resource that the budget has refused to a connection's endpoint.
    fn refused(&self, id: u64) -> Option<Resource> {
        self.account_of(id)?.share.take_refusal()
    }

    fn note_exhausted(&mut self, id: u64, resource: Resource) {
        self.accounts.totals.refused_by_quota += 1;
        self.account_of(id).into_iter().for_each(|account| account.exhausted(resource));
    }

    fn account_of(&self, id: u64) -> Option<&Account> {
        Some(&self.clients.get(id)?.account)
    }

    fn open(&mut self, id: u64, fds: &[OwnedFd]) -> Answer {
        let Self { accounts, clients, devices, cm, .. } = self;
        let connection = clients.get_mut(id).ok_or(Errno::INVAL)?;
        let number = connection.endpoint;
        let (endpoint, totals) = accounts.with_totals(number).ok_or(Errno::NODEV)?;
        let account = &endpoint.account;
        let Some(Found::Place(place)) = connection.found.take() else {
            // Nothing was looked up for it, because its quota is reached.
            totals.refused_by_quota += 1;
            return Err(account.charge(Item::Context, 1).err().unwrap_or(Errno::AGAIN));
        };
        account.report_outside(place.plain.as_ref().err());
        let worker = devices.least_loaded();
        let (mut context, reply) = Context::open(account, &connection.peer, fds, worker, *place)?;
        (context.opener, context.number) = (id, devices.free_number(number));
        // Before the program knows: what it does then finds the device there.
        cm.tell(CmControl::Opened(number, context.open_device()));
        totals.contexts_opened += 1;
        connection.subject = Some(Subject::Context(devices.insert(context)));
        let response = reply.core.clone();
        Ok((reply, response))
    }

    /// Begins the lookup that a message needs. Returns whether the message has to wait for it.
    fn look_first(&mut self, id: u64, frame: &Frame<'_>) -> Result<bool, Errno> {
        let connection = self.clients.get(id).ok_or(Errno::INVAL)?;
        let account = &self.accounts.get(connection.endpoint).ok_or(Errno::NODEV)?.account;
        if connection.found.is_some() {
            return Ok(false);
        }
        let (seeker, process, lookups) = (&account.seeker, connection.peer.process(), &self.lookups);
        match (frame.kind, connection.subject) {
            (RequestKind::Open, None) if account.has_room_for(Item::Context) => {
                let (_, shard) = self.devices.least_loaded();
                lookups.find_place(id, seeker, process, (self.plains.clone(), shard))?;
            }
            (RequestKind::Verbs, Some(Subject::Context(_)))
                if commands::needs_memory(frame) && connection.peer.memory().is_none() =>
            {
                lookups.open_memory(id, seeker, process);
            }
            (RequestKind::Netlink, _) if connection.interface.is_none() && asks_for_port(frame.body) => {
                lookups.find_interface(id, seeker, process);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Takes what has been looked up.
    pub(super) fn take_found(&mut self) {
        while let Some((id, found)) = self.lookups.next() {
            // Given back where the connection has gone.
            drop(self.clients.found(id, found));
        }
    }

    fn attach(&mut self, id: u64, body: &[u8]) -> Answer {
        let token = Token::read_from_bytes(body).map_err(|_| Errno::INVAL)?;
        let connection = self.clients.get_mut(id).ok_or(Errno::INVAL)?;
        let (number, context) = self.devices.find(connection.endpoint, &token).ok_or(Errno::ACCESS)?;
        context.connections += 1;
        connection.subject = Some(Subject::Context(number));
        Ok((Reply::default(), Vec::new()))
    }

    fn command(&mut self, id: u64, context: u32, frame: &Frame<'_>, fds: &[OwnedFd]) -> Answer {
        let connection = self.clients.get_mut(id).ok_or(Errno::INVAL)?;
        let failed = || if let Some(Found::Memory(failed)) = connection.found.take() { Some(failed) } else { None };
        let memory = if commands::needs_memory(frame) { connection.peer.memory().or_else(failed) } else { None };
        let limits = self.accounts.limits();
        let (endpoint, totals) = self.accounts.with_totals(connection.endpoint).ok_or(Errno::NODEV)?;
        let scope = Scope {
            context: self.devices.get_mut(context).ok_or(Errno::INVAL)?,
            number: context,
            endpoint,
            totals,
            limits: &limits,
            peer: &connection.peer,
            memory,
        };
        let answer = match frame.kind {
            RequestKind::Verbs => commands::write(scope, frame.body, &frame.segments(), fds),
            _ => commands::ioctl(scope, frame.body).map(|response| (Reply::default(), response)),
        };
        self.accounts.totals.commands += 1;
        self.accounts.totals.commands_failed += u64::from(answer.is_err());
        answer
    }
}
