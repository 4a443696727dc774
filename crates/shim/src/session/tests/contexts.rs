//! Tests of contexts: open, close, fork.

use super::*;
use rustix::fd::IntoRawFd;

const DEALLOC_PD: u32 = 4;

#[test]
fn an_endpoint_without_a_router_has_no_device() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(open(Endpoint::at(directory.path()), true), Err(Errno::NODEV));
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(directory.path().join(SOCKET_NAME)).unwrap()).unwrap();
    assert_eq!(open(Endpoint::at(directory.path()), true), Err(Errno::NODEV));
}

#[test]
fn a_long_path_is_no_obstacle() {
    let short = Router::start();
    let long = tempfile::tempdir().unwrap();
    let deep = long.path().join("d".repeat(100)).join("e".repeat(100));
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::rename(short.directory.path().join(SOCKET_NAME), deep.join(SOCKET_NAME)).unwrap();
    close(open(Endpoint::at(&deep), true).unwrap());
}

#[test]
fn a_descriptor_is_inherited_only_when_asked() {
    let router = Router::start();
    for close_on_exec in [true, false] {
        let fd = open(router.endpoint(), close_on_exec).unwrap();
        let flags = rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }).unwrap();
        assert_eq!(flags.contains(rustix::io::FdFlags::CLOEXEC), close_on_exec);
        close(fd);
    }
}

#[test]
fn a_router_that_has_gone_is_an_io_error() {
    let router = Router::start();
    let fd = router.open();
    let context = descriptors::peek_as::<Context>(fd).unwrap();
    let connection = context.connection(&mut context.lock()).unwrap();
    rustix::net::shutdown(unsafe { BorrowedFd::borrow_raw(connection) }, rustix::net::Shutdown::Both).unwrap();
    assert_eq!(write_command(fd, &legacy(DEALLOC_PD, 0, &[1])), Err(Errno::IO));
    assert_eq!(write_command(fd, &legacy(DEALLOC_PD, 0, &[1])), Err(Errno::IO));
    close(fd);
}

/// Behaves as the replaced `read`.
fn read_events(fd: RawFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    let read = match rustix::io::read(unsafe { BorrowedFd::borrow_raw(fd) }, &mut *buffer)? {
        0 => end_of_events(fd, buffer.as_mut_ptr().cast(), buffer.len()),
        len => return Ok(len),
    };
    usize::try_from(read).map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap())
}

#[test]
fn a_router_that_has_gone_is_one_fatal_event_and_then_an_error() {
    use std::os::fd::AsRawFd;
    let router = Router::start();
    let fd = router.open();
    let Some(context) = descriptors::get::<Context>(fd) else { panic!("no device") };
    let Router { page, events, program, .. } = router;
    let number = program.as_raw_fd();
    context.events().made(number);
    completion::add(&context, number + 1000, 7);
    page.lock().unwrap().clone().unwrap().set_qp_state(3, 3);
    let post_send = || {
        let command = legacy(28, 1, &[0, pair(3, 0), pair(1, 0)]);
        write_command(fd, &command)
    };
    assert_eq!(post_send(), Ok(()));
    rustix::io::write(&events, &[7; 16]).unwrap();
    drop(events);
    let mut event = [1; 16];
    assert_eq!((read_events(number, &mut event), event), (Ok(16), [7; 16]), "what came before is read first");
    assert_eq!(read_events(number, &mut [0; 8]), Err(Errno::INVAL));
    let mut fatal = [0; 16];
    fatal[8] = 8;
    assert_eq!((read_events(number, &mut event), event), (Ok(16), fatal));
    assert_eq!(read_events(number, &mut event), Err(Errno::IO));
    assert_eq!(post_send(), Err(Errno::IO));
    assert_eq!(end_of_events(number + 1000, event.as_mut_ptr().cast(), 8), -1, "a completion channel ends too");
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(read_events(file.as_raw_fd(), &mut event), Ok(0), "other descriptors end as they do");
    close(fd);
    assert_eq!(read_events(number, &mut event), Ok(0), "what the program has closed is no news");
    completion::closed(number + 1000);
}

#[test]
fn a_number_that_became_something_else_is_no_device() {
    let router = Router::start();
    let fd = router.open();
    let (read, written) = rustix::pipe::pipe().unwrap();
    unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&written), fd) };
    let context = descriptors::peek_as::<Context>(fd).unwrap();
    assert!(matches!(write(context, fd, b"hello, world"), Written::Foreign));
    assert!(descriptors::peek(fd).is_none());
    link::discard(fd);
    drop(read);
}

#[test]
fn threads_take_turns() {
    let router = Router::start();
    let fd = router.open();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for i in 0..50 {
                    assert_eq!(write_command(fd, &legacy(DEALLOC_PD, 0, &[pair(thread, i)])), Ok(()));
                }
            });
        }
    });
    let mut seen: Vec<_> = (0..200).map(|_| router.request().command).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 200);
    close(fd);
}

#[test]
fn a_forked_child_attaches_with_the_token() {
    memory::watch_forks();
    let router = Router::start();
    let fd = router.open();
    let process = memory::fork();
    if process == 0 {
        let fine = (0..2).all(|i| write_command(fd, &legacy(DEALLOC_PD, 0, &[i])) == Ok(()));
        unsafe { libc::_exit(i32::from(!fine)) };
    }
    let attach = router.request();
    assert_eq!((attach.kind, attach.command.as_slice()), (RequestKind::Attach, &TOKEN.0[..]));
    assert_eq!(router.request().command, legacy(DEALLOC_PD, 0, &[0]));
    assert_eq!(router.request().command, legacy(DEALLOC_PD, 0, &[1]));
    let mut status = 1;
    unsafe { libc::waitpid(process, &mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(write_command(fd, &legacy(DEALLOC_PD, 0, &[2])), Ok(()), "and the parent goes on");
    assert_eq!(router.request().kind, RequestKind::Verbs);
    close(fd);
}

#[test]
fn the_device_is_closed_with_its_last_descriptor() {
    let router = Router::start();
    let fd = router.open();
    let Some(context) = descriptors::get::<Context>(fd) else { panic!("no device") };
    let copy = rustix::io::fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(fd) }, 0).unwrap().into_raw_fd();
    descriptors::set(copy, context.clone());
    close(fd);
    let connection = || context.connection(&mut context.lock());
    assert!(connection().is_ok());
    close(copy);
    assert_eq!(connection(), Err(Errno::BADF));
}
