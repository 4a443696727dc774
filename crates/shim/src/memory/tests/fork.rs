//! Fork tests: parent and child each have their own memory.

use super::*;

/// Forks; the child runs `child` and exits with its result.
fn in_child(child: impl FnOnce() -> bool) -> Forked {
    crate::memory::watch_forks();
    match crate::memory::fork() {
        0 => {
            let fine = child();
            unsafe { libc::_exit(i32::from(!fine)) }
        }
        process => Forked(process),
    }
}

struct Forked(i32);

impl Forked {
    fn expect_fine(self) {
        let mut status = 0;
        assert_eq!(unsafe { libc::waitpid(self.0, &mut status, 0) }, self.0);
        assert_eq!(status, 0, "the child saw something else");
    }
}

/// A byte through which parent and child tell each other to go on.
struct Bell(std::os::fd::OwnedFd, std::os::fd::OwnedFd);

impl Bell {
    fn new() -> Self {
        let (read, write) = rustix::pipe::pipe().unwrap();
        Self(read, write)
    }

    fn ring(&self) {
        rustix::io::write(&self.1, &[1]).unwrap();
    }

    fn wait(&self) {
        assert_eq!(rustix::io::read(&self.0, &mut [0u8; 1][..]).unwrap(), 1);
    }
}

#[test]
fn neither_sees_what_the_other_writes() {
    let pages = Pages::new(4);
    pages.fill();
    let registration = pages.register(PAGE_BYTES + 5, 100);
    let (written, seen) = (Bell::new(), Bell::new());
    let peek = |at: usize| unsafe { pages.base.add(at).read_volatile() };
    let poke = |at: usize, value: u8| unsafe { pages.base.add(at).write_volatile(value) };
    // In the registered part, in the rest of its page, and in a page that was not converted.
    let places = [PAGE_BYTES + 10, PAGE_BYTES + 4000, 3 * PAGE_BYTES];
    let forked = in_child(|| {
        written.wait();
        let kept = places.iter().all(|&at| peek(at) == pattern(at));
        places.iter().for_each(|&at| poke(at, 2));
        seen.ring();
        kept && places.iter().all(|&at| peek(at) == 2)
    });
    places.iter().for_each(|&at| poke(at, 1));
    written.ring();
    seen.wait();
    assert!(places.iter().all(|&at| peek(at) == 1));
    assert_eq!(router_view(&registration)[5], 1, "and the router's view is the parent's");
    forked.expect_fine();
}

#[test]
fn the_copy_is_the_memory_at_the_fork() {
    let pages = Pages::new(5000);
    pages.fill();
    pages.register(0, pages.len);
    for _ in 0..5 {
        let forked = in_child(|| (0..pages.len).all(|at| unsafe { pages.base.add(at).read_volatile() } == pattern(at)));
        (0..pages.len).for_each(|at| unsafe { pages.base.add(at).write_volatile(0) });
        forked.expect_fine();
        pages.fill();
    }
}

#[test]
fn a_child_registers_in_an_arena_of_its_own() {
    let pages = Pages::new(4);
    pages.fill();
    let parents = pages.register(0, pages.len);
    let identity = |registration: &Registration| {
        let stat = rustix::fs::fstat(arena_of(registration)).unwrap();
        (stat.st_dev, stat.st_ino)
    };
    let forked = in_child(|| {
        let Ok(own) = register(pages.address(0), pages.len as u64, RW) else { return false };
        let grandchild = in_child(|| pages.bytes()[7] == pattern(7));
        let mut status = 1;
        unsafe { libc::waitpid(grandchild.0, &mut status, 0) };
        status == 0 && kinds(&own) == [ARENA_KIND] && identity(&own) != identity(&parents)
    });
    forked.expect_fine();
    pages.expect_filled();
}

#[test]
fn a_stack_that_was_turned_survives_the_fork() {
    let mut buffer = [7u8; 20_000];
    let address = buffer.as_mut_ptr() as u64;
    let kinds_seen = std::thread::spawn(move || kinds(&register(address, 20_000, RW).unwrap())).join().unwrap();
    assert!(kinds_seen.contains(&ARENA_KIND), "{kinds_seen:?}");
    let (written, seen) = (Bell::new(), Bell::new());
    let forked = in_child(|| {
        written.wait();
        let kept = buffer.iter().all(|&byte| unsafe { (&raw const byte).read_volatile() } == 7);
        seen.ring();
        kept
    });
    buffer.fill(8);
    std::hint::black_box(&mut buffer);
    written.ring();
    seen.wait();
    forked.expect_fine();
    assert!(buffer.iter().all(|&byte| byte == 8));
}
