mod abuse;
mod errors;
mod model;
mod operations;
mod world;
