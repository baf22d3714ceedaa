//! Partition keys: `SOFTHCA_PKEYS`, as programs of libibverbs see it and meet it.

use gdsync_test_support::compiler::Compiler;
use gdsync_test_support::folder::Folder;
use gdsync_test_support::programs::{lacks, run, soft, succeeds_with, tool};
use gdsync_test_support::root;
use std::path::Path;

const PKEYS: &str = "0xffff,0x8001,0x0001,0x0002";

#[test]
fn a_program_sees_the_table_and_its_packets_pass_between_partners() {
    let test = "a_program_sees_the_table_and_its_packets_pass_between_partners";
    let compiler = Compiler::c("gnu11");
    if let Err(why) = compiler.probe("#include <infiniband/verbs.h>") {
        return lacks(test, &format!("{why} (packages gcc, libibverbs-dev)"));
    }
    let source = root().join("gdsync-soft/tests/seen/partitions.c");
    let program = compiler.libraries(["-libverbs"]).build(&source);
    let temporary = Folder::new("partitions");
    let mut command = soft("ib", &program.path(), temporary.path());
    command.env("SOFTHCA_PKEYS", PKEYS);
    assert_eq!(run(command).succeeded(), "");
    assert_eq!(temporary.content(), 0);
}

#[test]
fn files_have_the_keys_of_the_process_that_reads_them() {
    let temporary = Folder::new("partitions-files");
    let script =
        "cd /sys/class/infiniband; cat mlx5_0/ports/1/pkeys/*; echo of Ethernet; cat mlx5_1/ports/1/pkeys/*
        SOFTHCA_PKEYS=0x8003,0x8004 cat mlx5_0/ports/1/pkeys/1";
    let mut command = soft("ib,roce", Path::new("/bin/sh"), temporary.path());
    command.args(["-c", script]).env("SOFTHCA_PKEYS", PKEYS);
    let expected = "0xffff\n0x8001\n0x0001\n0x0002\nof Ethernet\n0xffff\n0x8004\n";
    assert_eq!(run(command).succeeded(), expected);
}

#[test]
fn ibv_devinfo_has_the_length_of_the_table() {
    let Some(tool) = tool("ibv_devinfo_has_the_length_of_the_table", "ibv_devinfo") else { return };
    let temporary = Folder::new("partitions-devinfo");
    let mut command = soft("ib", &tool, temporary.path());
    command.arg("-v").env("SOFTHCA_PKEYS", PKEYS);
    let ended = run(command);
    let text = ended.succeeded();
    let value =
        |name: &str| text.lines().find_map(|line| line.split_once(name)).map(|(_, value)| value.trim());
    assert_eq!([value("max_pkeys:"), value("pkey_tbl_len:")], [Some("4"); 2], "{text}");
    assert_eq!(value("bad_pkey_cntr:"), Some("0x0"), "{text}");
}

#[test]
fn perftest_uses_an_index_of_the_table() {
    let keys = format!("SOFTHCA_PKEYS={PKEYS}");
    for tool in ["ib_send_bw", "ib_read_lat"] {
        let arguments = ["--pkey_index=1", "-s", "5000", "-n", "40"];
        succeeds_with("perftest_uses_an_index_of_the_table", tool, &[&keys], "ib", &arguments);
    }
    let arguments = ["--pkey_index=1", "-c", "UD", "-s", "1000", "-n", "40"];
    succeeds_with("perftest_uses_an_index_of_the_table", "ib_send_lat", &[&keys], "ib", &arguments);
}
