use super::*;

struct Two;

impl Devices for Two {
    fn link_layers(&self) -> Result<Vec<LinkLayer>> {
        Ok(vec![LinkLayer::InfiniBand, LinkLayer::Ethernet])
    }

    fn lid(&self, index: usize) -> u16 {
        77 + index as u16
    }
}

const ACK: u16 = 4;
const DUMP: u16 = 0x300;

fn request(command: u16, flags: u16, fill: impl Fn(Answer) -> Answer) -> Vec<u8> {
    let header = Header { len: 0, kind: NLDEV + command, flags: 0, sequence: 5, port: 0 };
    let mut bytes = fill(Answer::new(&header, 0, false)).bytes();
    bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    bytes
}

fn ask(command: u16, flags: u16, fill: impl Fn(Answer) -> Answer) -> Vec<Vec<u8>> {
    answer(&request(command, flags, fill), 9, &Two).unwrap()
}

fn read(message: &[u8]) -> Request<'_> {
    let (read, rest) = Request::split(message).unwrap();
    assert!(rest.is_empty());
    assert_eq!((read.header.sequence, read.header.port), (5, 9));
    read
}

fn errno(message: &[u8]) -> i32 {
    assert_eq!(read(message).header.kind, 2);
    -i32::from_ne_bytes(message[16..20].try_into().unwrap())
}

#[test]
fn all_devices_are_listed() {
    let answers = ask(command::GET, DUMP, |request| request);
    assert_eq!(answers.len(), 3);
    for (index, protocol) in [(0, b"ib\0".as_slice()), (1, b"roce\0")] {
        let device = read(&answers[index]);
        assert_eq!(device.number(attr::DEV_INDEX), Some(index as u32));
        assert_eq!(device.attribute(attr::DEV_NAME), Some(format!("mlx5_{index}\0").as_bytes()));
        assert_eq!(device.attribute(attr::DEV_PROTOCOL), Some(protocol));
        let guid = sysfs::node_guid(index).to_ne_bytes();
        assert_eq!(device.attribute(attr::NODE_GUID), Some(guid.as_slice()));
    }
    assert_eq!(read(&answers[2]).header.kind, 3, "the end");
}

#[test]
fn ports_are_described_as_the_card_has_them() {
    let port = |device: u32| {
        let answers = ask(command::PORT_GET, ACK, |request| {
            request.number(attr::DEV_INDEX, device).number(attr::PORT_INDEX, 1u32)
        });
        assert_eq!((answers.len(), errno(&answers[1])), (2, 0), "an acknowledgement follows");
        answers[0].clone()
    };
    let (ib, roce) = (port(0), port(1));
    let (ib, roce) = (read(&ib), read(&roce));
    assert_eq!((ib.number(attr::LID), ib.attribute(attr::NDEV_NAME)), (Some(77), None));
    let interface = sysfs::interface().0 + "\0";
    let of_roce = (roce.number(attr::LID), roce.attribute(attr::NDEV_NAME));
    assert_eq!(of_roce, (None, Some(interface.as_bytes())));
    assert_eq!(ib.attribute(attr::PORT_STATE), Some([ACTIVE].as_slice()));
}

#[test]
fn the_device_file_is_named() {
    let ask = |kind: &str, device: u32| {
        let fill = |request: Answer| request.number(attr::DEV_INDEX, device).text(attr::CHARDEV_TYPE, kind);
        ask(command::GET_CHARDEV, 0, fill).remove(0)
    };
    let found = ask("uverbs", 1);
    assert_eq!(read(&found).attribute(attr::CHARDEV_NAME), Some(b"uverbs1\0".as_slice()));
    // librdmacm names no device: -1.
    let manager = ask("rdma_cm", u32::MAX);
    assert_eq!(read(&manager).attribute(attr::CHARDEV_NAME), Some(b"rdma_cm\0".as_slice()));
    assert_eq!(read(&manager).attribute(attr::CHARDEV_ABI), Some(4u64.to_ne_bytes().as_slice()));
    assert_eq!(errno(&ask("umad", 1)), libc::EINVAL);
    assert_eq!(errno(&ask("uverbs", 2)), libc::EINVAL);
}

#[test]
fn what_is_not_there_is_an_error_and_what_is_no_message_nothing() {
    let refused = [
        ask(command::GET, 0, |request| request),
        ask(command::GET, 0, |request| request.number(attr::DEV_INDEX, 2u32)),
        ask(command::PORT_GET, 0, |request| request.number(attr::DEV_INDEX, 0u32)),
        ask(command::PORT_GET, 0, |request| {
            request.number(attr::DEV_INDEX, 0u32).number(attr::PORT_INDEX, 2u32)
        }),
        ask(200, ACK, |request| request),
    ];
    for answers in refused {
        assert_eq!((answers.len(), errno(&answers[0])), (1, libc::EINVAL));
    }
    assert!(answer(&[1, 2, 3], 9, &Two).unwrap().is_empty());
    let mut two = request(command::SYS_GET, 0, |request| request);
    two.extend(two.clone());
    assert_eq!(answer(&two, 9, &Two).unwrap().len(), 2, "one message, two requests");
}
