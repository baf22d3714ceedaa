//! Asks the C compiler what the installed headers of rdma-core say.

use std::io::Write;
use std::process::Command;

/// Compiles a C program, runs it and returns what it prints; or says why that cannot be.
fn output_of(name: &str, source: &str) -> Result<String, String> {
    let folder = std::env::temp_dir().join(format!("gdsync-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let (file, program) = (folder.join("main.c"), folder.join("main"));
    let run = || {
        std::fs::write(&file, source).map_err(|error| error.to_string())?;
        let compiled = Command::new("cc").arg(&file).arg("-o").arg(&program).output();
        let compiled = compiled.map_err(|error| format!("no C compiler: {error}"))?;
        if !compiled.status.success() {
            let message = String::from_utf8_lossy(&compiled.stderr);
            let error = message.lines().find(|line| line.contains("error"));
            return Err(error.unwrap_or("cc failed").to_owned());
        }
        let answer = Command::new(&program).output().map_err(|error| error.to_string())?;
        if !answer.status.success() {
            return Err(format!("the program ended with {}", answer.status));
        }
        String::from_utf8(answer.stdout).map_err(|error| error.to_string())
    };
    let answer = run();
    // A leftover in the temporary folder harms nobody.
    let _ = std::fs::remove_dir_all(&folder);
    answer
}

/// What a C program on top of the headers prints. `None` where there is no compiler or no header, said on standard
/// error; GDSYNC_REQUIRE_RDMA_HEADERS=1 makes that a failure, and so is a program that does not compile where an empty
/// one does.
pub(crate) fn ask(test: &str, source: &str) -> Option<String> {
    let includes = "#include <infiniband/verbs.h>\n#include <infiniband/mlx5dv.h>\n";
    if let Err(why) =
        output_of(&format!("{test}-probe"), &format!("{includes}int main(void) {{ return 0; }}\n"))
    {
        let required = std::env::var_os("GDSYNC_REQUIRE_RDMA_HEADERS").is_some_and(|value| value == "1");
        assert!(!required, "{why}");
        // Past libtest's capture: a test that did not run must be seen.
        let line = format!("SKIPPED {test}: {why} (apt-get install gcc libibverbs-dev)\n");
        std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
        return None;
    }
    Some(output_of(test, &format!("{includes}{source}")).unwrap_or_else(|why| panic!("{test}: {why}")))
}
