//! Registered tenant memory, as the engine reaches it.
