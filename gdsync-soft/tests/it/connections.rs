//! Programs of librdmacm, and others that connect through it: two processes, on both link layers.

use gdsync_test_support::folder::Folder;
use gdsync_test_support::networks::Namespaces;
use gdsync_test_support::programs::{ANY_CLOCK, Ended, Running, free_port, program, soft, wait_for_listener};
use gdsync_test_support::skipped;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time limit for a server to bind its port.
const LIMIT: Duration = Duration::from_secs(60);
/// Port spaces (`RDMA_PS_TCP`, `RDMA_PS_UDP`).
const TCP: u16 = 0x106;
const UDP: u16 = 0x111;
/// Loses and delays the programs' data and many of their connection messages. Answers arrive: the side with the last
/// message disconnects at once, and could not answer again. Time-outs take a twentieth of their time.
const FAST: (&str, &str) = ("SOFTHCA_CLOCK", "20");
const FAULTS: &str = "seed=5; drop p=0.2 kind=management; drop p=0.01 kind=send,write,read; delay=1ms p=0.05";
/// The same for datagrams, which programs do not send again.
const LATE: &str = "seed=5; drop p=0.2 kind=management; delay=1ms p=0.05";
/// The fixed port of `udaddy`.
const UDADDY_PORT: u16 = 7174;
/// One `udaddy` at a time.
static UDADDY: Mutex<()> = Mutex::new(());

/// Waits until a process has bound a port of the connection manager, without connecting to it.
fn wait_for_service(space: u16, port: u16, server: &mut Running) {
    let name = format!("/service/{space:x}/{port}");
    wait_for_sockets(&name, 1, |socket| socket.ends_with(&name), server);
}

/// Waits until there are so many sockets of that kind.
fn wait_for_sockets(what: &str, count: usize, is_one: impl Fn(&str) -> bool, server: &mut Running) {
    let end = Instant::now() + LIMIT;
    let is_there = || {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        sockets.lines().filter(|line| is_one(line)).count() >= count
    };
    while !is_there() {
        assert!(Instant::now() < end, "no process has the name {what}");
        if server.child.try_wait().unwrap().is_some() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The programs and settings of two processes.
struct Pair<'a> {
    test: &'a str,
    program: PathBuf,
    devices: &'a str,
    environment: &'a [(&'a str, &'a str)],
    server: Vec<String>,
    client: Vec<String>,
    /// The output of a side that has exchanged everything and whose exit is a race inside the program.
    done: &'a [&'a str],
}

impl Pair<'_> {
    fn start(&self, arguments: &[String], temporary: &Folder) -> Running {
        let mut command = soft(self.devices, &self.program, temporary.path());
        command.args(arguments).envs(self.environment.iter().copied());
        Running::start(command)
    }

    /// Starts the server, and the client once the server is `ready`. Returns how both have ended.
    fn run(&self, ready: impl FnOnce(&mut Running)) -> [Ended; 2] {
        let temporary = Folder::new(&format!("{}-{}", self.test, self.devices));
        let mut server = self.start(&self.server, &temporary);
        ready(&mut server);
        let client = self.start(&self.client, &temporary);
        [client.end(), server.end()]
    }

    fn succeeds(&self, ready: impl FnOnce(&mut Running)) {
        for ended in self.run(ready) {
            let Pair { program, devices, environment, .. } = self;
            let is_done = !self.done.is_empty() && self.done.iter().all(|said| ended.text.contains(said));
            let went_well = ended.code == Some(0) || is_done;
            assert!(went_well, "{program:?} on {devices} {environment:?}: {:?} {}", ended.code, ended.text);
        }
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Runs a program of rdmacm-utils as server and client, where `PORT` stands for a free port.
fn example(test: &str, name: &str, [server, client]: [&str; 2], devices: &str, environment: &[(&str, &str)]) {
    let Some(program) = program(test, name, "rdmacm-utils") else { return };
    let port = free_port();
    let with_port = |text: &str| words(&text.replace("PORT", &port.to_string()));
    let (server, client) = (with_port(server), with_port(client));
    // rping closes its event channel while its event thread runs, which may ask for the next event only after
    // that: EBADF, for which the program exits. A thread that waits already stays, as in the kernel:
    // `a_thread_that_waits_is_not_disturbed_by_a_close` of the preload library.
    let done: &[&str] =
        if name == "rping" { &["server DISCONNECT EVENT", "Bad file descriptor"] } else { &[] };
    Pair { test, program, devices, environment, server, client, done }
        .succeeds(|server| wait_for_service(TCP, port, server));
}

/// Validates the data.
const RPING: [&str; 2] = ["-s -V -C 100 -p PORT", "-c -V -a 127.0.0.1 -C 100 -p PORT"];

#[test]
fn rping() {
    for devices in ["ib", "roce"] {
        example("rping", "rping", RPING, devices, &[]);
    }
    example("rping_any", "rping", ["-s -V -C 10 -p PORT", "-c -V -a 0.0.0.0 -C 10 -p PORT"], "ib,roce", &[]);
}

#[test]
fn rping_between_the_processes_of_several_hosts() {
    let test = "rping_between_the_processes_of_several_hosts";
    let Some(program) = program(test, "rping", "rdmacm-utils") else { return };
    let temporary = Folder::new(test);
    let at = |host: u8, arguments: &str, port: u16| {
        let mut command = soft("roce", &program, temporary.path());
        command.args(words(arguments)).args(["-V", "-C", "100", "-p", &port.to_string()]);
        command.env("SOFTHCA_LISTEN", format!("127.83.220.{host}:32000"));
        Running::start(command)
    };
    // Two servers at one address, then one at another with the port number of the first.
    let [first, second] = [free_port(), free_port()];
    let mut servers =
        [(1, first), (1, second), (2, first)].map(|(host, port)| (host, port, at(host, "-s", port)));
    for (host, port, server) in &mut servers {
        let name = format!("/127.83.220.{host}/service/{TCP:x}/{port}");
        wait_for_sockets(&name, 1, |socket| socket.ends_with(&name), server);
    }
    // An address has one holder of a port number.
    let refused = at(1, "-s", first).end();
    assert!(
        refused.code != Some(0) && refused.text.contains("Cannot assign requested address"),
        "{}",
        refused.text
    );
    for (client, (host, port, server)) in [1, 2, 1].into_iter().zip(servers) {
        let client = at(client, &format!("-c -a 127.83.220.{host}"), port).end();
        assert!(client.code == Some(0) || client.text.contains("client DISCONNECT EVENT"), "{}", client.text);
        let ended = server.end();
        assert!(ended.text.contains("server DISCONNECT EVENT"), "{}", ended.text);
    }
    // Where no process listens, the request is refused, even by one that has the port number elsewhere.
    let mut server = at(2, "-s", first);
    wait_for_service(TCP, first, &mut server);
    let client = at(2, "-c -a 127.83.220.1", first).end();
    assert!(client.code != Some(0) && client.text.contains("REJECTED"), "{}", client.text);
}

#[test]
fn connections_have_the_partition_key_of_the_first_index_or_of_the_address() {
    for pkeys in ["0x8001", "0x8001,0xffff,0x0002"] {
        example("rping_pkeys", "rping", RPING, "ib", &[("SOFTHCA_PKEYS", pkeys)]);
    }
}

#[test]
fn a_server_of_another_partition_is_unreachable() {
    let test = "a_server_of_another_partition_is_unreachable";
    let Some(program) = program(test, "rping", "rdmacm-utils") else { return };
    let temporary = Folder::new(test);
    let port = free_port();
    let start = |arguments: &str, pkeys: &str| {
        let mut command = soft("ib", &program, temporary.path());
        command.args(words(&arguments.replace("PORT", &port.to_string())));
        Running::start({
            command.envs([FAST, ("SOFTHCA_PKEYS", pkeys)]);
            command
        })
    };
    let mut server = start(RPING[0], "0x8001");
    wait_for_service(TCP, port, &mut server);
    let client = start(RPING[1], "0x8002,0x0001").end();
    assert!(client.code != Some(0) && client.text.contains("RDMA_CM_EVENT_UNREACHABLE"), "{}", client.text);
    server.kill();
    server.end();
    // With the partition's key at the first index, a limited member reaches a full one.
    let mut server = start(RPING[0], "0x8001");
    wait_for_service(TCP, port, &mut server);
    let client = start(RPING[1], "0x0001,0x8002").end();
    assert!(client.text.contains("client DISCONNECT EVENT") || client.code == Some(0), "{}", client.text);
    server.end();
}

#[test]
fn many_connections_at_once() {
    for devices in ["ib", "roce"] {
        let arguments = ["-c 20 -p PORT", "-c 20 -s 127.0.0.1 -p PORT"];
        example("ucmatose", "ucmatose", arguments, devices, &[]);
    }
}

#[test]
fn a_synchronous_client_and_server() {
    let Some(client) = program("rdma_client", "rdma_client", "rdmacm-utils") else { return };
    let Some(server) = program("rdma_client", "rdma_server", "rdmacm-utils") else { return };
    for devices in ["ib", "roce"] {
        let (port, temporary) = (free_port(), Folder::new(&format!("rdma_client-{devices}")));
        let start = |program: &PathBuf, arguments: &[&str]| {
            let mut command = soft(devices, program, temporary.path());
            command.args(["-p", &port.to_string()]).args(arguments);
            Running::start(command)
        };
        let mut server = start(&server, &[]);
        wait_for_service(TCP, port, &mut server);
        let client = start(&client, &["-s", "127.0.0.1"]);
        for ended in [client.end(), server.end()] {
            assert!(ended.succeeded().contains("end 0"), "{}", ended.text);
        }
    }
}

#[test]
fn datagrams() {
    let Some(program) = program("udaddy", "udaddy", "rdmacm-utils") else { return };
    let _alone = UDADDY.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let faults = [("SOFTHCA_FAULTS", LATE), FAST];
    for (devices, environment) in [("ib", &[][..]), ("roce", &[]), ("roce", &faults)] {
        let (server, client) = (Vec::new(), words("-s 127.0.0.1"));
        Pair { test: "udaddy", program: program.clone(), devices, environment, server, client, done: &[] }
            .succeeds(|server| wait_for_service(UDP, UDADDY_PORT, server));
    }
}

#[test]
fn multicast_reaches_every_process_that_has_joined() {
    let test = "multicast";
    let Some(program) = program(test, "mckey", "rdmacm-utils") else { return };
    let [.., b, c, d] = std::process::id().to_be_bytes();
    let group = format!("239.{b}.{c}.{d}");
    for devices in ["ib", "roce"] {
        // As the kernel derives it from the address: with the first four bits cleared on InfiniBand.
        let first = if devices == "ib" { 0x0f } else { 239 };
        // A member's number follows.
        let name = format!("{first:02x}{b:02x}{c:02x}{d:02x}/");
        let is_member = |socket: &str| socket.split_once(&name).is_some_and(|(_, rest)| !rest.contains('/'));
        let (server, client) = (words(&format!("-m {group} -C 20")), words(&format!("-m {group} -C 20 -s")));
        let pair =
            Pair { test, program: program.clone(), devices, environment: &[], server, client, done: &[] };
        let temporary = Folder::new(&format!("{test}-{devices}"));
        let mut receivers = [(); 2].map(|()| pair.start(&pair.server, &temporary));
        receivers.iter_mut().for_each(|receiver| wait_for_sockets(&name, 2, is_member, receiver));
        let sender = pair.start(&pair.client, &temporary);
        for ended in receivers.into_iter().chain([sender]).map(Running::end) {
            assert!(ended.succeeded().contains("data transfers complete"), "{devices}: {}", ended.text);
        }
    }
}

#[test]
fn ethernet_has_groups_of_ipv4_addresses_only() {
    let Some(program) = program("multicast_ipv6", "mckey", "rdmacm-utils") else { return };
    let temporary = Folder::new("multicast_ipv6");
    let mut command = soft("roce", &program, temporary.path());
    command.args(["-m", "ff0e::7:9", "-C", "1"]);
    let ended = Running::start(command).end();
    // `ENOTSUPP`, which the kernel gives programs by mistake.
    assert!(ended.text.contains("failure joining: Unknown error 524"), "{ended:?}");
}

#[test]
fn connections_are_made_under_faults() {
    let environment = [("SOFTHCA_FAULTS", FAULTS), FAST];
    let arguments = ["-c 5 -p PORT", "-c 5 -s 127.0.0.1 -p PORT"];
    for devices in ["ib", "roce"] {
        example("rping_faults", "rping", RPING, devices, &environment);
        example("ucmatose_faults", "ucmatose", arguments, devices, &environment);
    }
}

/// Runs perftest, whose parameters and data connect through librdmacm.
fn perftest(name: &str, devices: &str, arguments: &str, environment: &[(&str, &str)]) {
    let test = format!("cm_{name}");
    let Some(program) = program(&test, name, "perftest") else { return };
    let port = free_port();
    let server = words(&format!("-R {ANY_CLOCK} -p {port} {arguments}"));
    let client = [server.clone(), words("127.0.0.1")].concat();
    Pair { test: &test, program, devices, environment, server, client, done: &[] }
        .succeeds(|server| wait_for_service(TCP, port, server));
}

#[test]
fn perftest_connects_by_the_connection_manager() {
    for devices in ["ib", "roce"] {
        perftest("ib_send_bw", devices, "-n 500", &[]);
        perftest("ib_write_bw", devices, "-n 500 -q 4", &[]);
        perftest("ib_read_lat", devices, "-n 200", &[]);
    }
    perftest("ib_atomic_bw", "ib", "-n 200", &[]);
    perftest("ib_send_lat", "roce", "-c UD -n 200", &[]);
}

#[test]
fn perftest_connects_and_gets_over_faults() {
    let faults = [("SOFTHCA_FAULTS", FAULTS), FAST];
    perftest("ib_send_bw", "roce", "-n 500", &faults);
    perftest("ib_write_bw", "ib", "-n 500 -q 4", &faults);
    perftest("ib_read_lat", "ib", "-n 100", &faults);
    perftest("ib_atomic_bw", "roce", "-n 200", &faults);
    perftest("ib_send_lat", "ib", "-c UD -n 200", &[("SOFTHCA_FAULTS", LATE), FAST]);
}

/// Interval in microseconds at which `ofi_rxm` polls for connection events, a hundred times the default. It polls for completions, and then for events. If the peer's last message and its disconnection
/// both arrive in between, on a busy machine, it destroys the queue pair with that completion unread, and the
/// program waits for it forever or takes its own last message for flushed. A card could not prevent that
/// either.
const RARE_EVENTS: (&str, &str) = ("FI_OFI_RXM_CM_PROGRESS_INTERVAL", "1000000");

/// Runs libfabric's ping-pong, which checks the data.
fn fabric(devices: &str, endpoint: &str, environment: &[(&str, &str)]) {
    let Some(program) = program("fi_pingpong", "fi_pingpong", "libfabric-bin") else { return };
    let port = free_port();
    let server = words(&format!("{endpoint} -c -I 20 -B {port}"));
    let client = words(&format!("{endpoint} -c -I 20 -P {port} 127.0.0.1"));
    let environment = &[environment, &[RARE_EVENTS]].concat();
    Pair { test: "fi_pingpong", program, devices, environment, server, client, done: &[] }
        .succeeds(|server| wait_for_listener(port, server, true));
}

#[test]
fn libfabric_connects_messages_and_datagrams() {
    for devices in ["ib", "roce"] {
        fabric(devices, "-p verbs -e msg", &[]);
        fabric(devices, "-p verbs;ofi_rxm -e rdm", &[]);
        fabric(devices, "-p verbs -e dgram", &[]);
    }
}

#[test]
fn libfabric_connects_two_hosts_at_the_addresses_of_their_cards() {
    let test = "libfabric_connects_two_hosts_at_the_addresses_of_their_cards";
    let Some(program) = program(test, "fi_pingpong", "libfabric-bin") else { return };
    let namespaces = match Namespaces::new() {
        Ok(namespaces) => namespaces,
        Err(why) => return skipped(test, &format!("{why} (needs root)")),
    };
    let temporary = Folder::new(test);
    let at = |host: usize, arguments: &str| {
        let inside = soft("roce", &program, temporary.path());
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &namespaces.names()[host]]).arg(inside.get_program());
        command.args(inside.get_args()).args(words(arguments)).process_group(0);
        command.env("TMPDIR", temporary.path());
        command.envs([RARE_EVENTS, ("SOFTHCA_KEY", "the key of both hosts")]);
        command.env("SOFTHCA_LISTEN", Namespaces::ADDRESSES.join(","));
        Running::start(command)
    };
    for endpoint in ["-p verbs -e msg", "-p verbs;ofi_rxm -e rdm", "-p verbs -e dgram"] {
        let port = free_port();
        let mut server = at(0, &format!("{endpoint} -c -I 20 -B {port}"));
        wait_for_listener(port, &mut server, true);
        let client = at(1, &format!("{endpoint} -c -I 20 -P {port} {}", Namespaces::ADDRESSES[0]));
        client.end().succeeded();
        server.end().succeeded();
    }
}

#[test]
fn libfabric_gets_over_faults() {
    let faults = [("SOFTHCA_FAULTS", FAULTS), FAST];
    fabric("ib", "-p verbs -e msg", &faults);
    fabric("roce", "-p verbs;ofi_rxm -e rdm", &faults);
    fabric("ib", "-p verbs -e dgram", &[("SOFTHCA_FAULTS", LATE), FAST]);
}

#[test]
fn a_port_without_a_listener_and_a_host_without_a_card() {
    let Some(program) = program("rping_alone", "rping", "rdmacm-utils") else { return };
    let temporary = Folder::new("rping_alone");
    for (address, expected) in [
        ("127.0.0.1", "RDMA_CM_EVENT_REJECTED, error 8"),
        ("198.51.100.7", "RDMA_CM_EVENT_ADDR_ERROR, error -101"),
    ] {
        let mut command = soft("ib", &program, temporary.path());
        command.args(["-c", "-C", "1", "-a", address, "-p", &free_port().to_string()]);
        let ended = Running::start(command).end();
        assert!(ended.code != Some(0) && ended.text.contains(expected), "{ended:?}");
    }
}

#[test]
fn a_server_that_dies_disconnects_its_client() {
    let test = "rping_server_dies";
    let Some(program) = program(test, "rping", "rdmacm-utils") else { return };
    let (port, temporary) = (free_port(), Folder::new(test));
    let server = words(&format!("-s -p {port}"));
    let client = words(&format!("-c -v -a 127.0.0.1 -p {port}"));
    let pair = Pair { test, program, devices: "roce", environment: &[], server, client, done: &[] };
    let mut server = pair.start(&pair.server, &temporary);
    wait_for_service(TCP, port, &mut server);
    let client = pair.start(&pair.client, &temporary);
    std::thread::sleep(Duration::from_millis(500));
    server.kill();
    drop(server);
    // It ends without reporting success. On a slow machine it has not connected yet.
    let ended = client.end();
    assert!(ended.text.contains("DISCONNECT") || ended.code != Some(0), "{ended:?}");
}
