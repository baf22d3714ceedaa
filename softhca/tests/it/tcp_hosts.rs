//! Cards of different hosts: processes in separate network namespaces, and at separate loopback addresses.

use crate::verbs_bed::*;
use gdsync_sys::prm::cqe::CqeOpcode;
use gdsync_sys::prm::wqe::{CtrlFlags, CtrlSeg, DataSeg, Opcode, RemoteAddrSeg};
use gdsync_sys::verbs::*;
use gdsync_test_support::folder::Folder;
use gdsync_test_support::networks::Namespaces;
use gdsync_test_support::process::{ROLE, arguments, role};
use gdsync_test_support::skipped;
use std::collections::BTreeSet;
use std::fmt::Arguments;
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use zerocopy::IntoBytes;

/// The role of `host_process`.
const HOST: &str = "host";
const LENGTH: usize = 64;

/// Runs in the processes that the tests start: a host that follows the commands on its input.
#[test]
fn host_process() {
    if role().is_none_or(|role| role != HOST) {
        return;
    }
    // The test harness prints as well: the prefix marks our lines.
    let say = |words: Arguments<'_>| println!("\nCHILD {words}");
    let bed = Bed::new();
    let (mut port, mut gid) = (ibv_port_attr::default(), ibv_gid::default());
    // SAFETY: the context is open.
    unsafe {
        assert_eq!((api().query_port)(bed.context, 1, &mut port), 0);
        assert_eq!((api().query_gid)(bed.context, 1, 3, &mut gid), 0);
    }
    assert_eq!((port.link_layer, port.lid), (IBV_LINK_LAYER_ETHERNET, 0), "addressed by GID");
    let mut cq = bed.cq(63);
    let mut qp = bed.qp(cq);
    let mut memory = vec![0u8; LENGTH].into_boxed_slice();
    let mr = bed.register(&mut memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    // SAFETY: registered.
    let (key, addr) = unsafe { ((*mr).lkey, (*mr).addr as u64) };
    let (mut rings, mut entries) = (describe_qp(qp), describe_cq(cq));
    let (mut sent, mut received, mut completed) = (0u32, 0u32, 0u32);
    let hex: String = gid.raw.iter().map(|byte| format!("{byte:02x}")).collect();
    say(format_args!("{hex} {} {addr} {key}", qpn(qp)));
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let data = DataSeg::new(LENGTH as u32, key, addr);
        let ctrl = |opcode, ds| CtrlSeg::new(opcode, sent as u16, qpn(qp), ds, CtrlFlags::CQ_UPDATE, [0; 4]);
        let mut answer = String::from("done");
        match words[..] {
            ["renew"] => {
                cq = bed.cq(63);
                qp = bed.qp(cq);
                (rings, entries) = (describe_qp(qp), describe_cq(cq));
                (sent, received, completed) = (0, 0, 0);
                answer = qpn(qp).to_string();
            }
            ["connect", gid, peer] => connect_by_gid(qp, gid, peer.parse().unwrap()),
            ["fill", byte] => {
                let byte: u8 = byte.parse().unwrap();
                // SAFETY: our own memory, which the card reads only.
                (0..LENGTH).for_each(|i| unsafe { (addr as *mut u8).add(i).write_volatile(byte) });
            }
            ["holds", byte] => {
                let byte: u8 = byte.parse().unwrap();
                // SAFETY: our own memory, to which no write is outstanding after the completion.
                assert!((0..LENGTH).all(|i| unsafe { (addr as *const u8).add(i).read_volatile() } == byte));
            }
            ["receive"] => {
                receive(&rings, received, [data, DataSeg::terminator()].as_bytes());
                received += 1;
            }
            ["send"] => {
                send(&rings, sent, ctrl(Opcode::Send, 2), data.as_bytes());
                sent += 1;
            }
            ["write", addr, key] => {
                let remote = RemoteAddrSeg::new(addr.parse().unwrap(), key.parse().unwrap());
                let segments = [remote.as_bytes(), data.as_bytes()].concat();
                send(&rings, sent, ctrl(Opcode::RdmaWrite, 3), &segments);
                sent += 1;
            }
            ["wait"] => {
                let cqe = completion(&entries, completed);
                completed += 1;
                // SAFETY: the queue's record, which lives as long as it.
                unsafe {
                    std::sync::atomic::AtomicU32::from_ptr(entries.dbrec).store(
                        gdsync_sys::prm::doorbell::ci_record(completed),
                        std::sync::atomic::Ordering::Release,
                    );
                }
                answer = match cqe.opcode() {
                    Ok(CqeOpcode::Requester) => "sent".to_owned(),
                    Ok(CqeOpcode::RespSend) => "received".to_owned(),
                    _ => format!("{:?}", cqe.syndrome().unwrap()),
                };
            }
            ["injected"] => {
                answer = softhca::fault_counts().iter().map(|count| count.injected).sum::<u64>().to_string();
            }
            _ => panic!("{line}"),
        }
        say(format_args!("{answer}"));
    }
}

fn connect_by_gid(qp: *mut ibv_qp, gid: &str, peer: u32) {
    for (state, mask) in [(IBV_QPS_INIT, INIT_MASK), (IBV_QPS_RTR, RTR_MASK), (IBV_QPS_RTS, RTS_MASK)] {
        let mut attr = attributes(state, peer, 0);
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.sgid_index = 3;
        let digit = |i: usize| u8::from_str_radix(&gid[2 * i..2 * i + 2], 16).unwrap();
        attr.ah_attr.grh.dgid.raw = std::array::from_fn(digit);
        assert_eq!(modify(qp, &attr, mask), 0, "to state {state}");
    }
}

/// A process that stands for a host.
struct Host {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    gid: String,
    qpn: String,
    /// Address and key of its memory.
    memory: String,
}

impl Host {
    /// `around` is a wrapping program and its arguments. The host has a folder of its user, and maybe a given key.
    fn start(around: &[&str], address: &str, faults: &str, folder: &Folder, key: Option<&str>) -> Self {
        let own = std::env::current_exe().unwrap();
        let mut command = match around {
            [] => Command::new(&own),
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).arg(&own);
                command
            }
        };
        let mut child = command
            .args(arguments(module_path!(), "host_process"))
            .env(ROLE, HOST)
            .env(softhca::fabric::LISTEN_VARIABLE, address)
            .env(softhca::faults::FAULTS_VARIABLE, faults)
            .env("XDG_RUNTIME_DIR", folder.path())
            .env_remove(softhca::fabric::KEY_VARIABLES.key)
            .env_remove(softhca::fabric::KEY_VARIABLES.file)
            .envs(key.map(|key| (softhca::fabric::KEY_VARIABLES.key, key)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let [gid, qpn, memory] = [(); 3].map(|()| String::new());
        let mut host = Host { child, input, lines, gid, qpn, memory };
        let words = host.hear();
        let parts: Vec<&str> = words.splitn(3, ' ').collect();
        let [gid, qpn, memory] = parts[..] else { panic!("{words}") };
        (host.gid, host.qpn, host.memory) = (gid.to_owned(), qpn.to_owned(), memory.to_owned());
        host
    }

    fn hear(&mut self) -> String {
        loop {
            let line = self.lines.next().expect("the process lives").unwrap();
            if let Some(words) = line.strip_prefix("CHILD ") {
                return words.to_owned();
            }
        }
    }

    fn ask(&mut self, words: &str) -> String {
        writeln!(self.input, "{words}").unwrap();
        self.hear()
    }

    /// The number of its card.
    fn number(&self) -> u32 {
        self.qpn.parse::<u32>().unwrap() >> 15
    }

    fn tell(&mut self, words: &str) {
        assert_eq!(self.ask(words), "done", "{words}");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connected(mut hosts: [Host; 2]) -> [Host; 2] {
    connect(&mut hosts);
    hosts
}

fn connect(hosts: &mut [Host; 2]) {
    let names = hosts.each_ref().map(|host| format!("connect {} {}", host.gid, host.qpn));
    hosts[0].tell(&names[1]);
    hosts[1].tell(&names[0]);
}

fn talk([left, right]: &mut [Host; 2]) {
    for round in 1..=20u8 {
        for (from, to) in [(0, 1), (1, 0)] {
            let pair = [&mut *left, &mut *right];
            let byte = round * 2 + from as u8;
            pair[to].tell("receive");
            pair[from].tell(&format!("fill {byte}"));
            pair[from].tell("send");
            assert_eq!(pair[from].ask("wait"), "sent");
            assert_eq!(pair[to].ask("wait"), "received");
            pair[to].tell(&format!("holds {byte}"));
            let (byte, place) = (byte + 100, pair[to].memory.clone());
            pair[from].tell(&format!("fill {byte}"));
            pair[from].tell(&format!("write {place}"));
            assert_eq!(pair[from].ask("wait"), "sent");
            pair[to].tell(&format!("holds {byte}"));
        }
    }
}

/// A write to a host that cannot be reached any more.
fn is_missed(left: &mut Host, memory: &str) {
    left.tell(&format!("write {memory}"));
    assert_eq!(left.ask("wait"), "RetryExceeded");
}

#[test]
fn processes_of_an_address_speak_with_each_other_and_with_those_of_another_and_a_dead_one_is_missed() {
    let folder = Folder::new("hosts");
    let at = |last: u8| Host::start(&[], &format!("127.83.200.{last}:28100"), "", &folder, None);
    let mut pairs = [[1, 1], [1, 2], [2, 2]].map(|pair| connected(pair.map(at)));
    let hosts = pairs.as_flattened();
    for last in [1, 2] {
        let gid = format!("00000000000000000000ffff7f53c80{last}");
        let numbers: Vec<u32> = hosts.iter().filter(|host| host.gid == gid).map(Host::number).collect();
        assert_eq!(numbers.len(), 3, "all processes of an address see it");
        assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), 3, "{numbers:?}");
    }
    pairs.iter_mut().for_each(talk);
    let [_, [mut left, right], _] = pairs;
    let memory = right.memory.clone();
    drop(right);
    is_missed(&mut left, &memory);
    // Without configuration they have a key of their user.
    let user = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&user), mode(&user.join("key"))), (0o700, 0o600));
}

#[test]
fn a_process_with_the_number_of_one_that_was_killed_is_reached_again() {
    const NUMBER: u16 = 77;
    let [here, there] = ["127.83.203.1", "127.83.203.2"];
    // It leaves one number to the other host.
    let others = (1..=510).filter(|number| *number != NUMBER);
    let _taken: Vec<_> = others.map(|number| TcpListener::bind((there, 28100 + number)).unwrap()).collect();
    let folder = Folder::new("again");
    let at = |address: &str| Host::start(&[], &format!("{address}:28100"), "", &folder, None);
    let mut hosts = connected([at(here), at(there)]);
    talk(&mut hosts);
    let [mut left, right] = hosts;
    let memory = right.memory.clone();
    drop(right);
    is_missed(&mut left, &memory);
    left.qpn = left.ask("renew");
    let mut hosts = [left, at(there)];
    assert_eq!(hosts[1].number(), u32::from(NUMBER));
    connect(&mut hosts);
    talk(&mut hosts);
}

#[test]
fn processes_with_different_keys_do_not_hear_each_other() {
    let folder = Folder::new("keys");
    let host = |address, key| Host::start(&[], address, "", &folder, Some(key));
    let (first, second) = ("127.83.202.1:28100", "127.83.202.2:28100");
    let mut hosts = connected([host(first, "the key of this job"), host(second, "the key of another one")]);
    let [left, right] = &mut hosts;
    right.tell("fill 1");
    left.tell("fill 2");
    is_missed(left, &right.memory);
    right.tell("holds 1");
    assert_eq!(folder.content(), 0, "a key that is given needs no file");
}

#[test]
fn faults_of_the_environment_are_made_good_between_hosts() {
    let faults = "seed=5; drop p=0.05; duplicate p=0.1; delay=300us p=0.05; rnr every=9";
    let (first, second) = ("127.83.201.1:28100", "127.83.201.2:28100");
    let folder = Folder::new("faults");
    let mut hosts =
        connected([first, second].map(|address| Host::start(&[], address, faults, &folder, None)));
    talk(&mut hosts);
    for host in &mut hosts {
        assert!(host.ask("injected").parse::<u64>().unwrap() > 0);
    }
}

#[test]
fn hosts_with_a_network_between_them_speak_until_it_is_cut() {
    let namespaces = match Namespaces::new() {
        Ok(namespaces) => namespaces,
        Err(why) => {
            let test = "hosts_with_a_network_between_them_speak_until_it_is_cut";
            return skipped(test, &format!("{why} (needs root)"));
        }
    };
    let [a, b] = namespaces.names();
    let [first, second] = Namespaces::ADDRESSES;
    let (folder, key) = (Folder::new("network"), Some("the key of both hosts"));
    let inside = |name, address| Host::start(&["ip", "netns", "exec", name], address, "", &folder, key);
    // Two processes of each host.
    let mut pairs = [(); 2].map(|()| connected([inside(a, first), inside(b, second)]));
    for [left, right] in &pairs {
        assert!(left.gid.ends_with("ffff0a534d01") && right.gid.ends_with("ffff0a534d02"), "{}", left.gid);
    }
    pairs.iter_mut().for_each(talk);
    namespaces.set_cable(false).unwrap();
    pairs.iter_mut().for_each(|[left, right]| is_missed(left, &right.memory));
}
