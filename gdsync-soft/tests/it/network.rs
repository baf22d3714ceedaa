//! Settings of the card's environment: a network between hosts, and plans of faults. `-c` checks the data.

use crate::faults::LOSSY_ANSWERED;
use gdsync_test_support::folder::Folder;
use gdsync_test_support::programs::{Running, free_port, leftover, run, soft, tool, wait_for_listener};
use std::path::Path;

#[test]
fn programs_speak_over_tcp_with_and_without_faults() {
    let faults = format!("SOFTHCA_FAULTS={LOSSY_ANSWERED}");
    let listen = "SOFTHCA_LISTEN=127.83.210.1:32000";
    // The key remains the user's.
    for environment in [&[listen][..], &[listen, &faults]] {
        leftover("tcp_rc", "ibv_rc_pingpong", environment, "roce", &["-g", "3", "-n", "300", "-c"]);
    }
    let ud = ["-g", "1", "-n", "300", "-s", "1024", "-c"];
    leftover("tcp_ud", "ibv_ud_pingpong", &[listen], "roce", &ud);
}

/// Returns the lines of a program's output that name a GID of its port, without the queue pair's number.
fn gids(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.split_once("GID").map(|(_, gid)| gid)).collect()
}

#[test]
fn the_processes_of_an_address_see_one_table_and_meet_each_other_and_those_of_another() {
    let test = "the_processes_of_an_address_see_one_table_and_meet_each_other_and_those_of_another";
    let (Some(devinfo), Some(pingpong)) = (tool(test, "ibv_devinfo"), tool(test, "ibv_rc_pingpong")) else {
        return;
    };
    let temporary = Folder::new("one-address");
    let at = |address: u8, port: u16, server: &[&str]| {
        let mut command = soft("roce", &pingpong, temporary.path());
        command.args(["-g", "3", "-n", "200", "-c", "-p", &port.to_string()]).args(server);
        command.env("SOFTHCA_LISTEN", format!("127.83.212.{address}:32000"));
        Running::start(command)
    };
    let sides = [(1, 1), (1, 2), (2, 1), (2, 2)].map(|(server, client)| (server, client, free_port()));
    let mut servers = sides.map(|(server, _, port)| at(server, port, &[]));
    servers.iter_mut().zip(sides).for_each(|(server, (.., port))| wait_for_listener(port, server, true));
    let table = |devices: &str, listen: &str| {
        let mut command = soft(devices, &devinfo, temporary.path());
        command.arg("-v").env("SOFTHCA_LISTEN", listen);
        run(command)
    };
    // While two servers are there.
    let tables = [(); 2].map(|()| table("roce", "127.83.212.1:32000"));
    assert_eq!(gids(tables[0].succeeded()), gids(tables[1].succeeded()));
    assert_eq!(gids(&tables[0].text).len(), 4, "{}", tables[0].text);
    let both = table("roce,roce", "127.83.212.1:32000,127.83.212.2:32000");
    assert_eq!(gids(both.succeeded())[..4], gids(&tables[0].text), "each device has the next address");
    assert!(
        gids(&both.text)[4..].iter().all(|gid| gid.contains("7f53:d402") || gid.contains("127.83.212.2")),
        "{}",
        both.text
    );
    let lacking = table("roce,roce", "127.83.212.1:32000");
    assert!(lacking.text.contains("gives none to device 1"), "{}", lacking.text);
    let clients = sides.map(|(_, client, port)| at(client, port, &["localhost"]));
    let ended = servers.into_iter().chain(clients).map(Running::end).collect::<Vec<_>>();
    for (side, ended) in ended.iter().enumerate() {
        assert_eq!(ended.code, Some(0), "{side}: {}", ended.text);
    }
    for pair in [[0, 1], [2, 3], [4, 6], [5, 7]] {
        // Processes of one address.
        let [one, other] = pair.map(|side| ended[side].text.lines().find(|line| line.contains("local")));
        let [one, other] = [one.unwrap(), other.unwrap()];
        assert_eq!(gids(one), gids(other));
        let number = |line: &str| {
            let (_, number) = line.split_once("QPN 0x").unwrap();
            u32::from_str_radix(&number[..6], 16).unwrap() >> 15
        };
        assert_ne!(number(one), number(other), "{one} {other}");
    }
}

#[test]
fn soft_passes_a_plan_on_and_names_what_is_wrong_with_it() {
    let temporary = Folder::new("plan");
    let with = |plan: &str| {
        let mut command = soft("1", Path::new("/bin/sh"), temporary.path());
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        command = std::process::Command::new(command.get_program());
        command.arg("soft").args(["--faults", plan]).args(&arguments[1..]);
        command.env("TMPDIR", temporary.path()).args(["-c", "echo \"$SOFTHCA_FAULTS\""]);
        run(command)
    };
    assert_eq!(with("drop  nth=3; seed=9").succeeded(), "seed=9; drop nth=3\n");
    let ended = with("drop nth=0");
    assert_eq!(ended.code, Some(2), "{}", ended.text);
    assert!(ended.text.contains("line 1, column 6, `nth=0`"), "{}", ended.text);
}
