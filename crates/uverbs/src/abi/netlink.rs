//! The netlink protocol of RDMA devices (`NETLINK_RDMA`, `rdma_netlink.h`), as far as it is spoken here.

/// The protocol's number, as `socket()` takes it.
pub const NETLINK_RDMA: i32 = 20;
/// The client of the protocol that devices answer for (`RDMA_NL_NLDEV`).
pub const NLDEV: u16 = 5;

uapi! {
    /// The head of a message: its length, with this header; what it is (see [`nldev_type`]; what is below [`netlink_type::MIN`]
    /// is netlink's own); [`netlink_flag`]s; a number that the requester chose; the port of the socket that asks.
    struct NetlinkHeader("nlmsghdr"): 16 {
        [0] len("nlmsg_len"): u32,
        [4] kind("nlmsg_type"): u16,
        [6] flags("nlmsg_flags"): u16,
        [8] seq("nlmsg_seq"): u32,
        [12] port_id("nlmsg_pid"): u32,
    }
}

/// The type of the messages of a device command (`RDMA_NL_GET_TYPE`).
pub const fn nldev_type(command: u16) -> u16 {
    NLDEV << 10 | command
}

/// The client and the command that a type names.
pub const fn client_and_command(kind: u16) -> (u16, u16) {
    (kind >> 10 & 0x3f, kind & 0x3ff)
}

/// Netlink's own types (`NLMSG_*`).
pub mod netlink_type {
    /// An error, or an acknowledgement.
    pub const ERROR: u16 = 2;
    /// The end of a list.
    pub const DONE: u16 = 3;
    /// The first type of a protocol's own.
    pub const MIN: u16 = 0x10;
}

/// Flags of messages (`NLM_F_*`).
pub mod netlink_flag {
    /// It asks for something.
    pub const REQUEST: u16 = 1;
    /// One part of a list.
    pub const MULTI: u16 = 2;
    /// An acknowledgement is wanted.
    pub const ACK: u16 = 4;
    /// Either of these asks for a list (`NLM_F_ROOT | NLM_F_MATCH`).
    pub const DUMP: u16 = 0x300;
    /// In an error: of the message that it is about, only the header follows.
    pub const CAPPED: u16 = 0x100;
}

/// Commands (`enum rdma_nldev_command`).
pub mod nldev {
    #![allow(missing_docs)]
    pub const GET: u16 = 1;
    pub const SET: u16 = 2;
    pub const NEWLINK: u16 = 3;
    pub const DELLINK: u16 = 4;
    pub const PORT_GET: u16 = 5;
    pub const SYS_GET: u16 = 6;
    pub const SYS_SET: u16 = 7;
    pub const RES_GET: u16 = 9;
    pub const RES_QP_GET: u16 = 10;
    pub const RES_CM_ID_GET: u16 = 11;
    pub const RES_CQ_GET: u16 = 12;
    pub const RES_MR_GET: u16 = 13;
    pub const RES_PD_GET: u16 = 14;
    pub const GET_CHARDEV: u16 = 15;
    pub const STAT_SET: u16 = 16;
    pub const STAT_GET: u16 = 17;
    pub const STAT_DEL: u16 = 18;
    pub const RES_QP_GET_RAW: u16 = 19;
    pub const RES_CQ_GET_RAW: u16 = 20;
    pub const RES_MR_GET_RAW: u16 = 21;
    pub const RES_CTX_GET: u16 = 22;
    pub const RES_SRQ_GET: u16 = 23;
    pub const STAT_GET_STATUS: u16 = 24;
    pub const RES_SRQ_GET_RAW: u16 = 25;
    pub const NEWDEV: u16 = 26;
    pub const DELDEV: u16 = 27;
}

/// Attributes (`enum rdma_nldev_attr`).
pub mod nldev_attr {
    #![allow(missing_docs)]
    pub const DEV_INDEX: u16 = 1;
    pub const DEV_NAME: u16 = 2;
    pub const PORT_INDEX: u16 = 3;
    pub const CAP_FLAGS: u16 = 4;
    pub const NODE_GUID: u16 = 6;
    pub const SYS_IMAGE_GUID: u16 = 7;
    pub const PORT_STATE: u16 = 12;
    pub const PORT_PHYS_STATE: u16 = 13;
    pub const DEV_NODE_TYPE: u16 = 14;
    pub const RES_SUMMARY: u16 = 15;
    pub const RES_SUMMARY_ENTRY: u16 = 16;
    pub const RES_SUMMARY_ENTRY_NAME: u16 = 17;
    pub const RES_SUMMARY_ENTRY_CURR: u16 = 18;
    pub const RES_QP: u16 = 19;
    pub const RES_QP_ENTRY: u16 = 20;
    pub const RES_LQPN: u16 = 21;
    pub const RES_RQPN: u16 = 22;
    pub const RES_RQ_PSN: u16 = 23;
    pub const RES_SQ_PSN: u16 = 24;
    pub const RES_PATH_MIG_STATE: u16 = 25;
    pub const RES_TYPE: u16 = 26;
    pub const RES_STATE: u16 = 27;
    pub const RES_PID: u16 = 28;
    pub const RES_CM_ID: u16 = 30;
    pub const RES_CM_ID_ENTRY: u16 = 31;
    pub const RES_PS: u16 = 32;
    pub const RES_SRC_ADDR: u16 = 33;
    pub const RES_DST_ADDR: u16 = 34;
    pub const RES_CQ: u16 = 35;
    pub const RES_CQ_ENTRY: u16 = 36;
    pub const RES_CQE: u16 = 37;
    pub const RES_USECNT: u16 = 38;
    pub const RES_MR: u16 = 40;
    pub const RES_MR_ENTRY: u16 = 41;
    pub const RES_MRLEN: u16 = 45;
    pub const RES_PD: u16 = 46;
    pub const RES_PD_ENTRY: u16 = 47;
    pub const NDEV_INDEX: u16 = 50;
    pub const NDEV_NAME: u16 = 51;
    pub const RES_PDN: u16 = 60;
    pub const RES_CQN: u16 = 61;
    pub const RES_MRN: u16 = 62;
    pub const RES_CM_IDN: u16 = 63;
    pub const RES_CTXN: u16 = 64;
    pub const SYS_NETNS_MODE: u16 = 66;
    pub const DEV_PROTOCOL: u16 = 67;
    pub const CHARDEV_TYPE: u16 = 69;
    pub const CHARDEV_NAME: u16 = 70;
    pub const CHARDEV_ABI: u16 = 71;
    pub const CHARDEV: u16 = 72;
    pub const UVERBS_DRIVER_ID: u16 = 73;
    pub const STAT_MODE: u16 = 74;
    pub const STAT_RES: u16 = 75;
    pub const STAT_COUNTER_ID: u16 = 79;
    pub const STAT_HWCOUNTERS: u16 = 80;
    pub const STAT_HWCOUNTER_ENTRY: u16 = 81;
    pub const STAT_HWCOUNTER_ENTRY_NAME: u16 = 82;
    pub const STAT_HWCOUNTER_ENTRY_VALUE: u16 = 83;
    pub const DEV_DIM: u16 = 84;
    pub const RES_CTX: u16 = 86;
    pub const RES_CTX_ENTRY: u16 = 87;
    pub const RES_SRQ: u16 = 88;
    pub const RES_SRQ_ENTRY: u16 = 89;
    pub const RES_SRQN: u16 = 90;
    pub const MIN_RANGE: u16 = 91;
    pub const MAX_RANGE: u16 = 92;
    pub const SYS_COPY_ON_FORK: u16 = 93;
    pub const STAT_HWCOUNTER_INDEX: u16 = 94;
    pub const SYS_PRIVILEGED_QKEY_MODE: u16 = 96;
    pub const NAME_ASSIGN_TYPE: u16 = 101;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_name_client_and_command() {
        assert_eq!(nldev_type(nldev::GET), 0x1401);
        assert_eq!(client_and_command(nldev_type(nldev::RES_SRQ_GET)), (NLDEV, nldev::RES_SRQ_GET));
        assert_eq!(client_and_command(u16::MAX), (0x3f, 0x3ff));
    }
}
