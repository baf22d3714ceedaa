//! The GID table as `ibv_query_gid_table` returns it.

use crate::verbs_bed::*;
use gdsync_sys::verbs::*;

#[test]
fn the_table_has_the_ports_gids_with_their_kinds() {
    let bed = Bed::new();
    let query = api().query_gid_table.unwrap();
    let size = size_of::<ibv_gid_entry>();
    let mut entries = [ibv_gid_entry::default(); 4];
    // SAFETY: the context is open; there is room for four entries.
    assert_eq!(unsafe { query(bed.context, entries.as_mut_ptr(), 4, 0, size) }, 1);
    let mut gid = ibv_gid::default();
    // SAFETY: the context is open.
    assert_eq!(unsafe { (api().query_gid)(bed.context, 1, 0, &mut gid) }, 0);
    let expected = ibv_gid_entry { gid, port_num: 1, gid_type: IBV_GID_TYPE_IB, ..Default::default() };
    assert_eq!(entries[..2], [expected, ibv_gid_entry::default()]);
    for (room, flags, size) in [(0, 0, size), (4, 1, size), (4, 0, size - 4)] {
        // SAFETY: as above.
        let rc = unsafe { query(bed.context, entries.as_mut_ptr(), room, flags, size) };
        assert_eq!(rc, -(libc::EINVAL as isize), "{room} {flags} {size}");
    }
    // SAFETY: null is refused.
    assert_eq!(unsafe { query(bed.context, NULL.cast(), 4, 0, size) }, -(libc::EINVAL as isize));
    bed.close();
}
