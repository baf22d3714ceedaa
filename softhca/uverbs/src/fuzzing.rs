//! Entry points of the fuzz targets (`cfg(fuzzing)`, which cargo-fuzz sets) and of property tests.

use crate::attributes::Request;
use crate::card::Cards;
use crate::cm::command::{Caller, MAX_OPTION, perform};
use crate::cm::manager::Manager;
use crate::uapi::ioctl::{Attr, DRIVER_MLX5, Header};
use crate::uapi::methods::attributes_of;
use crate::uapi::ucm::command;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Returns whether an attribute is treated as an output: a pointer, regardless of its length.
fn is_output(id: u16) -> bool {
    id % 2 == 1
}

/// Reads a command whose header and attributes are these bytes. An attribute's pointer becomes an offset into
/// the bytes, so that it leads to mapped memory or past it.
pub fn command(bytes: &[u8]) {
    // Words, as programs align commands, and then room, so that no attribute's bytes reach memory that the
    // test does not own.
    let mut memory = vec![0u64; bytes.len().div_ceil(8) + usize::from(u16::MAX) / 8 + 16];
    let base = memory.as_ptr() as u64;
    let place = memory.as_mut_bytes();
    place[..bytes.len()].copy_from_slice(bytes);
    // The bytes after the reserved word are the same in every command.
    place[16..24].copy_from_slice(&u64::from(DRIVER_MLX5).to_ne_bytes());
    // Includes a last, incomplete attribute: zeros complete it.
    let attributes = size_of::<Header>()..bytes.len().max(size_of::<Header>()) + size_of::<Attr>();
    for attr in place[attributes].chunks_exact_mut(size_of::<Attr>()) {
        let Ok(mut fixed) = Attr::read_from_bytes(attr) else { continue };
        if fixed.len > 8 || is_output(fixed.attr_id) {
            fixed.data = if fixed.data % 5 == 0 {
                fixed.data % 4096
            } else {
                base + fixed.data % (bytes.len() as u64 + 64)
            };
            attr.copy_from_slice(fixed.as_bytes());
        }
    }
    let Ok(request) = Request::read(base, |_, _| true) else { return };
    let specs =
        attributes_of(bytes.get(2).copied().unwrap_or(0).into(), bytes.get(4).copied().unwrap_or(0).into());
    let _ = request.check(specs.unwrap_or(&[]), |_, _| Ok(()));
    for id in 0..8u16 {
        let len = request.len(id);
        if let Ok(found) = request.bytes(id) {
            assert_eq!(found.len(), len);
        }
        let _ = (request.number(id), request.number32(id), request.optional_number(id));
        let _ = (request.handle(id), request.fd(id), request.structure::<[u64; 4]>(id));
        if is_output(id) && request.answer(id, &[7; 40]).is_ok() && request.has(id) {
            // Writes to the attribute itself, which `memory` contains.
            assert!(request.answer_created(id, 5).is_ok());
        }
    }
}

/// Returns the index of a command's word, header included, that is an address.
fn address(command: u32) -> Option<usize> {
    match command {
        command::CREATE_ID => Some(2),
        command::DESTROY_ID
        | command::QUERY_ROUTE
        | command::INIT_QP_ATTR
        | command::GET_EVENT
        | command::SET_OPTION
        | command::JOIN_IP_MCAST
        | command::LEAVE_MCAST
        | command::MIGRATE_ID
        | command::QUERY
        | command::JOIN_MCAST => Some(1),
        _ => None,
    }
}

/// Performs the commands in these bytes, each preceded by its length, on a separate connection manager. The
/// address in a command becomes that of memory for the answer, or one that is not mapped.
pub fn manager(bytes: &[u8]) {
    let manager = Manager::new(Arc::<Cards>::default());
    let Ok((file, _fd)) = manager.open() else { return };
    let file = Arc::new(file);
    // Every address has room for the longest answer, or value of an option.
    let mut answer = vec![0u64; (MAX_OPTION + 4096) / size_of::<u64>()];
    let mut rest = bytes;
    while let Some((length, more)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes(*length)).min(more.len());
        let (command, next) = more.split_at(length);
        let mut words = vec![0u64; length.div_ceil(size_of::<u64>()).max(1)];
        words.as_mut_bytes()[..length].copy_from_slice(command);
        if let Some(word) = address(words[0] as u32).and_then(|index| words.get_mut(index)) {
            *word = if *word % 5 == 0 { *word % 4096 } else { answer.as_mut_ptr() as u64 + *word % 4096 };
        }
        let caller = Caller { file: &file, is_nonblocking: &|| true, file_of: &|_| Ok(file.clone()) };
        let _ = perform(&caller, words.as_ptr() as u64, length);
        rest = next;
    }
}
