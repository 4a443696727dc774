use super::reclaimer::SLICE;
use super::*;
use crate::budget::{Budget, Limits, Resource};
use rdmesh_uverbs::shared::{Keep, SharedMemory};
use std::os::fd::AsFd;
use std::sync::mpsc::{Sender, channel};

const PAGE: usize = 4096;

/// A charge for a mapping that its endpoint's disposal unmaps.
struct Charged {
    disposal: Disposal,
    _charge: crate::budget::Charge,
}

impl Keep for Charged {
    fn unmap(self: Box<Self>, pages: UnusedMapping) {
        self.disposal.clone().unmap(pages, self);
    }
}

/// An object that reports the thread on which it is dropped, and holds that thread until it may go on.
struct Gate(std::sync::mpsc::Receiver<()>, Sender<std::thread::ThreadId>);

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.1.send(std::thread::current().id());
        let _ = self.0.recv();
    }
}

#[test]
fn memory_is_charged_until_another_thread_has_unmapped_it() {
    let budget = Budget::new(Limits::of_this_process());
    let disposal = Disposal::new(budget.share(u32::MAX), &Reclaimer::new());
    let (_ours, fd) = SharedMemory::create("test", PAGE).unwrap();
    let charge = disposal.share().take(Resource::AddressSpace, PAGE as u64).unwrap();
    let memory =
        SharedMemory::map_keeping(fd.as_fd(), 0, PAGE, Charged { disposal: disposal.clone(), _charge: charge });
    let ((open, gate), (report, thread)) = (channel(), channel());
    disposal.discard(Gate(gate, report));
    assert_ne!(thread.recv().unwrap(), std::thread::current().id());
    drop(memory);
    assert!(disposal.is_reclaiming());
    assert_eq!(budget.held(Resource::AddressSpace), PAGE as u64);
    drop(open);
    disposal.finish();
    assert!(!disposal.is_reclaiming());
    assert_eq!(budget.held(Resource::AddressSpace), 0);
}

#[test]
fn endpoints_are_reclaimed_in_turn() {
    let (budget, reclaimer) = (Budget::new(Limits::of_this_process()), Reclaimer::new());
    let [a, b] = [(); 2].map(|()| Disposal::new(budget.share(u32::MAX), &reclaimer));
    let ((open, gate), (report, _thread)) = (channel(), channel());
    a.discard(Gate(gate, report));
    let (sender, order) = channel();
    for n in 0..100 {
        a.discard(Reported(format!("a{n}"), sender.clone()));
    }
    b.discard(Reported("b".into(), sender));
    drop(open);
    a.finish();
    let order: Vec<String> = order.iter().collect();
    assert!(order.iter().position(|name| name == "b") <= Some(1), "{:?}", &order[..4]);
}

/// A mapping of several slices, and an object of another endpoint that comes after it.
#[test]
fn memory_is_unmapped_in_slices_between_which_others_have_their_turn() {
    const SLICES: usize = 5;
    let (budget, reclaimer) = (Budget::new(Limits::of_this_process()), Reclaimer::new());
    let [a, b] = [(); 2].map(|()| Disposal::new(budget.share(u32::MAX), &reclaimer));
    let ((open, gate), (report, _thread)) = (channel(), channel());
    b.discard(Gate(gate, report));
    let (sender, order) = channel();
    let (_ours, fd) = SharedMemory::create("test", SLICES * SLICE).unwrap();
    let keep = Slow { disposal: a.clone(), _reported: Reported("a".into(), sender.clone()) };
    drop(SharedMemory::map_keeping(fd.as_fd(), 0, SLICES * SLICE, keep).unwrap());
    for n in 0..SLICES {
        b.discard(Reported(format!("b{n}"), sender.clone()));
    }
    drop((sender, open));
    a.finish();
    let order: Vec<String> = order.iter().collect();
    assert!(order.iter().position(|name| name == "a") >= Some(SLICES - 1), "{order:?}");
}

/// Reports the end of a mapping that its endpoint's disposal unmaps.
struct Slow {
    disposal: Disposal,
    _reported: Reported,
}

impl Keep for Slow {
    fn unmap(self: Box<Self>, pages: UnusedMapping) {
        self.disposal.clone().unmap(pages, self);
    }
}

/// Reports its name when it is dropped.
struct Reported(String, Sender<String>);

impl Drop for Reported {
    fn drop(&mut self) {
        let _ = self.1.send(std::mem::take(&mut self.0));
    }
}

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * PAGE
}

#[test]
fn memory_of_dropped_objects_goes_back_to_the_system() {
    const PIECES: usize = 256 << 10;
    let budget = Budget::new(Limits::of_this_process());
    let disposal = Disposal::new(budget.share(u32::MAX), &Reclaimer::new());
    let mut pieces: Vec<Box<[u8; 1000]>> = (0..PIECES).map(|_| Box::new([1; 1000])).collect();
    // It is at the end of the heap, which cannot become shorter.
    let last = pieces.pop();
    let full = resident();
    disposal.discard(pieces);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while resident() > full - PIECES * 500 {
        assert!(std::time::Instant::now() < deadline, "{full} bytes before, {} now", resident());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    drop(last);
}
