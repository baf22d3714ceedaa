use super::*;
use crate::prm::wqe::GrhFields;
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

fn place() -> impl Strategy<Value = UmemPlace> {
    (any::<u32>(), any::<u64>()).prop_map(|(id, offset)| UmemPlace { id, offset })
}

fn bits(width: u32) -> impl Strategy<Value = u32> {
    0u32..1 << width
}

fn service() -> impl Strategy<Value = Service> {
    prop_oneof![Just(Service::Rc), Just(Service::Uc), Just(Service::Ud)]
}

#[test]
fn a_completion_queues_command_is_as_the_device_reads_it() {
    let command = CreateCq {
        ring: UmemPlace { id: 0x1122_3344, offset: 0x5000 },
        record: UmemPlace { id: 0x5566_7788, offset: 0x40 },
        log_entries: 9,
        uar_page: 0xabcdef,
        event_queue: 5,
        ignore_overrun: true,
    }
    .encode();
    // Written by hand from `create_cq_in_bits` and `cqc_bits` of Linux' mlx5_ifc.h. The context starts at byte 16.
    let mut expected = [0; COMMAND];
    expected[..2].copy_from_slice(&[0x04, 0x00]);
    expected[16] = 2;
    expected[17] = 2;
    expected[20..24].copy_from_slice(&[0x55, 0x66, 0x77, 0x88]);
    expected[28..32].copy_from_slice(&[9, 0xab, 0xcd, 0xef]);
    expected[39] = 5;
    expected[79] = 0x40;
    expected[86] = 0x50;
    expected[88..92].copy_from_slice(&[0x11, 0x22, 0x33, 0x44]);
    expected[92] = 0x80;
    assert_eq!(command, expected);
}

#[test]
fn an_ethernet_route_has_the_mac_address_and_the_udp_port() {
    let grh =
        GrhFields { traffic_class: 0x68, hop_limit: 9, gid_index: 3, flow_label: 0xabcde, gid: [7; 16] };
    let fields = AddressFields {
        service_level: 5,
        dlid: 0xc0de,
        mac: [1, 2, 3, 4, 5, 6],
        grh: Some(grh),
        ..AddressFields::default()
    };
    let route = |ethernet| {
        let mut vector = AddressVector::new(&fields).as_bytes().to_vec();
        if ethernet {
            // libmlx5 leaves the bit 0: it is reserved there, as every path has a global route.
            vector[28] &= !0x40;
        }
        let vector = AddressVector::read_from_bytes(&vector).unwrap();
        assert_eq!(vector.fields().grh.is_none(), ethernet);
        let mut context = [0; qpc::BYTES];
        Route { vector, ethernet }.put(&mut context);
        context
    };
    let context = route(true);
    // The path is at byte 24 of the context: `ads_bits`.
    assert_eq!(context[32..36], [0, 3, 0, 9], "source GID and hops");
    assert_eq!(context[36..40], [0x06, 0x8a, 0xbc, 0xde], "traffic class and flow label");
    assert_eq!(context[40..56], [7; 16]);
    assert_eq!(context[56..60], [0, 0x68 >> 2, 0xc0, 0xde], "DSCP and UDP port");
    assert_eq!(context[60..68], [0x50, 0, 1, 2, 3, 4, 5, 6], "priority and MAC address");
    assert_eq!(context[28..32], [0; 4], "no LID");
    let context = route(false);
    assert_eq!(context[28..32], [0, 0x80, 0xc0, 0xde], "global, and the LID");
    assert_eq!(context[56..68], [0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0], "service level");
}

proptest! {
    #[test]
    fn what_a_queue_pair_is_made_of_is_what_the_device_reads(
        (service, pd, rings, record) in (service(), bits(24), place(), place()),
        (log_rq_entries, log_rq_stride, log_sq_blocks) in (bits(4), bits(3), bits(4)),
        (uar_page, send_cq, recv_cq, user_index) in (bits(24), bits(24), bits(24), bits(24)),
        (ts_format, roles) in (0u8..3, any::<[bool; 3]>()),
    ) {
        let [master, slave_send, no_send_record] = roles;
        let asked = CreateQp {
            service, pd, rings, record, log_rq_entries, log_rq_stride, log_sq_blocks, uar_page, send_cq, recv_cq, user_index,
            ts_format, master, slave_send, no_send_record,
        };
        let command = asked.encode();
        let context = &command[qp::CONTEXT..];
        prop_assert_eq!(header::OPCODE.get(&command), u64::from(opcode::CREATE_QP));
        prop_assert_eq!(qp::UMEM_ID.get32(&command), rings.id);
        prop_assert_eq!(qp::UMEM_OFFSET.get(&command), rings.offset);
        for (field, value) in [
            (qpc::ST, service as u32), (qpc::PD, pd), (qpc::LOG_RQ_SIZE, log_rq_entries),
            (qpc::LOG_RQ_STRIDE, log_rq_stride), (qpc::LOG_SQ_SIZE, log_sq_blocks), (qpc::UAR_PAGE, uar_page),
            (qpc::CQN_SND, send_cq), (qpc::CQN_RCV, recv_cq), (qpc::USER_INDEX, user_index),
            (qpc::DBR_UMEM_ID, record.id), (qpc::TS_FORMAT, ts_format.into()), (qpc::NO_SQ, 0), (qpc::RQ_TYPE, 0),
            (qpc::WQ_SIGNATURE, 0), (qpc::SEND_DBR_MODE, no_send_record.into()), (qpc::DBR_UMEM_VALID, 1),
            (qpc::CD_MASTER, master.into()), (qpc::CD_SLAVE_SEND, slave_send.into()), (qpc::CD_SLAVE_RECEIVE, 0),
        ] {
            prop_assert_eq!(field.get32(context), value);
        }
        prop_assert_eq!(qpc::DBR_ADDR.get(context), record.offset);
    }

    #[test]
    fn transitions_say_what_they_are_told_and_nothing_else(
        (qpn, remote, psn) in (bits(24), bits(24), bits(24)),
        (mtu, log_reads, timer, port) in (1u8..6, bits(3), 0u8..32, 1u8..3),
        (timeout, count, rnr) in (0u8..32, 0u8..8, 0u8..8),
        (pkey_index, qkey, rights) in any::<(u16, u32, [bool; 3])>(),
        fields in (0u8..16, any::<u16>()).prop_map(|(service_level, dlid)| AddressFields { service_level, dlid, ..Default::default() }),
    ) {
        let [read, write, atomic] = rights;
        let command = Transition::ResetToInit { port, pkey_index, qkey, rights: RemoteRights { read, write, atomic } }.encode(qpn);
        let context = &command[qp::CONTEXT..];
        prop_assert_eq!(header::NUMBER.get32(&command), qpn);
        prop_assert_eq!(ads::PKEY_INDEX.get32(context), u32::from(pkey_index));
        prop_assert_eq!(qpc::Q_KEY.get32(context), qkey);
        prop_assert_eq!([qpc::RRE, qpc::RWE, qpc::RAE].map(|field| field.is_set(context)), rights);
        prop_assert_eq!(qpc::ATOMIC_MODE.is_set(context), atomic);

        let route = Route { vector: AddressVector::new(&fields), ethernet: false };
        let peer = Peer { route, mtu, qpn: remote, psn, log_reads, min_rnr_timer: timer };
        let command = Transition::InitToReady { port, peer: Some(peer) }.encode(qpn);
        let context = &command[qp::CONTEXT..];
        prop_assert_eq!(qpc::REMOTE_QPN.get32(context), remote);
        prop_assert_eq!(qpc::NEXT_RCV_PSN.get32(context), psn);
        prop_assert_eq!(qpc::MTU.get8(context), mtu);
        prop_assert_eq!(qpc::LOG_RRA_MAX.get32(context), log_reads);
        prop_assert_eq!(qpc::MIN_RNR_NAK.get8(context), timer);
        prop_assert_eq!(ads::RLID.get32(context), u32::from(fields.dlid));
        prop_assert_eq!(ads::SL.get8(context), fields.service_level);
        prop_assert_eq!(ads::VHCA_PORT_NUM.get8(context), port);
        prop_assert!(!ads::GRH.is_set(context));

        let retries = Retries { timeout, count, rnr, log_reads };
        let command = Transition::ReadyToSend { psn, retries }.encode(qpn);
        let context = &command[qp::CONTEXT..];
        prop_assert_eq!(qpc::NEXT_SEND_PSN.get32(context), psn);
        prop_assert_eq!(ads::ACK_TIMEOUT.get8(context), timeout);
        prop_assert_eq!((qpc::RETRY_COUNT.get8(context), qpc::RNR_RETRY.get8(context)), (count, rnr));
        prop_assert_eq!(qpc::LOG_SRA_MAX.get32(context), log_reads);

        for (transition, opcode) in [(Transition::ToError, 0x507u16), (Transition::ToReset, 0x50a)] {
            let command = transition.encode(qpn);
            prop_assert_eq!(&command[..2], &opcode.to_be_bytes()[..]);
            prop_assert_eq!(header::NUMBER.get32(&command), qpn);
            prop_assert_eq!(command.len(), 16);
        }
    }
}
