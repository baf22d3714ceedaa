//! DEVX commands of C programs on the unmodified libmlx5: `gdsync soft -- PROGRAM`.

use gdsync_test_support::compiler::{Compiler, Program};
use gdsync_test_support::folder::Folder;
use gdsync_test_support::programs::{lacks, run, soft};
use gdsync_test_support::root;
use std::path::Path;

/// The header that the programs need.
const HEADER: &str = "/usr/include/infiniband/mlx5dv.h";

/// Builds `tests/devx/NAME.c`. `None` without a compiler or the headers: the test is skipped.
fn build(test: &str, name: &str) -> Option<Program> {
    let Ok(header) = std::fs::read_to_string(HEADER) else {
        lacks(test, &format!("{HEADER} is not there (package libibverbs-dev)"));
        return None;
    };
    let mut compiler = Compiler::c("gnu11").options(["-Wno-unused-function"]);
    // rdma-core 50 has this type.
    if header.contains("MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED") {
        compiler = compiler.options(["-DNC_DEDICATED"]);
    }
    // rdma-core 55 has this flag.
    if header.contains("MLX5DV_QP_CREATE_OOO_DP") {
        compiler = compiler.options(["-DOOO_DP"]);
    }
    if let Err(why) = compiler.probe("") {
        lacks(test, &format!("{why} (package gcc)"));
        return None;
    }
    let source = root().join("gdsync-soft/tests/devx").join(name).with_extension("c");
    Some(compiler.libraries(["-lmlx5", "-libverbs"]).build(&source))
}

/// Runs a program on a device of each link layer. The program destroys its objects, or leaves them to the
/// closing of the device.
fn succeeds(test: &str, name: &str, destroys: bool) {
    succeeds_with(test, name, destroys, &[]);
}

/// As [`succeeds`], with variables of the environment.
fn succeeds_with(test: &str, name: &str, destroys: bool, variables: &[(&str, &str)]) {
    let Some(program) = build(test, name) else { return };
    for devices in ["ib", "roce"] {
        let temporary = Folder::new(&format!("devx-{name}-{devices}"));
        let mut command = soft(devices, &program.path(), temporary.path());
        command.env("SOFTHCA_LOG", "error,softhca_uverbs::context=info").envs(variables.iter().copied());
        let ended = run(command);
        assert_eq!(ended.code, Some(0), "{name} on {devices}: {}", ended.text);
        assert!(!ended.text.contains("left in the card"), "{name} on {devices}: {}", ended.text);
        assert_eq!(!ended.text.contains("not destroyed by the program"), destroys, "{name}: {}", ended.text);
        assert_eq!(temporary.content(), 0, "{name} has left something behind");
    }
}

#[test]
fn capabilities_are_those_that_verbs_tell() {
    succeeds("capabilities_are_those_that_verbs_tell", "caps", true);
}

#[test]
fn queue_pairs_tell_the_order_in_which_their_messages_reach_memory() {
    let test = "queue_pairs_tell_the_order_in_which_their_messages_reach_memory";
    let Some(program) = build(test, "ordering") else { return };
    // OOO_RW where the network routes adaptively.
    for (liberties, network) in [("1", "0"), ("1 unordered", "1")] {
        let temporary = Folder::new("devx-ordering");
        let mut command = soft("ib,roce", &program.path(), temporary.path());
        command.arg(network).env("SOFTHCA_LIBERTIES", liberties);
        assert_eq!(run(command).succeeded(), "", "{liberties}");
    }
}

#[test]
fn a_queue_pair_without_a_queue_names_no_completion_queue_for_it() {
    succeeds("a_queue_pair_without_a_queue_names_no_completion_queue_for_it", "halves", true);
}

#[test]
fn ethernet_has_source_ports_and_ece() {
    succeeds("ethernet_has_source_ports_and_ece", "extras", true);
}

#[test]
fn every_process_sees_the_same_addresses_of_a_device() {
    succeeds("every_process_sees_the_same_addresses_of_a_device", "address", true);
}

#[test]
fn the_children_of_a_fork_use_the_device_that_their_parent_has_opened() {
    succeeds("the_children_of_a_fork_use_the_device_that_their_parent_has_opened", "inherited", true);
}

#[test]
fn the_objects_of_a_device_are_imported_by_a_copy_of_its_descriptor() {
    succeeds("the_objects_of_a_device_are_imported_by_a_copy_of_its_descriptor", "imported", true);
}

#[test]
fn memory_that_goes_away_never_kills() {
    succeeds("memory_that_goes_away_never_kills", "unmapped", true);
}

#[test]
fn creation_at_every_limit_succeeds_and_above_it_is_refused() {
    succeeds("creation_at_every_limit_succeeds_and_above_it_is_refused", "limits", true);
}

#[test]
fn the_log_names_what_is_missing_as_programs_do() {
    let Some(program) = build("the_log_names_what_is_missing_as_programs_do", "refusals") else { return };
    let temporary = Folder::new("devx-refusals");
    let mut command = soft("ib", &program.path(), temporary.path());
    command.env("SOFTHCA_LOG", "info");
    let ended = run(command);
    let said = ended.succeeded();
    for name in [
        "IBV_QPT_RAW_PACKET",
        "IBV_QP_CREATE_SCATTER_FCS",
        "ibv_create_counters",
        "IBV_ACCESS_FLUSH_GLOBAL",
        "0x400",
        "IBV_QP_RATE_LIMIT",
        "no file is open under this descriptor",
    ] {
        assert!(said.contains(name), "{name}: {said}");
    }
    assert!(!said.contains("cuMemGetHandleForAddressRange"), "{said}");
}

#[test]
fn memory_of_every_kind_is_registered_bound_and_refused() {
    succeeds("memory_of_every_kind_is_registered_bound_and_refused", "memory", true);
}

#[test]
fn gpu_memory_that_the_cpu_cannot_map_is_registered_and_holds_queues() {
    let test = "gpu_memory_that_the_cpu_cannot_map_is_registered_and_holds_queues";
    let Some(programs) =
        ["gpu", "cuda"].map(|name| build(test, name)).into_iter().collect::<Option<Vec<_>>>()
    else {
        return;
    };
    let library = Compiler::c("gnu11").options(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]);
    let driver = library.build(&root().join("gdsync-soft/tests/devx/fake_cuda.c"));
    let devices = ["ib", "roce"];
    for (devices, program) in devices.iter().flat_map(|devices| programs.iter().map(move |it| (*devices, it)))
    {
        let temporary = Folder::new(&format!("devx-gpu-{devices}"));
        let mut command = soft(devices, &program.path(), temporary.path());
        command.env("FAKE_CUDA", driver.path()).env("SOFTHCA_LOG", "error,softhca_uverbs::context=info");
        let ended = run(command);
        assert_eq!(ended.code, Some(0), "{devices}: {}", ended.text);
        assert!(!ended.text.contains("not destroyed by the program"), "{devices}: {}", ended.text);
    }
}

#[test]
fn gpu_memory_is_exported_to_the_card_while_another_library_counts_the_calls() {
    let test = "gpu_memory_is_exported_to_the_card_while_another_library_counts_the_calls";
    let Some(program) = build(test, "cuda") else { return };
    let shared = |name: &str| {
        Compiler::c("gnu11")
            .options(["-O2", "-shared", "-fPIC", &format!("-Wl,-soname,{name}")])
            .libraries(["-ldl"])
    };
    let driver = shared("libcuda.so.1").build(&root().join("gdsync-soft/tests/devx/fake_cuda.c"));
    let counter = shared("libdriver_calls.so").build(&root().join("scripts/gpu/driver_calls.c"));
    let temporary = Folder::new("devx-gpu-counted");
    let mut command = soft("ib", Path::new("/bin/sh"), temporary.path());
    // Before the card's library, as scripts/gpu/ways does.
    command.args(["-c", r#"LD_PRELOAD="$1:$LD_PRELOAD" DRIVER_CALLS=- exec "$0""#]);
    command.arg(program.path()).arg(counter.path()).env("FAKE_CUDA", driver.path());
    let ended = run(command);
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    let line = ended.text.lines().find(|line| line.starts_with("cuMemGetHandleForAddressRange"));
    // The completion queue and the queue pair share an export; the data has another.
    assert_eq!(line.and_then(|line| line.split_whitespace().nth(2)), Some("2"), "{}", ended.text);
    // Only the card copies by this call.
    assert!(!ended.text.contains("cuMemcpyHtoDAsync"), "{}", ended.text);
}

#[test]
fn queues_made_by_commands_carry_a_thousand_writes() {
    succeeds("queues_made_by_commands_carry_a_thousand_writes", "traffic", true);
}

#[test]
fn the_clock_is_read_from_a_page_and_stands_in_entries() {
    succeeds("the_clock_is_read_from_a_page_and_stands_in_entries", "clock", true);
}

#[test]
fn members_of_multicast_groups_get_what_is_sent_to_them() {
    succeeds("members_of_multicast_groups_get_what_is_sent_to_them", "mcast", true);
}

#[test]
fn small_data_is_inside_completion_entries() {
    for size in ["64", "128"] {
        let test = "small_data_is_inside_completion_entries";
        succeeds_with(test, "scatter", true, &[("MLX5_CQE_SIZE", size)]);
    }
}

#[test]
fn a_program_that_relies_on_luck_fails_with_liberties_and_a_right_one_does_not() {
    let test = "a_program_that_relies_on_luck_fails_with_liberties_and_a_right_one_does_not";
    let Some(program) = build(test, "lucky") else { return };
    for (liberties, looks_at, code) in
        [("", "last-byte", 0), ("", "completion", 0), ("1", "last-byte", 3), ("1", "completion", 0)]
    {
        let temporary = Folder::new("lucky");
        let mut command = soft("ib", &program.path(), temporary.path());
        command.arg(looks_at).env("SOFTHCA_LIBERTIES", liberties);
        let ended = run(command);
        assert_eq!(ended.code, Some(code), "`{liberties}` {looks_at}: {}", ended.text);
    }
}

#[test]
fn objects_of_verbs_are_moved_and_asked_by_commands() {
    succeeds("objects_of_verbs_are_moved_and_asked_by_commands", "verbs", true);
}

#[test]
fn what_is_wrong_is_refused_with_status_and_syndrome() {
    succeeds("what_is_wrong_is_refused_with_status_and_syndrome", "errors", true);
}

#[test]
fn a_closed_device_takes_everything_along() {
    succeeds("a_closed_device_takes_everything_along", "leftover", false);
}

#[test]
fn the_card_waits_for_words_and_for_queues_and_masters_release_slaves() {
    succeeds("the_card_waits_for_words_and_for_queues_and_masters_release_slaves", "waits", true);
}

#[test]
fn events_of_queues_reach_channels_and_answers_come_later() {
    succeeds("events_of_queues_reach_channels_and_answers_come_later", "events", true);
}

#[test]
fn pools_of_receives_and_dynamic_connections_carry_sends() {
    succeeds("pools_of_receives_and_dynamic_connections_carry_sends", "shared", true);
}
