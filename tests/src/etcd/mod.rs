//! An etcd cluster of a test's own, in a network namespace of its own, and a proxy that loses what it is told to.

mod proxy;
mod server;

pub use proxy::Proxy;
pub use server::{Etcd, Security};

use nix::sched::{CloneFlags, unshare};
use std::process::Command;
use std::thread;

/// Runs `test` in a network namespace where nothing is but the loopback interface. The processes that it starts are there too.
pub fn in_network<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send) {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace (as root)");
            let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
            assert!(up.expect("`ip` of iproute2").success());
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(test());
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}
