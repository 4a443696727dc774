//! Chains of programs, and what outlives programs.

mod linger;
