//! The threads that run the engine.
