//! Events, as a program reads them from a completion channel and from the descriptor of asynchronous events.

uapi! {
    struct CompEventDesc("ib_uverbs_comp_event_desc"): 8 {
        [0] cq_handle: u64,
    }

    /// `event_type` is a number of `enum ib_event_type`.
    struct AsyncEventDesc("ib_uverbs_async_event_desc"): 16 {
        [0] element: u64,
        [8] event_type: u32,
        [12] reserved: u32,
    }
}
