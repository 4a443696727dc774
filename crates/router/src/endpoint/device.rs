//! Names and numbers of an endpoint and its device.

/// Names an endpoint for as long as the server of sessions runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct EndpointId(pub u32);

/// Name of the device; rdma-core takes what begins with `rxe` for its software provider's.
pub const DEVICE_NAME: &str = "rxe0";
/// Number of the device's only port.
pub(crate) const PORT: u8 = 1;
