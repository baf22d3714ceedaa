//! Entry point of the fuzz targets. Only built with `cfg(fuzzing)`, which cargo-fuzz sets.

use crate::attributes::Request;
use crate::uapi::ioctl::{Attr, Header};
use zerocopy::{FromBytes, IntoBytes};

/// Whether an attribute is treated as an output: a pointer, whatever its length.
fn is_output(id: u16) -> bool {
    id % 2 == 1
}

/// Reads a command whose header and attributes are these bytes. A pointer of an attribute becomes
/// an offset into the bytes, so that it leads to mapped memory or past it.
pub fn command(bytes: &[u8]) {
    // Words, as programs align commands; followed by room, so that no attribute's bytes reach
    // memory that the test does not own.
    let mut memory = vec![0u64; bytes.len().div_ceil(8) + usize::from(u16::MAX) / 8 + 16];
    let base = memory.as_ptr() as u64;
    let place = memory.as_mut_bytes();
    place[..bytes.len()].copy_from_slice(bytes);
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
    let Ok(request) = Request::read(base) else { return };
    let _ = request.knows(&[0, 1, 2]);
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
