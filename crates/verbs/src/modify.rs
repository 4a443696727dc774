//! `modify_qp` attribute masks: the attributes that each transition requires and allows.
//!
//! The rules of IBA 10.3.1 and 11.2.5.2 in the form that Linux gives them (`qp_state_table`): a program that the
//! kernel accepts is accepted here, and one that the kernel refuses is refused.

#![allow(missing_docs, reason = "the mask names are those of the QpAttr fields")]

use crate::{QpState, QpType};

bitflags::bitflags! {
    /// `enum ibv_qp_attr_mask`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct AttrMask: u32 {
        const STATE = 1;
        const CUR_STATE = 1 << 1;
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        const ACCESS_FLAGS = 1 << 3;
        const PKEY_INDEX = 1 << 4;
        const PORT = 1 << 5;
        const QKEY = 1 << 6;
        const AV = 1 << 7;
        const PATH_MTU = 1 << 8;
        const TIMEOUT = 1 << 9;
        const RETRY_CNT = 1 << 10;
        const RNR_RETRY = 1 << 11;
        const RQ_PSN = 1 << 12;
        const MAX_QP_RD_ATOMIC = 1 << 13;
        const ALT_PATH = 1 << 14;
        const MIN_RNR_TIMER = 1 << 15;
        const SQ_PSN = 1 << 16;
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        const PATH_MIG_STATE = 1 << 18;
        const CAP = 1 << 19;
        const DEST_QPN = 1 << 20;
        const RATE_LIMIT = 1 << 25;
    }
}

/// Reason why a transition is refused. Both are EINVAL at the edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModifyError {
    /// There is no such transition.
    NoTransition,
    /// A required attribute is missing, or one is given that the transition does not allow.
    Attributes,
}

/// Checks `mask` for a transition of a `qp_type` QP from `from` to `to`.
pub fn check_modify(qp_type: QpType, from: QpState, to: QpState, mask: AttrMask) -> Result<(), ModifyError> {
    use QpState::{Rtr, Rts, Sqd, Sqe};
    if mask.contains(AttrMask::CUR_STATE) && !matches!(from, Rtr | Rts | Sqd | Sqe) {
        return Err(ModifyError::Attributes);
    }
    let (required, optional) = rule(qp_type, from, to).ok_or(ModifyError::NoTransition)?;
    let allowed = required | optional | AttrMask::STATE;
    if mask.contains(required) && allowed.contains(mask) { Ok(()) } else { Err(ModifyError::Attributes) }
}

/// Required and optional attributes of a transition; none where there is no such transition.
fn rule(qp_type: QpType, from: QpState, to: QpState) -> Option<(AttrMask, AttrMask)> {
    use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let pick = |ud, uc, rc| match qp_type {
        QpType::Ud => ud,
        QpType::Uc => uc,
        QpType::Rc => rc,
    };
    let none = AttrMask::empty();
    let connected = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let migration = AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE;
    let basics = AttrMask::PKEY_INDEX | AttrMask::PORT;
    let basics = pick(basics | AttrMask::QKEY, basics | AttrMask::ACCESS_FLAGS, basics | AttrMask::ACCESS_FLAGS);
    let running_uc = AttrMask::CUR_STATE | AttrMask::ACCESS_FLAGS | migration;
    let running = pick(AttrMask::CUR_STATE | AttrMask::QKEY, running_uc, running_uc | AttrMask::MIN_RNR_TIMER);

    Some(match (from, to) {
        (_, Reset) => (none, none),
        (Init | Rtr | Rts | Sqd | Sqe | Error, Error) => (none, none),
        (Reset, Init) => (basics, none),
        (Init, Init) => (none, basics),
        (Init, Rtr) => {
            let rc = connected | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
            let optional = AttrMask::ALT_PATH | AttrMask::ACCESS_FLAGS | AttrMask::PKEY_INDEX;
            (pick(none, connected, rc), pick(AttrMask::PKEY_INDEX | AttrMask::QKEY, optional, optional))
        }
        (Rtr, Rts) => {
            let rc = AttrMask::TIMEOUT
                | AttrMask::RETRY_CNT
                | AttrMask::RNR_RETRY
                | AttrMask::SQ_PSN
                | AttrMask::MAX_QP_RD_ATOMIC;
            (pick(AttrMask::SQ_PSN, AttrMask::SQ_PSN, rc), running)
        }
        (Rts | Sqd, Rts) => (none, running),
        (Rts, Sqd) => (none, AttrMask::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => {
            let uc = AttrMask::AV | AttrMask::ACCESS_FLAGS | AttrMask::PKEY_INDEX | migration;
            let rc = uc
                | AttrMask::PORT
                | AttrMask::TIMEOUT
                | AttrMask::RETRY_CNT
                | AttrMask::RNR_RETRY
                | AttrMask::MAX_QP_RD_ATOMIC
                | AttrMask::MAX_DEST_RD_ATOMIC
                | AttrMask::MIN_RNR_TIMER;
            (none, pick(AttrMask::PKEY_INDEX | AttrMask::QKEY, uc, rc))
        }
        (Sqe, Rts) => {
            let ud = AttrMask::CUR_STATE | AttrMask::QKEY;
            (none, pick(ud, AttrMask::CUR_STATE | AttrMask::ACCESS_FLAGS, none))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INIT_RC: AttrMask =
        AttrMask::STATE.union(AttrMask::PKEY_INDEX).union(AttrMask::PORT).union(AttrMask::ACCESS_FLAGS);

    #[test]
    fn reset_to_init_needs_exactly_its_attributes() {
        assert_eq!(check_modify(QpType::Rc, QpState::Reset, QpState::Init, INIT_RC), Ok(()));
        let missing = INIT_RC - AttrMask::PORT;
        assert_eq!(check_modify(QpType::Rc, QpState::Reset, QpState::Init, missing), Err(ModifyError::Attributes));
        let excess = INIT_RC | AttrMask::QKEY;
        assert_eq!(check_modify(QpType::Rc, QpState::Reset, QpState::Init, excess), Err(ModifyError::Attributes));
    }

    #[test]
    fn states_cannot_be_skipped() {
        let all = AttrMask::all();
        assert_eq!(
            check_modify(QpType::Ud, QpState::Reset, QpState::Rts, all - AttrMask::CUR_STATE),
            Err(ModifyError::NoTransition)
        );
        assert_eq!(
            check_modify(QpType::Ud, QpState::Reset, QpState::Error, AttrMask::STATE),
            Err(ModifyError::NoTransition)
        );
    }

    #[test]
    fn every_state_can_be_reset() {
        for n in 0..7 {
            let from = QpState::from_number(n).unwrap();
            assert_eq!(check_modify(QpType::Rc, from, QpState::Reset, AttrMask::STATE), Ok(()));
        }
    }

    #[test]
    fn current_state_is_only_named_where_it_can_be_in_doubt() {
        let mask = INIT_RC | AttrMask::CUR_STATE;
        assert_eq!(check_modify(QpType::Rc, QpState::Reset, QpState::Init, mask), Err(ModifyError::Attributes));
        let mask = AttrMask::STATE | AttrMask::CUR_STATE;
        assert_eq!(check_modify(QpType::Rc, QpState::Rts, QpState::Rts, mask), Ok(()));
    }
}
