mod abuse;
mod errors;
mod groups;
mod management;
mod model;
mod operations;
mod wire;
mod world;
