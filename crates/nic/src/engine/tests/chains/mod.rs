//! Managed queues: what the rules of chains say beyond what a model can compare (`crates/sim/tests/chains`).

mod counts;
mod ends;
mod errors;
mod hostile;

mod orders;
mod rules;
mod shares;
mod world;
