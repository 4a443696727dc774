//! Asynchronous events (IBA 11.6.3).

/// `enum ibv_event_type`; the numbers are those that `ib_uverbs_async_event_desc` carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum AsyncEvent {
    CqError = 0,
    QpFatal = 1,
    QpRequestError = 2,
    QpAccessError = 3,
    CommEstablished = 4,
    SqDrained = 5,
    DeviceFatal = 8,
    PortActive = 9,
    PortError = 10,
    SrqError = 14,
    SrqLimitReached = 15,
    QpLastWqeReached = 16,
    GidChange = 18,
}
