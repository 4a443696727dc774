//! Connection manager tests: single rules, captured messages of real kernels, a lossy network, and hostile peers.

mod capture;
mod hostile;
mod lossy;
mod rules;
mod world;
