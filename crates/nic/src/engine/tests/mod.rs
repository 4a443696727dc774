//! Engine tests: two or more engines, joined by the harness in `world`.

mod abuse;
mod access;
mod chains;
mod counted;
mod errors;
mod forged;
mod groups;
mod keys;
mod management;
mod model;
mod moving;
mod operations;
mod platform;
mod probes;
mod rates;
mod selective;
mod shares;
mod slow;
mod telemetry;
mod wire;
mod world;
