//! Compares the wire formats byte by byte with those that C builds with the structs and setters of `mlx5dv.h`.
//!
//! Skipped, with a message, without a compiler or header; GDSYNC_REQUIRE_RDMA_HEADERS=1 makes that a failure.

use crate::header::ask;
use gdsync_sys::prm::cqe::{Cqe64, CqeOpcode, Syndrome};
use gdsync_sys::prm::doorbell::{self, DBR_RECV, DBR_SEND};
use gdsync_sys::prm::wqe::{
    AddressFields, AddressVector, AtomicSeg, CtrlFlags, CtrlSeg, DataSeg, GrhFields, InlineSeg, Opcode,
    RemoteAddrSeg,
};
use zerocopy::IntoBytes;

/// The output of `wire.c`, with the same names in the same order.
fn ours() -> Vec<(&'static str, Vec<u8>)> {
    let flags = CtrlFlags::CQ_UPDATE | CtrlFlags::SOLICITED | CtrlFlags::FENCE;
    let control = CtrlSeg::new(Opcode::SendImm, 0x1234, 0xabcdef, 0x3f, flags, [1, 2, 3, 4]);
    let nop = CtrlSeg::new(Opcode::Nop, 0xffff, 0x12_3456, 1, CtrlFlags::FENCE_INITIATOR_SMALL, [0; 4]);
    let remote_address = RemoteAddrSeg::new(0x0102_0304_0506_0708, 0x1112_1314);
    let data = DataSeg::new(0x4142_4344, 0x5152_5354, 0x6162_6364_6566_6768);
    let atomic = AtomicSeg::new(0x2122_2324_2526_2728, 0x3132_3334_3536_3738);
    let grh =
        GrhFields { traffic_class: 7, hop_limit: 64, gid_index: 3, flow_label: 0x12345, gid: [0xee; 16] };
    let address_vector = AddressVector::new(&AddressFields {
        qkey: 0x1111_2222,
        qpn: 0x33_4455,
        static_rate: 2,
        service_level: 5,
        path_bits: 1,
        dlid: 0x6677,
        mac: [1, 2, 3, 4, 5, 6],
        grh: Some(grh),
    });
    let requester = Cqe64::requester(Opcode::RdmaRead, 0x01_0203, 0x4567, 0x1000).with_owner(true);
    let responder = Cqe64::responder(CqeOpcode::RespSendImm, 0x0a_0b0c, 0x0d_0e0f, 7, 5, [1, 2, 3, 4], true);
    let opcode = Opcode::RdmaWrite as u8;
    let error = Cqe64::error(CqeOpcode::RequesterError, opcode, 0x11, 3, Syndrome::RemoteAccess, 0x88);
    let mut queue_pair = [0; 2];
    queue_pair[DBR_RECV] = doorbell::record(0x12345);
    queue_pair[DBR_SEND] = doorbell::record(0xabcde);
    vec![
        ("control", control.as_bytes().to_vec()),
        ("nop", nop.as_bytes().to_vec()),
        ("remote_address", remote_address.as_bytes().to_vec()),
        ("data", data.as_bytes().to_vec()),
        ("terminator", DataSeg::terminator().as_bytes().to_vec()),
        ("inline_data", InlineSeg::new(28).as_bytes().to_vec()),
        ("atomic", atomic.as_bytes().to_vec()),
        ("address_vector", address_vector.as_bytes().to_vec()),
        ("requester", requester.as_bytes().to_vec()),
        ("responder", responder.as_bytes().to_vec()),
        ("error", error.with_owner(true).as_bytes().to_vec()),
        ("queue_pair", queue_pair.as_bytes().to_vec()),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn wire_formats_agree_with_the_installed_header() {
    let Some(said) = ask("wire_formats_agree_with_the_installed_header", include_str!("../wire.c")) else {
        return;
    };
    let ours: Vec<String> = ours().iter().map(|(name, bytes)| format!("{name} {}", hex(bytes))).collect();
    assert_eq!(said.lines().collect::<Vec<_>>(), ours);
}
