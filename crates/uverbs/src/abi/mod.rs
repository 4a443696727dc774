//! The structs of the kernel's uapi headers.
