//! The chain API for programs: what `rdmesh_chain.h` declares.
//!
//! * [`border`]: results and texts as C has them.
//! * [`calls`]: the device behind a program's objects, and commands to the router.
//! * [`queue`]: managed queues by hand, with [`request`]: work requests as C structs; [`ring`]: rings as memory.
//! * [`group`]: groups of managed queues: counts, faults, orders.
//! * [`text`]: chains: assembled, listed, multiplied.
//! * [`program`]: chains by label and field, with [`span`]: their objects by number, and [`when`]: conditions.
//! * [`service`]: installation of a chain in queues, with [`area`]: its memory.
//! * [`hash`]: the service of values by key; [`list`]: in lists; [`words`]: locks and counters; [`answer`]: what replies say.

mod answer;
mod area;
mod border;
mod calls;
mod group;
mod hash;
mod list;
mod program;
mod queue;
mod request;
mod ring;
mod service;
mod span;
mod text;
mod when;
mod words;
