//! Execution of programs' messages: the device is opened, commands and queries are answered.

use super::account::{Account, Item};
use super::accounts::Accounts;
use super::areas::Opening;
use super::clients::Incoming;
use super::commands::{self, Scope};
use super::connection::{Answer, Attempt, Frame, SessionConnection, Subject, Until};
use super::context::Context;
use super::control::CmControl;
use super::device_failures;
use super::devices::Devices;
use super::info::ContextInfo;
use super::lease::{Lease, Left, Lingering};
use super::lookups::{Found, Lookups};
use super::netlink::{Asker, asks_for_port};
use super::post::Post;
use super::reply::Reply;
use crate::budget::Resource;
use crate::endpoint::{EndpointId, counter};
use crate::io::{Clock, ExternalPaths};
use crate::memory::ProcessMemory;
use rdmesh_nic::policy::Policy;
use rdmesh_uverbs::ring::Extent;
use rdmesh_uverbs::session::guest::Pages;
use rdmesh_uverbs::session::linger::{Attached, LingerRequest};
use rdmesh_uverbs::session::{RequestKind, Segment, Token};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Objects of the endpoints' programs, and the messages that change them.
pub(super) struct Executor {
    accounts: Accounts,
    devices: Devices,
    external_paths: ExternalPaths,
    lookups: Lookups,
    /// The thread of rdma_cm.
    cm: Post<CmControl>,
    lingering: Lingering,
    clock: Clock,
}

/// Result of a message.
pub(super) enum Executed {
    /// It has an answer.
    Answer(Answer),
    /// The thread of rdma_cm executes it.
    HandOver,
    /// Its program breaks the rules, for this reason.
    Broken(&'static str),
}

impl Executor {
    /// Nothing has been made yet.
    pub(super) fn new(
        accounts: Accounts,
        devices: Devices,
        external_paths: ExternalPaths,
        lookups: Lookups,
        cm: Post<CmControl>,
        clock: Clock,
    ) -> Self {
        Self { accounts, devices, external_paths, lookups, cm, lingering: Lingering::default(), clock }
    }

    /// The endpoints.
    pub(super) fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// The endpoints, to be changed.
    pub(super) fn accounts_mut(&mut self) -> &mut Accounts {
        &mut self.accounts
    }

    /// The open devices, to be changed.
    pub(super) fn devices_mut(&mut self) -> &mut Devices {
        &mut self.devices
    }

    /// The open devices.
    pub(super) fn devices(&self) -> &Devices {
        &self.devices
    }

    /// The thread of rdma_cm.
    pub(super) fn cm(&self) -> &Post<CmControl> {
        &self.cm
    }

    /// The next result of a lookup, and the connection that waits for it.
    pub(super) fn next_found(&self) -> Option<(u64, Found)> {
        self.lookups.next()
    }

    /// Executes a message of connection `id`; an error where it has to wait.
    pub(super) fn execute(
        &mut self,
        id: u64,
        connection: &mut SessionConnection,
        frame: &Frame<'_>,
        Incoming { fds, attempt, .. }: &Incoming<'_>,
    ) -> Result<Executed, Until> {
        match self.look_first(id, connection, frame) {
            Ok(false) => {}
            Ok(true) => return Err(Until::Lookup),
            Err(errno) => {
                let refused = connection.account().share().take_refusal();
                refused.into_iter().for_each(|resource| self.note_exhausted(connection.account(), resource));
                return Ok(Executed::Answer(Err(errno)));
            }
        }
        let may_wait = *attempt == Attempt::First && frame.may_wait();
        let answer = match (frame.kind, connection.subject()) {
            (RequestKind::Open, None) => self.with_room(connection, may_wait, |executor, connection| {
                executor.open(connection, &Opening::Here, fds)
            })?,
            (RequestKind::OpenGuest, None) => match Opening::in_guest(frame.body) {
                Some(opening) => self
                    .with_room(connection, may_wait, |executor, connection| executor.open(connection, &opening, fds))?,
                None => Err(Errno::INVAL),
            },
            (RequestKind::GuestPages, Some(Subject::Context(context))) => self.add_guest_pages(context, frame.body),
            (RequestKind::GuestSegments, Some(Subject::Context(context))) => {
                self.with_room(connection, may_wait, |executor, connection| {
                    executor.add_stretch(connection, context, &frame.segments(), fds)
                })?
            }
            (RequestKind::Attach, None) => self.attach(connection, frame.body),
            (RequestKind::Linger, None) => self.take_over(connection, frame.body),
            (RequestKind::OpenCm | RequestKind::AttachCm, None) => return Ok(Executed::HandOver),
            (
                RequestKind::Verbs | RequestKind::Ioctl | RequestKind::Chain | RequestKind::Linger,
                Some(Subject::Context(context)),
            ) => self.with_room(connection, may_wait, |executor, connection| {
                executor.command(connection, context, frame, fds)
            })?,
            (RequestKind::Counter, _) => self.counter(connection, frame.body),
            (RequestKind::Netlink, _) => self.netlink(connection, frame.body),
            (
                RequestKind::Verbs
                | RequestKind::Ioctl
                | RequestKind::Chain
                | RequestKind::Cm
                | RequestKind::CmUnlessEvents
                | RequestKind::GuestPages
                | RequestKind::GuestSegments,
                None,
            ) => {
                return Ok(Executed::Broken("command before the device was opened"));
            }
            (_, Some(_)) => Err(Errno::INVAL),
        };
        if frame.kind == RequestKind::Verbs {
            connection.forget_stretches();
        }
        Ok(Executed::Answer(answer))
    }

    /// The part of the queue memory that the program must populate before the command that failed just now can succeed.
    pub(super) fn wanted(&self, subject: Option<Subject>) -> Option<Extent> {
        let Some(Subject::Context(context)) = subject else { return None };
        self.devices.get(context)?.queues().take_wanted()
    }

    /// One connection of a context has gone, and the context too when it was the last one, unless it has a lease.
    pub(super) fn detach(&mut self, number: u32) {
        let Some(context) = self.devices.get_mut(number) else { return };
        let (left, is_broken) = (context.tenure_mut().leave(self.clock.now()), context.is_broken());
        match left {
            Left::Used => {}
            Left::Lingering(ends) if !is_broken && self.may_linger(number) => {
                // The last doorbells may have been rung in memory, and their worker not been woken.
                self.devices.get_mut(number).into_iter().for_each(|context| context.settle());
                self.lingering.add(number, ends);
            }
            Left::Lingering(_) | Left::Unused => self.close_context(number),
        }
    }

    /// Whether a context's memory is within what devices of its endpoint may keep that outlive their programs.
    fn may_linger(&self, number: u32) -> bool {
        let Some(context) = self.devices.get(number) else { return false };
        let Some(known) = self.accounts.get(context.endpoint()) else { return false };
        let lingering = self.lingering.contexts().filter_map(|other| self.devices.get(other));
        let kept = lingering.filter(|other| other.endpoint() == context.endpoint()).map(Context::pinned_bytes);
        known.account.admit_lingering(kept.sum::<u64>().saturating_add(context.pinned_bytes()))
    }

    /// Closes contexts whose terms are over. Returns the time until the next one.
    pub(super) fn end_terms(&mut self) -> Option<Duration> {
        while let Some(number) = self.lingering.take_expired(self.clock.now()) {
            self.close_context(number);
        }
        self.lingering.next(self.clock.now())
    }

    /// Closes contexts that linger, if `is_meant`. Returns how many there were.
    pub(super) fn end_lingering(&mut self, is_meant: impl Fn(&Context) -> bool) -> usize {
        let is_meant = |number: &u32| self.devices.get(*number).is_some_and(&is_meant);
        let meant: Vec<u32> = self.lingering.contexts().filter(is_meant).collect();
        meant.iter().for_each(|number| self.close_context(*number));
        meant.len()
    }

    /// Time until the last context of an endpoint that outlives its program may end: the end of a program may be seen here later
    /// than by who asks.
    pub(super) fn lingers_for(&self, endpoint: EndpointId) -> Option<Duration> {
        let now = self.clock.now();
        let leases = self.devices.of_endpoint(endpoint).filter_map(|context| context.tenure().lease());
        leases.map(|lease| lease.info(now)).map(|info| info.left.unwrap_or(info.term)).max()
    }

    /// All contexts and their objects.
    pub(super) fn snapshot(&self) -> Vec<ContextInfo> {
        let mut contexts: Vec<(u32, &Context)> = self.devices.iter().collect();
        contexts.sort_by_key(|(id, _)| *id);
        let (now, account) = (self.clock.now(), |c: &Context| Some(&self.accounts.get(c.endpoint())?.account));
        contexts.into_iter().filter_map(|(_, c)| Some(c.info(account(c)?, now))).collect()
    }

    /// Records the failures of programs that nobody has told of: indices beyond the ends of queues, and ended chains.
    pub(super) fn note_failures(&mut self) {
        for context in self.devices.iter_mut() {
            if let Some(endpoint) = self.accounts.get(context.endpoint()) {
                device_failures::note_failures(context, &endpoint.account);
            }
        }
    }

    /// Sets the rates, the priority and the weight of an endpoint's queue pairs.
    pub(super) fn set_policy(&self, endpoint: EndpointId, policy: Policy) {
        if let Some(known) = self.accounts.get(endpoint) {
            known.account.set_policy(policy);
            self.devices.set_policy(endpoint, &known.account.policy());
        }
    }

    /// Sets the budget of steps of an endpoint's chains.
    pub(super) fn set_chain_steps(&self, endpoint: EndpointId, per_second: u64) {
        if let Some(known) = self.accounts.get(endpoint) {
            known.account.set_chain_steps(per_second);
            self.devices.set_policy(endpoint, &known.account.policy());
        }
    }

    fn close_context(&mut self, id: u32) {
        let Some(mut context) = self.devices.remove(id) else { return };
        if let Some(ends) = context.tenure().lease().and_then(Lease::ends) {
            self.lingering.remove(id, ends);
        }
        context.settle();
        let number = context.endpoint();
        let Some((endpoint, totals)) = self.accounts.with_totals(number) else { return };
        totals.contexts_closed += 1;
        totals.objects_reclaimed += context.objects().total();
        endpoint.ended_traffic().add_context(&context);
        device_failures::note_failed_requests(&mut context, &endpoint.account);
        endpoint.arenas.forget(id);
        self.cm.tell(CmControl::Closed(number, context.open_device()));
        context.close(endpoint.account.disposal());
    }

    /// Executes a command. Where the endpoint's budget is exhausted, unused mappings are evicted, and the command has to wait
    /// until they have gone, if it may.
    fn with_room(
        &mut self,
        connection: &mut SessionConnection,
        may_wait: bool,
        command: impl FnOnce(&mut Self, &mut SessionConnection) -> Answer,
    ) -> Result<Answer, Until> {
        let answer = command(self, connection);
        let account = connection.account();
        let refused = account.share().take_refusal();
        let Some(resource) = refused.filter(|_| answer.is_err()) else { return Ok(answer) };
        if may_wait {
            let evicted = self.accounts.evict();
            // What the endpoint itself has given up counts as its own until then.
            if !evicted.is_empty() || account.disposal().is_reclaiming() {
                return Err(Until::Room(evicted));
            }
        }
        self.note_exhausted(account, resource);
        Ok(Err(resource.errno()))
    }

    fn note_exhausted(&mut self, account: &Account, resource: Resource) {
        self.accounts.totals_mut().refused_by_quota += 1;
        account.exhausted(resource);
    }

    fn open(&mut self, connection: &mut SessionConnection, opening: &Opening, fds: &[OwnedFd]) -> Answer {
        let Self { accounts, devices, cm, .. } = self;
        let number = connection.endpoint();
        let (endpoint, totals) = accounts.with_totals(number).ok_or(Errno::NODEV)?;
        let account = &endpoint.account;
        let Some(Found::Uplink(uplink)) = connection.take_found() else {
            // Nothing was looked up for it, because its quota is reached.
            totals.refused_by_quota += 1;
            return Err(account.charge(Item::Context, 1).err().unwrap_or(Errno::AGAIN));
        };
        account.report_external(uplink.external.as_ref().err());
        let worker = devices.least_loaded();
        let (mut context, reply) = Context::open(account, connection.program(), opening, fds, worker, *uplink)?;
        context.set_number(devices.free_number(number));
        // Before the program knows: what it does then finds the device there.
        cm.tell(CmControl::Opened(number, context.open_device()));
        totals.contexts_opened += 1;
        connection.set_subject(Subject::Context(devices.insert(context)));
        let response = reply.core.clone();
        Ok((reply, response))
    }

    /// Begins the lookup that a message needs. Returns whether the message has to wait for it.
    fn look_first(&mut self, id: u64, connection: &SessionConnection, frame: &Frame<'_>) -> Result<bool, Errno> {
        let account = connection.account();
        if connection.has_found() {
            return Ok(false);
        }
        let (seeker, process, lookups) = (account.seeker(), Arc::clone(connection.program().process()), &self.lookups);
        match (frame.kind, connection.subject()) {
            (RequestKind::Open | RequestKind::OpenGuest, None) if account.has_room_for(Item::Context) => {
                let shard = self.devices.least_loaded().number();
                lookups.find_uplink(id, seeker, process, self.external_paths.clone(), shard)?;
            }
            // A guest's pages are shared, or not to be had.
            (RequestKind::Verbs, Some(Subject::Context(context)))
                if connection.stretches().is_empty() && commands::needs_memory(frame) && self.is_in_guest(context) =>
            {
                return Err(Errno::OPNOTSUPP);
            }
            (RequestKind::Verbs, Some(Subject::Context(_)))
                if connection.stretches().is_empty()
                    && commands::needs_memory(frame)
                    && connection.program().memory().is_none() =>
            {
                lookups.open_memory(id, seeker, process);
            }
            (RequestKind::Netlink, _) if connection.interface().is_none() && asks_for_port(frame.body) => {
                lookups.find_interface(id, seeker, process);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn is_in_guest(&self, context: u32) -> bool {
        self.devices.get(context).is_some_and(|context| context.page().is_in_guest())
    }

    fn add_guest_pages(&mut self, context: u32, body: &[u8]) -> Answer {
        let context = self.devices.get(context).ok_or(Errno::INVAL)?;
        context.queues().add_pages(&Pages::parse(body).ok_or(Errno::INVAL)?)?;
        Ok(<_>::default())
    }

    /// Makes a stretch of the next registration ready: a message's worth, so that others have their turns in between.
    fn add_stretch(
        &mut self,
        connection: &mut SessionConnection,
        context: u32,
        segments: &[Segment],
        fds: &[OwnedFd],
    ) -> Answer {
        if !self.is_in_guest(context) {
            return Err(Errno::INVAL);
        }
        let (endpoint, _) = self.accounts.with_totals(connection.endpoint()).ok_or(Errno::NODEV)?;
        let stretch = commands::stretch(&mut endpoint.arenas, context, segments, fds)?;
        connection.add_stretch(stretch, segments.len())?;
        Ok(<_>::default())
    }

    fn attach(&mut self, connection: &mut SessionConnection, body: &[u8]) -> Answer {
        let token = Token::read_from_bytes(body).map_err(|_| Errno::INVAL)?;
        let (number, context) = self.devices.find(connection.endpoint(), &token).ok_or(Errno::ACCESS)?;
        let ends = context.tenure_mut().join();
        ends.into_iter().for_each(|ends| self.lingering.remove(number, ends));
        connection.set_subject(Subject::Context(number));
        Ok((Reply::default(), Vec::new()))
    }

    /// Lets the process of a new connection use the context of a lease whose token it has.
    fn take_over(&mut self, connection: &mut SessionConnection, body: &[u8]) -> Answer {
        let Some(LingerRequest::Attach(token)) = LingerRequest::parse(body) else { return Err(Errno::INVAL) };
        let (number, context) = self.devices.find_leased(connection.endpoint(), &token).ok_or(Errno::ACCESS)?;
        let lease = context.tenure().lease().ok_or(Errno::ACCESS)?;
        let info = lease.info(self.clock.now());
        let queues = context.queues().fd().ok_or(Errno::OPNOTSUPP)?;
        let mut reply = Reply::default().with_open(fcntl_dupfd_cloexec(queues, 0)?);
        if let Some((_, arena)) = lease.arena() {
            reply = reply.with_open(fcntl_dupfd_cloexec(arena, 0)?);
        }
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let objects = context.objects();
        reply.core = Attached {
            term: millis(info.term),
            left: millis(info.left.unwrap_or(info.term)),
            device: context.number(),
            mrs: objects.mrs,
            cqs: objects.cqs,
            qps: objects.qps,
        }
        .as_bytes()
        .to_vec();
        if let Some(ends) = context.tenure_mut().join() {
            self.lingering.remove(number, ends);
            context.set_opener(connection.program());
        }
        connection.set_subject(Subject::Context(number));
        let response = reply.core.clone();
        Ok((reply, response))
    }

    fn command(
        &mut self,
        connection: &mut SessionConnection,
        context: u32,
        frame: &Frame<'_>,
        fds: &[OwnedFd],
    ) -> Answer {
        let memory = if commands::needs_memory(frame) { memory(connection) } else { None };
        let limits = self.accounts.limits();
        let (endpoint, totals) = self.accounts.with_totals(connection.endpoint()).ok_or(Errno::NODEV)?;
        let scope = Scope {
            context: self.devices.get_mut(context).ok_or(Errno::INVAL)?,
            number: context,
            endpoint,
            totals,
            limits: &limits,
            program: connection.program(),
            stretches: connection.stretches(),
            memory,
        };
        let answer = match frame.kind {
            RequestKind::Verbs => commands::write(scope, frame.body, &frame.segments(), fds),
            RequestKind::Linger | RequestKind::Chain if scope.context.page().is_in_guest() => Err(Errno::OPNOTSUPP),
            RequestKind::Chain => commands::chain(scope, frame.body).map(|response| (Reply::default(), response)),
            RequestKind::Linger => {
                commands::linger(scope, frame.body, fds).map(|response| (Reply::default(), response))
            }
            _ => commands::ioctl(scope, frame.body).map(|response| (Reply::default(), response)),
        };
        let totals = self.accounts.totals_mut();
        totals.commands += 1;
        totals.commands_failed += u64::from(answer.is_err());
        answer
    }

    /// The content of a port counter's file in sysfs.
    fn counter(&mut self, connection: &SessionConnection, path: &[u8]) -> Answer {
        let counter = counter(path).ok_or(Errno::NOENT)?;
        let endpoint = self.accounts.get_mut(connection.endpoint()).ok_or(Errno::NODEV)?;
        let sum = endpoint.present_traffic(&self.devices, &self.clock);
        Ok((Reply::default(), format!("{}\n", counter(&sum)).into_bytes()))
    }

    /// The answer to a netlink request.
    fn netlink(&mut self, connection: &SessionConnection, body: &[u8]) -> Answer {
        let Self { accounts, devices, cm, clock, .. } = self;
        let endpoint = accounts.get_mut(connection.endpoint()).ok_or(Errno::NODEV)?;
        Asker::new(connection, endpoint, devices, cm, clock).answer(body)
    }
}

/// The memory of a connection's process, or why it cannot be opened, where it is known.
fn memory(connection: &mut SessionConnection) -> Option<Result<ProcessMemory, Errno>> {
    connection.program().memory().or_else(|| match connection.take_found()? {
        Found::ProcessMemory(failed) => Some(failed),
        _ => None,
    })
}
