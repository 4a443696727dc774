//! Rule by rule, against what real kernels said, in a world that loses messages, and with peers that mean harm.

mod capture;
mod hostile;
mod lossy;
mod rules;
mod world;
