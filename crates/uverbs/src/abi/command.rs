//! Framing of a `write()` to the device: the checks of the kernel's `ib_uverbs_write` before a command runs.

use super::Method;
use zerocopy::{FromBytes, IntoBytes};

/// `IB_USER_VERBS_CMD_FLAG_EXTENDED`: the command is of the extended family.
pub const EXTENDED: u32 = 0x8000_0000;
/// `IB_USER_VERBS_CMD_COMMAND_MASK`: the command's number.
pub const NUMBER_MASK: u32 = 0xff;

uapi! {
    struct CommandHeader("ib_uverbs_cmd_hdr"): 8 {
        [0] command: u32,
        [4] in_words: u16,
        [6] out_words: u16,
    }

    struct ExtendedCommandHeader("ib_uverbs_ex_cmd_hdr"): 16 {
        [0] response: u64,
        [8] provider_in_words: u16,
        [10] provider_out_words: u16,
        [12] cmd_hdr_reserved: u32,
    }
}

/// Framing error of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseError {
    /// Lengths that contradict each other, reserved bits: EINVAL.
    #[error("malformed command")]
    Malformed,
    /// The request, or the room for the response, is too short: ENOSPC.
    #[error("command too short")]
    TooShort,
    /// No such command, or it asks for more than this device knows: EOPNOTSUPP.
    #[error("unsupported command")]
    Unsupported,
}

/// A command, framed but not yet decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command<'a> {
    /// Number of the command; see [`super::number`].
    pub number: u8,
    /// Whether it is of the extended family.
    pub extended: bool,
    /// The request of the core.
    pub core: &'a [u8],
    /// The request of the provider.
    pub driver: &'a [u8],
    /// Room for the response of the core.
    pub out_len: usize,
    /// Room for the response of the provider.
    pub driver_out_len: usize,
}

impl<'a> Command<'a> {
    /// Frames the bytes of one `write()`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (header, rest) = CommandHeader::read_from_prefix(bytes).map_err(|_| ParseError::Malformed)?;
        if header.command & !(EXTENDED | NUMBER_MASK) != 0 {
            return Err(ParseError::Malformed);
        }
        let number = (header.command & NUMBER_MASK) as u8;
        let extended = header.command & EXTENDED != 0;
        let method = Method::find(number, extended).ok_or(ParseError::Unsupported)?;
        if extended {
            Self::parse_extended(number, header, rest, method)
        } else {
            Self::parse_plain(number, header, rest, method)
        }
    }

    fn parse_plain(number: u8, header: CommandHeader, rest: &'a [u8], method: Method) -> Result<Self, ParseError> {
        if usize::from(header.in_words) * 4 != rest.len() + size_of::<CommandHeader>() {
            return Err(ParseError::Malformed);
        }
        let room = usize::from(header.out_words) * 4;
        if rest.len() < method.request || room < method.response {
            return Err(ParseError::TooShort);
        }
        let (core_len, out_len) =
            if method.has_driver { (method.request, method.response) } else { (rest.len(), room) };
        let (core, driver) = rest.split_at(core_len);
        let out_len = if method.response == 0 { 0 } else { out_len };
        let driver_out_len = if method.has_driver && method.response != 0 { room - out_len } else { 0 };
        Ok(Self { number, extended: false, core, driver, out_len, driver_out_len })
    }

    fn parse_extended(number: u8, header: CommandHeader, rest: &'a [u8], method: Method) -> Result<Self, ParseError> {
        let (extended, rest) = ExtendedCommandHeader::read_from_prefix(rest).map_err(|_| ParseError::Malformed)?;
        let core_len = usize::from(header.in_words) * 8;
        if core_len + usize::from(extended.provider_in_words) * 8 != rest.len() {
            return Err(ParseError::Malformed);
        }
        if core_len < method.request {
            return Err(ParseError::TooShort);
        }
        let out_len = usize::from(header.out_words) * 8;
        let driver_out_len = usize::from(extended.provider_out_words) * 8;
        let has_room = out_len != 0 || driver_out_len != 0;
        if extended.cmd_hdr_reserved != 0 || has_room != (extended.response != 0) {
            return Err(ParseError::Malformed);
        }
        if has_room && out_len < method.response {
            return Err(ParseError::TooShort);
        }
        let (core, driver) = rest.split_at(core_len);
        Ok(Self { number, extended: true, core, driver, out_len, driver_out_len })
    }

    /// Reads the core's request. Fields that an older program does not have are zero; fields that a newer one has and
    /// this struct lacks must be zero, else [`ParseError::Unsupported`].
    pub fn request<T: FromBytes + IntoBytes>(&self) -> Result<T, ParseError> {
        let known = self.core.len().min(size_of::<T>());
        if self.core[known..].iter().any(|&b| b != 0) {
            return Err(ParseError::Unsupported);
        }
        let mut request = T::new_zeroed();
        request.as_mut_bytes()[..known].copy_from_slice(&self.core[..known]);
        Ok(request)
    }

    /// Lays out the response as the program's buffer has it: the core's part cut or filled with zeros to the room that
    /// there is, then the provider's.
    pub fn response(&self, core: &[u8], driver: &[u8]) -> Vec<u8> {
        let mut bytes = core[..core.len().min(self.out_len)].to_vec();
        bytes.resize(self.out_len, 0);
        bytes.extend_from_slice(&driver[..driver.len().min(self.driver_out_len)]);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CreateCq, ExCreateCq, ExQueryDevice, ModifyQp, number};
    use super::*;
    use proptest::prelude::*;

    fn plain(number: u8, body: &[u8], room: usize) -> Vec<u8> {
        let header = CommandHeader {
            command: number.into(),
            in_words: (body.len() / 4 + 2) as u16,
            out_words: (room / 4) as u16,
        };
        [header.as_bytes(), body].concat()
    }

    fn extended(number: u8, core: &[u8], driver: &[u8], room: usize, driver_room: usize) -> Vec<u8> {
        let header = CommandHeader {
            command: u32::from(number) | EXTENDED,
            in_words: (core.len() / 8) as u16,
            out_words: (room / 8) as u16,
        };
        let more = ExtendedCommandHeader {
            response: u64::from(room + driver_room != 0),
            provider_in_words: (driver.len() / 8) as u16,
            provider_out_words: (driver_room / 8) as u16,
            cmd_hdr_reserved: 0,
        };
        [header.as_bytes(), more.as_bytes(), core, driver].concat()
    }

    #[test]
    fn the_provider_gets_what_the_core_leaves() {
        let request = CreateCq { cqe: 7, ..Default::default() };
        let bytes = plain(number::CREATE_CQ, &[request.as_bytes(), &[9; 8]].concat(), 24);
        let command = Command::parse(&bytes).unwrap();
        assert_eq!(command.request::<CreateCq>(), Ok(request));
        assert_eq!((command.driver, command.out_len, command.driver_out_len), (&[9; 8][..], 8, 16));
        assert_eq!(command.response(&[1; 8], &[2; 20]), [&[1; 8][..], &[2; 16]].concat());
    }

    #[test]
    fn lengths_must_agree() {
        let mut bytes = plain(number::CREATE_CQ, &[0; 32], 24);
        bytes.push(0);
        assert_eq!(Command::parse(&bytes), Err(ParseError::Malformed));
        assert_eq!(Command::parse(&plain(number::CREATE_CQ, &[0; 28], 24)), Err(ParseError::TooShort));
        assert_eq!(Command::parse(&plain(number::CREATE_CQ, &[0; 32], 4)), Err(ParseError::TooShort));
        assert_eq!(Command::parse(&plain(200, &[0; 32], 4)), Err(ParseError::Unsupported));
        assert_eq!(Command::parse(&[0; 7]), Err(ParseError::Malformed));
        assert_eq!(Command::parse(&extended(number::CREATE_CQ, &[0; 24], &[], 16, 0)), Err(ParseError::TooShort));
        assert_eq!(Command::parse(&extended(number::CREATE_CQ, &[0; 32], &[], 8, 0)), Err(ParseError::TooShort));
    }

    #[test]
    fn newer_fields_must_be_zero() {
        let mut core = [0; 48];
        let bytes = extended(number::CREATE_CQ, &core, &[], 16, 16);
        assert!(Command::parse(&bytes).unwrap().request::<ExCreateCq>().is_ok());
        core[40] = 1;
        let bytes = extended(number::CREATE_CQ, &core, &[], 16, 16);
        assert_eq!(Command::parse(&bytes).unwrap().request::<ExCreateCq>(), Err(ParseError::Unsupported));
        let bytes = plain(number::MODIFY_QP, &[[0; 112].as_slice(), &[1, 0, 0, 0]].concat(), 0);
        assert_eq!(Command::parse(&bytes).unwrap().request::<ModifyQp>(), Err(ParseError::Unsupported));
    }

    #[test]
    fn longer_room_is_zeroed_and_shorter_cuts() {
        let bytes = extended(number::QUERY_DEVICE, ExQueryDevice::default().as_bytes(), &[], 184, 0);
        let command = Command::parse(&bytes).unwrap();
        assert_eq!(command.response(&[1; 304], &[]), [1; 184]);
        let bytes = extended(number::QUERY_DEVICE, ExQueryDevice::default().as_bytes(), &[], 320, 0);
        let response = Command::parse(&bytes).unwrap().response(&[1; 304], &[]);
        assert_eq!((response.len(), &response[300..310]), (320, &[1, 1, 1, 1, 0, 0, 0, 0, 0, 0][..]));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(command) = Command::parse(&bytes) {
                let _ = command.request::<ModifyQp>();
                prop_assert!(command.core.len() + command.driver.len() < bytes.len());
            }
        }

        #[test]
        fn framed_commands_keep_their_parts(
            is_extended: bool, number in 0u8..56, core in 0usize..40, driver in 0usize..8, room in 0usize..64, more in 0usize..8,
        ) {
            let (core, driver) = (vec![1; core * 8], vec![2; driver * 8]);
            let bytes = if is_extended {
                extended(number, &core, &driver, room * 8, more * 8)
            } else {
                plain(number, &[&core[..], &driver].concat(), (room + more) * 8)
            };
            if let Ok(command) = Command::parse(&bytes) {
                prop_assert_eq!(command.number, number);
                prop_assert_eq!([command.core, command.driver].concat(), [core, driver].concat());
                prop_assert!(command.out_len + command.driver_out_len <= (room + more) * 8);
                let response = command.response(&[3; 400], &[4; 80]);
                prop_assert!(response.len() <= command.out_len + command.driver_out_len);
            }
        }
    }
}
