//! Base of the preload libraries: what a library between a program and libc needs, whatever it serves.
//!
//! Such a library replaces functions of libc, gives the program descriptors that are its own, survives the program's forks, and
//! talks to the router. Inside it system calls are made directly (rustix), never through a function that it replaces.
//!
//! * [`real`]: the libc functions behind the replaced ones, which [`replace!`] defines; [`errno`]: how they fail; [`system_call`]: calls
//!   past them.
//! * [`settings`]: environment variables; [`endpoint`]: the endpoint's directory.
//! * [`Table`]: table of the descriptors that a library gives to the program; [`own`]: those that it keeps to itself.
//! * [`gate`]: excludes forks while a library's state changes; [`process`]: tells a process from those that it forks.
//! * [`link`]: connections to the router; [`channel`]: requests and replies on one.
//!
//! No function is replaced in here: what a library replaces is what it defines with [`replace!`], in its own crate.

pub mod channel;
pub mod endpoint;
pub mod errno;
pub mod gate;
pub mod link;
pub mod own;
pub mod process;
pub mod real;
mod replace;
pub mod settings;
pub mod system_call;
mod table;

pub use channel::Channel;
pub use endpoint::Endpoint;
pub use link::Link;
pub use own::OwnFd;
pub use replace::{Failed, fail};
pub use table::{Kind, Table};

/// Makes the base ready, when the library is loaded. All of it would also be done at the first use; here the working directory
/// is still the one that a relative `LD_PRELOAD` was meant for, and no other thread exists yet.
pub fn start() {
    real::look_up_all();
    process::claim();
    endpoint::find();
}
