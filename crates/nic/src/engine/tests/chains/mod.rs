//! Managed queues: what the rules of chains say beyond what a model can compare (`crates/sim/tests/chains`).

mod ends;
mod hostile;
mod rules;
mod shares;
mod world;
