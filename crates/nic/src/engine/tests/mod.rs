mod abuse;
mod errors;
mod model;
mod operations;
mod wire;
mod world;
