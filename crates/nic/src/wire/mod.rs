//! Packet formats: RoCEv2 headers as values and as bytes.
//!
//! One [`Header`] holds all transport headers of a RoCEv2 packet as values: the base transport header and the extension headers
//! of its opcode. Decoding checks every length; encoding is its inverse.
//!
//! * [`header`]: BTH and extension headers (IBA 9.2 to 9.6, annexes A17 and A19); `extension` has those that are shared.
//! * `opcode`: the headers of each opcode.
//! * [`ip`]: IPv4, IPv6 and UDP headers around a packet.
//! * [`geneve`]: the tunnel between routers (RFC 8926).
//! * [`selective`]: selective acknowledgements between routers.
//! * [`probe`]: probes of paths, between routers.
//! * [`telemetry`]: the load of a router's link, in selective acknowledgements.
//! * [`icrc`]: the invariant CRC (IBA 7.8.1, annex A17.3.3).

mod bytes;
mod extension;
pub mod geneve;
pub mod header;
pub mod icrc;
pub mod ip;
mod malformed;
mod opcode;
pub mod probe;
pub mod selective;
pub mod telemetry;

pub use extension::{Aeth, NakCode, Reth, Syndrome};
pub use header::{DEFAULT_PKEY, Header, Op, Part, Service, padded};
pub use icrc::{ICRC_LEN, IdSolver};
pub use ip::IpUdp;
pub use malformed::Malformed;
pub use probe::{Probe, ProbeAnswer, RouterVersion};
pub use selective::{SEQUENCE_WINDOW, SelectiveAck};
pub use telemetry::Telemetry;
