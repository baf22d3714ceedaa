//! Commands built by hand.

use super::*;

#[repr(C)]
struct Command<const N: usize> {
    header: Header,
    attrs: [Attr; N],
}

fn command<const N: usize>(attrs: [(u16, u16, u64); N]) -> Command<N> {
    let attrs =
        attrs.map(|(attr_id, len, data)| Attr { attr_id, len, flags: ATTR_MANDATORY, attr_data: 0, data });
    let header = Header {
        length: (24 + 16 * N) as u16,
        object_id: 3,
        method_id: 1,
        num_attrs: N as u16,
        reserved1: 0,
        driver_id: 1,
        reserved2: 0,
    };
    Command { header, attrs }
}

fn read<const N: usize>(command: &mut Command<N>) -> Result<Request> {
    Request::read(std::ptr::from_mut(command) as u64, |_, _| true)
}

#[test]
fn short_values_are_in_the_attribute_and_long_ones_are_pointed_at() {
    let long = [7u8; 12];
    let mut made = command([(0, 4, 0x1234_5678), (1, 12, long.as_ptr() as u64), (2, 8, u64::MAX)]);
    let request = read(&mut made).unwrap();
    assert_eq!((request.object, request.method), (3, 1));
    assert_eq!(request.number(0), Ok(0x1234_5678));
    assert_eq!(request.bytes(1).unwrap(), long);
    assert_eq!(request.fd(2), Ok(-1));
    assert_eq!(request.handle(2), Err(Errno::INVALID));
    assert_eq!(request.number32(2), Err(Errno::INVALID));
    assert_eq!(request.number(1), Err(Errno::INVALID), "12 bytes are no number");
    assert_eq!((request.number(9), request.optional_number(9)), (Err(Errno::INVALID), Ok(None)));
}

#[test]
fn structures_grow_and_shrink_with_the_program() {
    let value = [1u32, 2, 3];
    let mut made = command([(0, 12, value.as_ptr() as u64), (1, 4, 9)]);
    let request = read(&mut made).unwrap();
    assert_eq!(request.structure::<[u32; 4]>(0), Ok([1, 2, 3, 0]));
    assert_eq!(
        request.structure::<[u32; 2]>(0),
        Err(Errno::NOT_SUPPORTED),
        "a field that is not known is set"
    );
    assert_eq!(request.structure::<[u32; 2]>(1), Ok([9, 0]));
    assert_eq!(request.structure::<[u32; 2]>(5), Ok([0, 0]), "optional");
}

#[test]
fn answers_are_cut_or_padded_and_marked() {
    let mut small = [0xffu8; 4];
    let mut large = [0xffu8; 12];
    let mut made =
        command([(0, 4, small.as_mut_ptr() as u64), (1, 12, large.as_mut_ptr() as u64), (2, 0, 0)]);
    let request = read(&mut made).unwrap();
    request.answer_with(0, &0x0102_0304_0506_0708u64).unwrap();
    request.answer_with(1, &0x0102_0304_0506_0708u64).unwrap();
    request.answer_created(2, 77).unwrap();
    request.answer_with(3, &1u32).unwrap();
    assert_eq!(small, [8, 7, 6, 5]);
    assert_eq!(large, [8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0]);
    assert_eq!(made.attrs[2].data, 77);
    assert!(made.attrs.iter().all(|attr| attr.flags == ATTR_MANDATORY | ATTR_VALID_OUTPUT));
}

#[test]
fn what_is_not_mapped_is_a_fault_and_nonsense_is_invalid() {
    assert_eq!(Request::read(8, |_, _| true).unwrap_err(), Errno::FAULT);
    assert_eq!(Request::read(u64::MAX - 3, |_, _| true).unwrap_err(), Errno::FAULT);
    let mut made = command([(0, 64, 8), (1, 64, 16)]);
    let request = read(&mut made).unwrap();
    assert_eq!(request.bytes(0), Err(Errno::FAULT));
    assert_eq!(request.answer_with(1, &1u32), Err(Errno::FAULT));
    let mut broken = command([(0, 4, 0)]);
    broken.header.num_attrs = 2;
    assert_eq!(read(&mut broken).unwrap_err(), Errno::INVALID, "the length says one attribute");
    broken.header.num_attrs = u16::MAX;
    assert_eq!(read(&mut broken).unwrap_err(), Errno::INVALID);
    let mut other = command([(0, 4, 0)]);
    other.header.driver_id = 2;
    assert_eq!(read(&mut other).unwrap_err(), Errno::INVALID, "mlx4");
    other.header.reserved2 = 1;
    assert_eq!(read(&mut other).unwrap_err(), Errno::UNKNOWN, "a header of the future");
}
