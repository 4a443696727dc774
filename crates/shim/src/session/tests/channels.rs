//! Tests of rdma_cm channels.

use super::*;
use rdmesh_uverbs::abi::cm_command::{
    CREATE_ID, DESTROY_ID, DISCONNECT, GET_EVENT, GET_OPTION, LEAVE_MCAST, MIGRATE_ID, QUERY_ROUTE, SET_OPTION,
    WRITE_CM_EVENT,
};
use rustix::fs::OFlags;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::sync::atomic::AtomicI32;
use std::time::{Duration, Instant};

impl Router {
    fn open_cm(&self, flags: OFlags) -> RawFd {
        let fd = cm::open(self.endpoint(), flags | OFlags::CLOEXEC).unwrap();
        assert_eq!(self.request().kind, RequestKind::OpenCm);
        fd
    }

    /// An event that waits, and what GET_EVENT will be answered.
    fn event(&self, answer: Answer) {
        self.answer_next(answer);
        send(&self.events, b"e", SendFlags::empty()).unwrap();
    }

    /// Takes the byte of an event that was handed over.
    fn take_byte(&self) {
        recv(&self.program, &mut [0u8; 1][..], RecvFlags::DONTWAIT).unwrap();
    }
}

fn cm_write(fd: RawFd, command: &[u8]) -> Result<(), Errno> {
    match cm::write(fd, command) {
        Written::Command(result) => result,
        Written::Foreign => panic!("not taken for a command"),
    }
}

/// A command whose body is `body`, with `room` for the response.
fn command(number: u32, room: u16, body: &[u64]) -> Vec<u8> {
    let mut command = number.to_ne_bytes().to_vec();
    command.extend([(body.len() as u16 * 8).to_ne_bytes(), room.to_ne_bytes()].concat());
    command.extend(body.iter().flat_map(|word| word.to_ne_bytes()));
    command
}

fn get_event(into: &mut [u8; 336]) -> Vec<u8> {
    command(GET_EVENT, 336, &[into.as_mut_ptr() as u64])
}

#[test]
fn a_response_goes_where_its_command_names_the_place() {
    let router = Router::start();
    let fd = router.open_cm(OFlags::empty());
    let mut room = [0xaau8; 8];
    router.answer_next(Answer { response: vec![1, 2, 3, 4, 5, 6], ..Answer::default() });
    let create = command(CREATE_ID, 4, &[55, room.as_mut_ptr() as u64, 0]);
    assert_eq!(cm_write(fd, &create), Ok(()));
    assert_eq!(room, [1, 2, 3, 4, 0xaa, 0xaa, 0xaa, 0xaa]);
    let request = router.request();
    assert_eq!((request.kind, request.command), (RequestKind::Cm, create.clone()));
    router.answer_next(Answer { errno: Errno::ADDRINUSE.raw_os_error() as u32, ..Answer::default() });
    assert_eq!(cm_write(fd, &create), Err(Errno::ADDRINUSE));
    close(fd);
}

#[test]
fn malformed_commands_are_refused_as_the_kernel_does() {
    let router = Router::start();
    let fd = router.open_cm(OFlags::empty());
    let mut room = [0u8; 208];
    let address = room.as_mut_ptr() as u64;
    assert_eq!(cm_write(fd, &[]), Err(Errno::INVAL));
    assert_eq!(cm_write(fd, &[0; 7]), Err(Errno::INVAL));
    assert_eq!(cm_write(fd, &command(CREATE_ID, 4, &[0, address])), Err(Errno::INVAL), "too short");
    let mut long = command(DISCONNECT, 0, &[0]);
    long[4] += 1;
    assert_eq!(cm_write(fd, &long), Err(Errno::INVAL), "shorter than it says");
    assert_eq!(cm_write(fd, &command(CREATE_ID, 3, &[0, address, 0])), Err(Errno::NOSPC));
    assert_eq!(cm_write(fd, &command(QUERY_ROUTE, 199, &[address, 0])), Err(Errno::NOSPC));
    assert_eq!(cm_write(fd, &command(CREATE_ID, 4, &[0, 0, 0])), Err(Errno::FAULT));
    assert_eq!(cm_write(fd, &command(GET_EVENT, 323, &[address])), Err(Errno::NOSPC), "without waiting");
    assert_eq!(cm_write(fd, &command(GET_OPTION, 0, &[0; 3])), Err(Errno::NOSYS));
    assert_eq!(cm_write(fd, &command(WRITE_CM_EVENT + 1, 0, &[0; 40])), Err(Errno::INVAL));
    assert_eq!(cm_write(fd, &command(u32::MAX, 0, &[0; 40])), Err(Errno::INVAL));
    assert!(router.heard_nothing());
    let mut longer = command(DISCONNECT, 0, &[3]);
    longer.extend([9; 16]);
    assert_eq!(cm_write(fd, &longer), Ok(()), "what follows the command is not looked at");
    assert_eq!(router.request().command, command(DISCONNECT, 0, &[3]));
    close(fd);
}

#[test]
fn an_option_travels_with_its_command() {
    let router = Router::start();
    let fd = router.open_cm(OFlags::empty());
    let value = [7u8, 8, 9];
    let set = command(SET_OPTION, 0, &[value.as_ptr() as u64, pair(1, 0), pair(1, 3)]);
    assert_eq!(cm_write(fd, &set), Ok(()));
    assert_eq!(router.request().command, [&set[..], &value].concat());
    assert_eq!(cm_write(fd, &command(SET_OPTION, 0, &[0, pair(1, 0), pair(1, 3)])), Err(Errno::FAULT));
    assert_eq!(cm_write(fd, &command(SET_OPTION, 0, &[1, pair(1, 0), pair(1, u32::MAX)])), Err(Errno::INVAL));
    assert_eq!(cm_write(fd, &command(SET_OPTION, 0, &[0, pair(1, 0), pair(1, 0)])), Ok(()));
    close(fd);
}

#[test]
fn an_id_migrates_from_the_channel_that_a_descriptor_names() {
    let router = Router::start();
    let (fd, other, verbs) = (router.open_cm(OFlags::empty()), router.open_cm(OFlags::empty()), router.open());
    let mut events = 0u32;
    let address = (&raw mut events) as u64;
    let migrate = |from: RawFd| command(MIGRATE_ID, 4, &[address, pair(5, from.cast_unsigned())]);
    router.answer_next(Answer { response: vec![2, 0, 0, 0], ..Answer::default() });
    assert_eq!(cm_write(fd, &migrate(other)), Ok(()));
    let mut sent = migrate(other);
    sent[20..24].copy_from_slice(&NUMBER.to_ne_bytes());
    assert_eq!((events, router.request().command), (2, sent));
    assert_eq!(cm_write(fd, &migrate(verbs)), Err(Errno::INVAL));
    assert_eq!(cm_write(fd, &migrate(-1)), Err(Errno::NOENT));
    assert_eq!(cm_write(fd, &migrate(999_999)), Err(Errno::NOENT));
    assert!(router.heard_nothing());
    [fd, other, verbs].into_iter().for_each(close);
}

#[test]
fn an_event_is_waited_for_only_by_a_blocking_descriptor() {
    let router = Router::start();
    let fd = router.open_cm(OFlags::NONBLOCK);
    let mut event = [0u8; 336];
    assert_eq!(cm_write(fd, &get_event(&mut event)), Err(Errno::AGAIN));
    assert!(router.heard_nothing(), "the router is not asked in vain");
    router.event(Answer { response: vec![3; 336], ..Answer::default() });
    assert_eq!(cm_write(fd, &get_event(&mut event)), Ok(()));
    assert_eq!(event, [3; 336]);
    router.take_byte();
    rustix::fs::fcntl_setfl(unsafe { BorrowedFd::borrow_raw(fd) }, OFlags::empty()).unwrap();
    let thread = AtomicI32::new(0);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut event = [0u8; 336];
            thread.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            (cm_write(fd, &get_event(&mut event)), event[0])
        });
        wait_until_asleep(&thread, libc::SYS_recvfrom);
        assert_eq!(cm_write(fd, &command(DISCONNECT, 0, &[1])), Ok(()), "others are not held up");
        router.event(Answer { response: vec![4; 336], ..Answer::default() });
        assert_eq!(waiter.join().unwrap(), (Ok(()), 4));
    });
    close(fd);
}

#[test]
fn a_thread_that_comes_too_late_waits_for_the_next_event() {
    let router = Router::start();
    let fd = router.open_cm(OFlags::NONBLOCK);
    let again = || Answer { errno: Errno::AGAIN.raw_os_error() as u32, ..Answer::default() };
    // Answers are taken from the end.
    router.answer_next(Answer { response: vec![5; 336], ..Answer::default() });
    router.answer_next(again());
    router.event(again());
    let mut event = [0u8; 336];
    assert_eq!(cm_write(fd, &get_event(&mut event)), Ok(()));
    assert_eq!(event[0], 5);
    assert_eq!((0..3).map(|_| router.request().kind).collect::<Vec<_>>(), [RequestKind::Cm; 3]);
    close(fd);
}

#[test]
fn a_router_that_has_gone_ends_the_waiting() {
    let router = Router::start();
    let fd = router.open_cm(OFlags::empty());
    rustix::net::shutdown(&router.events, rustix::net::Shutdown::Both).unwrap();
    let mut event = [0u8; 336];
    assert_eq!(cm_write(fd, &get_event(&mut event)), Err(Errno::IO));
    close(fd);
}

#[test]
fn a_number_that_became_something_else_is_no_channel() {
    let router = Router::start();
    let fd = router.open_cm(OFlags::empty());
    let (read, written) = rustix::pipe::pipe().unwrap();
    unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&written), fd) };
    assert!(matches!(cm::write(fd, &command(DISCONNECT, 0, &[1])), Written::Foreign));
    assert!(descriptors::peek(fd).is_none());
    link::discard(fd);
    drop(read);
}

#[test]
fn a_forked_child_attaches_to_the_channel() {
    memory::watch_forks();
    let router = Router::start();
    let fd = router.open_cm(OFlags::empty());
    let process = memory::fork();
    if process == 0 {
        let fine = (0..2).all(|i| cm_write(fd, &command(DISCONNECT, 0, &[i])) == Ok(()));
        unsafe { libc::_exit(i32::from(!fine)) };
    }
    let attach = router.request();
    assert_eq!((attach.kind, attach.command.as_slice()), (RequestKind::AttachCm, &TOKEN.0[..]));
    assert_eq!(router.request().command, command(DISCONNECT, 0, &[0]));
    let mut status = 1;
    unsafe { libc::waitpid(process, &mut status, 0) };
    assert_eq!(status, 0);
    close(fd);
}

/// A thread that reads an event, and then does something else until it is dropped.
struct Reading {
    thread: Option<std::thread::JoinHandle<()>>,
    number: i32,
    end: Option<Sender<()>>,
}

impl Reading {
    fn start(router: &Router, fd: RawFd) -> Self {
        router.event(Answer { response: vec![3; 336], ..Answer::default() });
        let (end, ended) = channel::<()>();
        let (read, has_read) = channel();
        let thread = std::thread::spawn(move || {
            let mut event = [0u8; 336];
            let number = rustix::thread::gettid().as_raw_pid();
            read.send((cm_write(fd, &get_event(&mut event)), number)).unwrap();
            let _ = ended.recv();
        });
        let (result, number) = has_read.recv().unwrap();
        assert_eq!(result, Ok(()));
        router.take_byte();
        assert_eq!(router.request().kind, RequestKind::Cm);
        Self { thread: Some(thread), number, end: Some(end) }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        drop(self.end.take());
        self.thread.take().into_iter().for_each(|thread| thread.join().unwrap());
        // A thread that was joined may be the kernel's for a moment more.
        let task = format!("/proc/self/task/{}", self.number);
        let begin = std::time::Instant::now();
        while std::path::Path::new(&task).exists() {
            assert!(begin.elapsed() < std::time::Duration::from_secs(20), "the thread does not end");
            std::thread::yield_now();
        }
    }
}

fn destroy(into: &mut u32) -> Vec<u8> {
    command(DESTROY_ID, 4, &[(&raw mut *into) as u64, 5])
}

#[test]
fn what_takes_events_away_lets_their_reader_have_them_first() {
    let router = Router::start();
    let (fd, other) = (router.open_cm(OFlags::NONBLOCK), router.open_cm(OFlags::NONBLOCK));
    let reading = Reading::start(&router, fd);
    let mut reported = 0;
    let address = (&raw mut reported) as u64;
    let leave = command(LEAVE_MCAST, 4, &[address, 5]);
    let migrate = command(MIGRATE_ID, 4, &[address, pair(5, fd.cast_unsigned())]);
    for (to, command) in [(fd, destroy(&mut reported)), (fd, leave), (other, migrate)] {
        // Once refused, then executed.
        router.answer_next(Answer { response: vec![1, 0, 0, 0], ..Answer::default() });
        router.answer_next(Answer { errno: Errno::AGAIN.raw_os_error() as u32, ..Answer::default() });
        assert_eq!(cm_write(to, &command), Ok(()));
        let asked = [router.request().kind, router.request().kind];
        assert_eq!((asked, std::mem::take(&mut reported)), ([RequestKind::CmUnlessEvents; 2], 1));
    }
    assert_eq!(cm_write(fd, &command(DISCONNECT, 0, &[1])), Ok(()));
    assert_eq!(router.request().kind, RequestKind::Cm, "it takes no event away");
    let migrate = command(MIGRATE_ID, 4, &[address, pair(5, other.cast_unsigned())]);
    assert_eq!(cm_write(fd, &migrate), Ok(()));
    assert_eq!(router.request().kind, RequestKind::Cm, "no thread reads the events of the other channel");
    drop(reading);
    [fd, other].into_iter().for_each(close);
}

#[test]
fn a_reader_that_does_not_come_is_waited_for_once() {
    let router = Router::start();
    let fd = router.open_cm(OFlags::NONBLOCK);
    let reading = Reading::start(&router, fd);
    router.has_unread.store(true, Ordering::SeqCst);
    let mut reported = 0;
    assert_eq!(cm_write(fd, &destroy(&mut reported)), Ok(()));
    assert_eq!(router.request().kind, RequestKind::CmUnlessEvents);
    while router.request().kind != RequestKind::Cm {}
    assert_eq!(cm_write(fd, &destroy(&mut reported)), Ok(()));
    assert_eq!(router.request().kind, RequestKind::Cm);
    drop(reading);
    close(fd);
}

#[test]
fn a_thread_does_not_wait_for_itself_or_for_one_that_has_ended() {
    let router = Router::start();
    let fd = router.open_cm(OFlags::NONBLOCK);
    router.has_unread.store(true, Ordering::SeqCst);
    drop(Reading::start(&router, fd));
    let mut reported = 0;
    assert_eq!(cm_write(fd, &destroy(&mut reported)), Ok(()));
    assert_eq!(router.request().kind, RequestKind::Cm, "the reader has ended");
    let mut event = [0u8; 336];
    router.event(Answer { response: vec![3; 336], ..Answer::default() });
    assert_eq!(cm_write(fd, &get_event(&mut event)), Ok(()));
    assert_eq!(cm_write(fd, &destroy(&mut reported)), Ok(()));
    assert_eq!([router.request().kind, router.request().kind], [RequestKind::Cm; 2]);
    close(fd);
}

#[test]
fn an_event_that_is_taken_away_meanwhile_is_not_asked_for() {
    let router = Router::start();
    let fd = router.open_cm(OFlags::empty());
    let (first, second) = (AtomicI32::new(0), AtomicI32::new(0));
    let note = |thread: &AtomicI32| thread.store(unsafe { libc::gettid() }, Ordering::SeqCst);
    std::thread::scope(|scope| {
        // The router does not answer as long as this is held.
        let held = router.answers.lock().unwrap();
        let busy = scope.spawn(|| {
            note(&first);
            cm_write(fd, &command(DISCONNECT, 0, &[1]))
        });
        wait_until_asleep(&first, libc::SYS_recvmsg);
        send(&router.events, b"e", SendFlags::empty()).unwrap();
        let reader = scope.spawn(|| {
            let mut event = [0u8; 336];
            note(&second);
            (cm_write(fd, &get_event(&mut event)), event[0])
        });
        wait_until_asleep(&second, libc::SYS_futex);
        router.take_byte();
        drop(held);
        assert_eq!(busy.join().unwrap(), Ok(()));
        wait_until_asleep(&second, libc::SYS_recvfrom);
        assert_eq!(router.request().kind, RequestKind::Cm);
        assert!(router.heard_nothing());
        router.event(Answer { response: vec![4; 336], ..Answer::default() });
        assert_eq!(reader.join().unwrap(), (Ok(()), 4));
    });
    close(fd);
}

/// A thread in GET_EVENT that knows nothing of Rust's unwinding, as a C program's.
struct Waiter {
    handle: libc::pthread_t,
    start: &'static Start,
}

#[repr(C)]
struct Start {
    fd: RawFd,
    thread: AtomicI32,
}

impl Waiter {
    fn start(fd: RawFd) -> Self {
        extern "C-unwind" fn wait(start: &'static Start) -> *mut libc::c_void {
            let mut event = [0u8; 336];
            start.thread.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            let _ = cm::write(start.fd, &get_event(&mut event));
            std::ptr::null_mut()
        }
        unsafe extern "C" {
            fn pthread_create(
                thread: *mut libc::pthread_t,
                attributes: *const libc::c_void,
                run: extern "C-unwind" fn(&'static Start) -> *mut libc::c_void,
                argument: &'static Start,
            ) -> i32;
        }
        let start = Box::leak(Box::new(Start { fd, thread: AtomicI32::new(0) }));
        let mut handle = 0;
        assert_eq!(unsafe { pthread_create(&mut handle, std::ptr::null(), wait, start) }, 0);
        wait_until_asleep(&start.thread, libc::SYS_recvfrom);
        Self { handle, start }
    }

    /// Cancels it; whether it was still there to be cancelled.
    fn cancel(self) -> bool {
        unsafe extern "C" {
            fn pthread_cancel(thread: libc::pthread_t) -> i32;
        }
        let mut result = std::ptr::null_mut();
        unsafe {
            assert_eq!(pthread_cancel(self.handle), 0);
            assert_eq!(libc::pthread_join(self.handle, &mut result), 0);
        }
        result as usize == usize::MAX
    }
}

#[test]
fn a_cancelled_thread_leaves_the_channel_as_it_was() {
    let router = Router::start();
    let fd = router.open_cm(OFlags::empty());
    assert!(Waiter::start(fd).cancel());
    assert_eq!(cm_write(fd, &command(DISCONNECT, 0, &[1])), Ok(()));
    close(fd);
}

/// Gives a descriptor a number that none of another test gets when it is closed.
fn under_high_number(fd: RawFd) -> RawFd {
    // SAFETY: makes a descriptor.
    let high = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 800) };
    assert!(high >= 800);
    descriptors::duplicated(fd, high);
    close(fd);
    high
}

#[test]
fn a_thread_whose_channel_is_closed_is_told_nothing() {
    let router = Router::start();
    let fd = under_high_number(router.open_cm(OFlags::empty()));
    let waiter = Waiter::start(fd);
    close(fd);
    rustix::net::shutdown(&router.events, rustix::net::Shutdown::Both).unwrap();
    wait_until_asleep(&waiter.start.thread, PAUSE);
    assert!(waiter.cancel());
}

/// System call number of `pause`.
#[cfg(target_arch = "x86_64")]
const PAUSE: i64 = libc::SYS_pause;
#[cfg(not(target_arch = "x86_64"))]
const PAUSE: i64 = libc::SYS_ppoll;

/// Waits until `thread` sleeps in the system call `number`.
fn wait_until_asleep(thread: &AtomicI32, number: i64) {
    let since = Instant::now();
    let begins = format!("{number} ");
    while since.elapsed() < Duration::from_secs(10) {
        let call = format!("/proc/self/task/{}/syscall", thread.load(Ordering::SeqCst));
        if std::fs::read_to_string(call).is_ok_and(|call| call.starts_with(&begins)) {
            return;
        }
        std::thread::yield_now();
    }
    panic!("the thread does not wait");
}
