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

numbers! {
    /// Netlink's own types (`NLMSG_*`).
    pub mod netlink_type("NLMSG_"): u16 {
        /// An error, or an acknowledgement.
        ERROR = 2,
        /// The end of a list.
        DONE = 3,
        /// The first type of a protocol's own.
        MIN("NLMSG_MIN_TYPE") = 0x10,
    }

    /// Commands (`enum rdma_nldev_command`).
    pub mod nldev("RDMA_NLDEV_CMD_"): u16 {
        GET = 1,
        SET = 2,
        NEWLINK = 3,
        DELLINK = 4,
        PORT_GET = 5,
        SYS_GET = 6,
        SYS_SET = 7,
        RES_GET = 9,
        RES_QP_GET = 10,
        RES_CM_ID_GET = 11,
        RES_CQ_GET = 12,
        RES_MR_GET = 13,
        RES_PD_GET = 14,
        GET_CHARDEV = 15,
        STAT_SET = 16,
        STAT_GET = 17,
        STAT_DEL = 18,
        RES_QP_GET_RAW = 19,
        RES_CQ_GET_RAW = 20,
        RES_MR_GET_RAW = 21,
        RES_CTX_GET = 22,
        RES_SRQ_GET = 23,
        STAT_GET_STATUS = 24,
        RES_SRQ_GET_RAW = 25,
        NEWDEV = 26,
        DELDEV = 27,
    }

    /// Attributes (`enum rdma_nldev_attr`).
    pub mod nldev_attr("RDMA_NLDEV_ATTR_"): u16 {
        DEV_INDEX = 1,
        DEV_NAME = 2,
        PORT_INDEX = 3,
        CAP_FLAGS = 4,
        NODE_GUID = 6,
        SYS_IMAGE_GUID = 7,
        PORT_STATE = 12,
        PORT_PHYS_STATE = 13,
        DEV_NODE_TYPE = 14,
        RES_SUMMARY = 15,
        RES_SUMMARY_ENTRY = 16,
        RES_SUMMARY_ENTRY_NAME = 17,
        RES_SUMMARY_ENTRY_CURR = 18,
        RES_QP = 19,
        RES_QP_ENTRY = 20,
        RES_LQPN = 21,
        RES_RQPN = 22,
        RES_RQ_PSN = 23,
        RES_SQ_PSN = 24,
        RES_PATH_MIG_STATE = 25,
        RES_TYPE = 26,
        RES_STATE = 27,
        RES_PID = 28,
        RES_CM_ID = 30,
        RES_CM_ID_ENTRY = 31,
        RES_PS = 32,
        RES_SRC_ADDR = 33,
        RES_DST_ADDR = 34,
        RES_CQ = 35,
        RES_CQ_ENTRY = 36,
        RES_CQE = 37,
        RES_USECNT = 38,
        RES_MR = 40,
        RES_MR_ENTRY = 41,
        RES_MRLEN = 45,
        RES_PD = 46,
        RES_PD_ENTRY = 47,
        NDEV_INDEX = 50,
        NDEV_NAME = 51,
        RES_PDN = 60,
        RES_CQN = 61,
        RES_MRN = 62,
        RES_CM_IDN = 63,
        RES_CTXN = 64,
        SYS_NETNS_MODE("RDMA_NLDEV_SYS_ATTR_NETNS_MODE") = 66,
        DEV_PROTOCOL = 67,
        CHARDEV_TYPE = 69,
        CHARDEV_NAME = 70,
        CHARDEV_ABI = 71,
        CHARDEV = 72,
        UVERBS_DRIVER_ID = 73,
        STAT_MODE = 74,
        STAT_RES = 75,
        STAT_COUNTER_ID = 79,
        STAT_HWCOUNTERS = 80,
        STAT_HWCOUNTER_ENTRY = 81,
        STAT_HWCOUNTER_ENTRY_NAME = 82,
        STAT_HWCOUNTER_ENTRY_VALUE = 83,
        DEV_DIM = 84,
        RES_CTX = 86,
        RES_CTX_ENTRY = 87,
        RES_SRQ = 88,
        RES_SRQ_ENTRY = 89,
        RES_SRQN = 90,
        MIN_RANGE = 91,
        MAX_RANGE = 92,
        SYS_COPY_ON_FORK("RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK") = 93,
        STAT_HWCOUNTER_INDEX = 94,
        SYS_PRIVILEGED_QKEY_MODE("RDMA_NLDEV_SYS_ATTR_PRIVILEGED_QKEY_MODE") = 96,
        NAME_ASSIGN_TYPE = 101,
    }
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
