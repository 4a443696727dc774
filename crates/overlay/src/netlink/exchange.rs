//! Matching of netlink answers to the requests of a batch, by sequence number.

use super::ALIGNMENT;
use netlink_packet_core::{
    NLM_F_ACK_TLVS, NLM_F_CAPPED, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN, NetlinkBuffer, NetlinkMessage,
    NetlinkPayload, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use std::fmt;
use std::io;

/// The objects that a request brought, or the kernel's refusal. An object that cannot be read is an error in the list.
pub(crate) type Answer = Result<Vec<io::Result<RouteNetlinkMessage>>, Refusal>;

/// The kernel's refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The errno.
    pub(crate) code: i32,
    /// The kernel's own explanation (`NLMSGERR_ATTR_MSG`), where it gives one.
    pub(crate) text: Option<String>,
}

/// Answers that are not those to the requests.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AnswerError {
    /// The end of an answer is missing.
    #[error("a netlink answer is cut off")]
    Truncated,
    /// No request that waits for an answer has the sequence number.
    #[error("a netlink answer has the sequence number {0}, which no open request has")]
    Unexpected(u32),
    /// The kernel had no room for answers.
    #[error("netlink answers were lost")]
    Overrun,
}

/// A batch of requests with consecutive sequence numbers, and what has been answered of it.
pub(super) struct Exchange {
    first: u32,
    slots: Vec<Slot>,
    open: usize,
}

#[derive(Default)]
struct Slot {
    objects: Vec<io::Result<RouteNetlinkMessage>>,
    verdict: Option<Result<(), Refusal>>,
}

impl Exchange {
    /// A batch of `count` requests, of which the first has the sequence number `first`.
    pub(super) fn new(first: u32, count: usize) -> Self {
        Self { first, slots: std::iter::repeat_with(Slot::default).take(count).collect(), open: count }
    }

    /// Takes the messages of one datagram from the kernel.
    pub(super) fn take(&mut self, datagram: &[u8]) -> Result<(), AnswerError> {
        let mut rest = datagram;
        while !rest.is_empty() {
            let length = NetlinkBuffer::new_checked(rest).map_err(|_| AnswerError::Truncated)?.length() as usize;
            self.on_message(&rest[..length])?;
            rest = rest.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        }
        Ok(())
    }

    /// Whether every request has been answered.
    pub(super) fn is_complete(&self) -> bool {
        self.open == 0
    }

    /// The answers, in the order of the requests.
    pub(super) fn into_answers(self) -> Vec<Answer> {
        let answer = |slot: Slot| slot.verdict.unwrap_or(Ok(())).map(|()| slot.objects);
        self.slots.into_iter().map(answer).collect()
    }

    fn on_message(&mut self, bytes: &[u8]) -> Result<(), AnswerError> {
        let message = NetlinkBuffer::new(bytes);
        let sequence = message.sequence_number();
        let offset = sequence.wrapping_sub(self.first);
        if offset.cast_signed() < 0 {
            // An answer to an earlier batch, which was given up when an answer to it could not be read.
            return Ok(());
        }
        let slot = self.slots.get_mut(offset as usize).filter(|slot| slot.verdict.is_none());
        let slot = slot.ok_or(AnswerError::Unexpected(sequence))?;
        match message.message_type() {
            NLMSG_NOOP => {}
            NLMSG_OVERRUN => return Err(AnswerError::Overrun),
            NLMSG_ERROR | NLMSG_DONE => {
                slot.verdict = Some(verdict(&message)?);
                self.open -= 1;
            }
            _ => slot.objects.push(object(bytes)),
        }
        Ok(())
    }
}

/// What an acknowledgement, or the end of a list, says.
fn verdict(message: &NetlinkBuffer<&[u8]>) -> Result<Result<(), Refusal>, AnswerError> {
    let code = match message.payload().first_chunk() {
        Some(code) => i32::from_ne_bytes(*code),
        None if message.message_type() == NLMSG_DONE => 0,
        None => return Err(AnswerError::Truncated),
    };
    let refusal = || Refusal { code: code.wrapping_neg(), text: explanation(message) };
    Ok(if code == 0 { Ok(()) } else { Err(refusal()) })
}

/// The text among the attributes behind an errno. In an acknowledgement the refused request is between the two.
fn explanation(message: &NetlinkBuffer<&[u8]>) -> Option<String> {
    if message.flags() & NLM_F_ACK_TLVS == 0 {
        return None;
    }
    let behind = message.payload().get(size_of::<i32>()..)?;
    let request_len = match (message.message_type(), message.flags() & NLM_F_CAPPED) {
        (NLMSG_DONE, _) => 0,
        (_, 0) => u32::from_ne_bytes(*behind.first_chunk()?) as usize,
        _ => HEADER_LEN,
    };
    let attributes = behind.get(request_len.next_multiple_of(ALIGNMENT)..)?;
    let text = NlasIterator::new(attributes).map_while(Result::ok).find(|attribute| attribute.kind() == MESSAGE)?;
    Some(String::from_utf8_lossy(text.value()).trim_end_matches('\0').to_owned())
}

fn object(bytes: &[u8]) -> io::Result<RouteNetlinkMessage> {
    let unreadable = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    match NetlinkMessage::deserialize(bytes).map_err(|e| unreadable(e.to_string()))?.payload {
        NetlinkPayload::InnerMessage(object) => Ok(object),
        _ => Err(unreadable("a netlink answer is no object".to_owned())),
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = io::Error::from_raw_os_error(self.code);
        match &self.text {
            Some(text) => write!(f, "{error}: {text}"),
            None => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<AnswerError> for io::Error {
    fn from(error: AnswerError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// Length of a netlink header.
const HEADER_LEN: usize = 16;
/// `NLMSGERR_ATTR_MSG`.
const MESSAGE: u16 = 1;
