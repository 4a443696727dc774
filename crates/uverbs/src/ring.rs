//! Work and completion queues, seen from the device.
