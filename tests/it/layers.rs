//! `scripts/layers` on small crates: what it refuses, and what it must not take for an import.

use gdsync_test_support::folder::Folder;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// A crate that passes; each test replaces or adds files.
const CLEAN: [(&str, &str); 6] = [
    ("layers.toml", "[crate.demo]\npath = \"src\"\nlayers = [\"low\", \"mid\", \"high\"]\n"),
    ("src/lib.rs", "mod high;\nmod low;\nmod mid;\npub use high::High;\n"),
    ("src/low.rs", "pub struct Low;\n"),
    ("src/mid/mod.rs", "mod inner;\npub use inner::Inner;\nuse crate::low::Low;\n"),
    ("src/mid/inner.rs", "use super::super::low;\npub struct Inner(low::Low);\n"),
    ("src/high.rs", "use crate::mid::Inner;\npub struct High(Inner);\npub fn make() {}\n"),
];

fn script(arguments: &[&Path]) -> (i32, String, String) {
    static COMPILED: OnceLock<()> = OnceLock::new();
    let run = |arguments: &[&Path]| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/layers");
        Command::new(script).args(arguments).output().unwrap()
    };
    COMPILED.get_or_init(|| assert!(run(&[Path::new("--help")]).status.success()));
    let output = run(arguments);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn tree(name: &str, files: &[(&str, &str)]) -> Folder {
    let root = Folder::new(&format!("layers-{name}"));
    for (file, text) in CLEAN.iter().chain(files) {
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

/// What the script says of a tree.
fn check(name: &str, files: &[(&str, &str)]) -> (i32, String) {
    let (code, out, errors) = script(&[tree(name, files).path()]);
    (code, if code == 2 { errors } else { out })
}

/// A list in which the folder and its module have entries of their own.
fn list(layers: &str) -> String {
    format!("[crate.demo]\npath = \"src\"\nlayers = [{layers}]\n")
}

#[test]
fn a_clean_tree_passes() {
    let said = check("clean", &[]);
    assert_eq!(said, (0, "demo: 3 layers, 5 files, 3 imports, none upward\n".into()));
}

#[test]
fn an_upward_import_is_found_however_it_is_written() {
    for (index, (code, line, text)) in [
        ("use crate::high::High;", 1, "crate::high::High"),
        ("use crate::{\n    low::{self, Low},\n    high::{High as Other},\n};", 3, "crate::high::High"),
        ("use super::high::*;", 1, "super::high::*"),
        ("pub(crate) use crate::high::High;", 1, "crate::high::High"),
        ("use crate::High;", 1, "crate::High"),
        ("fn f() {\n    use crate::high;\n}", 2, "crate::high"),
        ("fn f() -> u8 {\n    b'\\'';\n    crate::high::make::<u8>()\n}", 3, "crate::high::make"),
        ("type F<'a> = <&'a str as super::high::Trait>::Type;", 1, "super::high::Trait"),
        ("macro_rules! make { () => { $crate::high::make() } }", 1, "crate::high::make"),
        ("#[derive(Clone, crate::high::Derive)]\nstruct S;", 1, "crate::high::Derive"),
        ("#[cfg(not(test))]\nuse crate::high::High;", 2, "crate::high::High"),
        ("/* /* */ */ pub fn f(_: crate::high::High) {}", 1, "crate::high::High"),
        ("mod block {\n    use super::super::high::High;\n}", 2, "super::super::high::High"),
    ]
    .into_iter()
    .enumerate()
    {
        let (status, said) = check(&format!("upward{index}"), &[("src/low.rs", code)]);
        // The import also closes a circle through the folder between, which is said once more.
        let imports: Vec<_> = said.lines().filter(|line| !line.contains("a circle of 3 modules")).collect();
        let expected = format!(
            "src/low.rs:{line}: low imports high ({text}), which stands below it in layers.toml: \
             move the item up or the caller down"
        );
        assert_eq!((status, &imports[..]), (1, &[&expected[..]][..]), "{code}");
    }
}

#[test]
fn a_folder_and_a_module_inside_may_have_entries_of_their_own() {
    // The folder hands an item of the module on: who imports it there imports the module.
    let outer = list(r#""low", "mid", "high", "mid::inner""#);
    let (code, said) = check("handed-on", &[("layers.toml", &outer)]);
    assert_eq!((code, said.lines().count()), (1, 1), "{said}");
    assert!(said.starts_with("src/high.rs:1: high imports mid::inner (crate::mid::Inner)"), "{said}");
    // So does who reaches it through an imported name of the folder.
    let high = "use crate::mid;\npub struct High(mid::inner::Inner);\n";
    let (_, said) = check("through-a-name", &[("layers.toml", &outer), ("src/high.rs", high)]);
    assert!(said.starts_with("src/high.rs:2: high imports mid::inner (mid::inner::Inner)"), "{said}");
    let glob = ("src/high.rs", "use crate::mid::*;\n");
    let (_, said) = check("through-a-glob", &[("layers.toml", &outer), glob]);
    assert!(said.starts_with("src/high.rs:1: high imports mid::inner (crate::mid::* with Inner)"), "{said}");
    // The module's imports of the folder are imports.
    let inner = ("src/mid/inner.rs", "use super::Shared;\npub struct Inner(Shared);\n");
    let folder = ("src/mid/mod.rs", "mod inner;\npub use inner::Inner;\npub struct Shared;\n");
    let (code, _) = check("folder-first", &[("layers.toml", &outer), inner, folder, ("src/high.rs", "")]);
    assert_eq!(code, 0);
    let reversed = list(r#""low", "mid::inner", "mid", "high""#);
    let (code, said) = check("folder-last", &[("layers.toml", &reversed), inner, folder]);
    assert_eq!(code, 1);
    assert!(said.starts_with("src/mid/inner.rs:1: mid::inner imports mid (super::Shared)"), "{said}");
    let inner = ("src/mid/inner.rs", "pub struct Inner;\nfn f() { rule!() }\n");
    let folder = ("src/mid/mod.rs", "macro_rules! rule { () => {} }\nmod inner;\npub use inner::Inner;\n");
    let (_, said) = check("macro", &[("layers.toml", &reversed), inner, folder]);
    assert!(said.starts_with("src/mid/inner.rs:2: mid::inner imports mid (rule!)"), "{said}");
}

#[test]
fn what_the_root_itself_holds_belongs_to_no_layer() {
    let (code, said) = check("root", &[("src/low.rs", "use crate::LIMIT;\nuse crate::absent::Name;\n")]);
    assert_eq!(code, 1);
    let at_root =
        |text: &str| format!("low imports the crate's root ({text}): import it from where it is defined");
    let expected = [at_root("crate::LIMIT"), at_root("crate::absent::Name")];
    assert_eq!(said, format!("src/low.rs:1: {}\nsrc/low.rs:2: {}\n", expected[0], expected[1]));
}

#[test]
fn tests_comments_strings_and_other_crates_import_nothing() {
    let low = r###"//! [`crate::high::High`], `use crate::high;`
use high::other;
use ::high::another;
use std::{fmt, io::Write as _};
/* use crate::high::High; /* inner */ use crate::high; */
pub(in crate::low) const TEXT: &str = "\" use crate::high::High; \\";
const RAW: &str = r#"" crate::high::make() "#;
const BYTES: &[u8] = br"use crate::high;";
const QUOTES: (char, char, u8) = ('"', '\'', b'"');
fn f<'a>(text: &'a str, r#use: u8) -> impl Sized + use<'a> { (text, r#use) }
#[cfg(test)]
use crate::high::High;
#[cfg(any(test, fuzzing))]
#[derive(Clone)]
pub(crate) struct Both<A, B>(crate::high::High, A, B);
#[cfg(all(test, feature = "more"))]
impl Low { fn high() { crate::high::make(); } }
#[cfg(test)]
#[path = "low_rig.rs"]
mod rig;
#[cfg(test)]
mod tests { use crate::high::High; }
#[cfg(test)]
mod low_tests;
"###;
    let upward = "use crate::high::High;\nmod more;\n";
    let files = [
        ("src/low.rs", low),
        ("src/low_rig.rs", upward),
        ("src/low/low_tests.rs", upward),
        ("src/low/low_tests/more.rs", upward),
        ("src/mid/tests/deep/mod.rs", upward),
    ];
    assert_eq!(check("ignored", &files), (0, "demo: 3 layers, 5 files, 3 imports, none upward\n".into()));
}

#[test]
fn a_circle_of_folders_is_refused_and_one_of_files_is_not() {
    let outside = [
        ("layers.toml", &list(r#""all""#)[..]),
        ("src/lib.rs", "mod all;\n"),
        ("src/low.rs", "#![cfg(test)]"),
        ("src/all/mod.rs", "mod a;\nmod b;\nmod c;\n"),
        ("src/all/a.rs", "use super::b::B;\n"),
        ("src/all/b.rs", "use super::c::C;\n"),
        ("src/all/c.rs", "use super::a::A;\n"),
    ];
    let root = tree("circle", &outside);
    for file in ["low.rs", "high.rs", "mid/mod.rs", "mid/inner.rs"] {
        fs::remove_file(root.path().join("src").join(file)).unwrap();
    }
    let (code, said, _) = script(&[root.path()]);
    assert_eq!((code, &said[..]), (0, "demo: 1 layers, 5 files, 3 imports, none upward\n"));

    fs::create_dir(root.path().join("src/all/b")).unwrap();
    fs::write(root.path().join("src/all/b.rs"), "mod part;\n").unwrap();
    fs::write(root.path().join("src/all/b/part.rs"), "\nuse super::super::c::C;\n").unwrap();
    let (code, said, _) = script(&[root.path()]);
    let steps = "b imports c (super::super::c::C at src/all/b/part.rs:2), c imports a (super::a::A at src/all/c.rs:1), \
                 a imports b (super::b::B at src/all/a.rs:1)";
    let expected =
        format!("a circle of 3 modules (a, b, c): {steps}: move what they share up, or one caller down");
    assert_eq!((code, said), (1, format!("src/all/b/part.rs:2: {expected}\n")));
}

#[test]
fn the_list_and_the_modules_agree() {
    let layers = list(r#""low", "mid", "absent""#);
    let (code, said) = check("disagree", &[("layers.toml", &layers), ("src/mid/forgotten.rs", "")]);
    let expected = "layers.toml:3: absent is no module of demo: correct or remove the entry\n\
        src/high.rs:1: high stands in no layer: list it under [crate.demo] of layers.toml\n\
        src/mid/forgotten.rs:1: no module of the crate includes this file: declare it or remove it\n";
    assert_eq!((code, &said[..]), (1, expected));
    let (code, said) = check("no-file", &[("src/low.rs", "mod gone;\n")]);
    let expected = "src/low.rs:1: mod gone has no file: add src/low/gone.rs or src/low/gone/mod.rs\n";
    assert_eq!((code, &said[..]), (1, expected));
}

#[test]
fn a_file_named_by_its_path_is_a_module_like_any_other() {
    let low = "#[cfg(unix)]\n#[path = \"../far/unix.rs\"]\npub(crate) mod system;\n";
    let (code, said) = check("path", &[("src/low.rs", low), ("far/unix.rs", "use crate::high::High;\n")]);
    assert_eq!(code, 1);
    assert!(said.contains("far/unix.rs:1: low imports high (crate::high::High), which"), "{said}");
}

#[test]
fn crates_depend_on_those_listed_before_them() {
    let order = |crates: &str| format!("[workspace]\ncrates = [{crates}]\n{}", CLEAN[0].1);
    let top = "[workspace]\nmembers = [\n    \"base\", # the first\n    \"more/tool\",\n]\n[workspace.dependencies]\ntool = \"1\"\n\
        [package]\nname = \"demo\"\n[dependencies]\nbase.workspace = true\nserde = { version = \"1\", features = [\n    \"derive\",\n] }\n";
    let base = "[package]\nname = \"base\"\n[dev-dependencies]\ntool.workspace = true\n";
    let tool = "[package]\nname = \"tool\"\n[target.'cfg(unix)'.build-dependencies]\nb = { package = \"base\", path = \"../../base\" }\n";
    let manifests = [("Cargo.toml", top), ("base/Cargo.toml", base), ("more/tool/Cargo.toml", tool)];
    let with = |list: &str, name: &str| check(name, &[&[("layers.toml", list)], &manifests[..]].concat());

    let (code, said) = with(&order(r#""base", "tool", "demo""#), "order");
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("workspace: 3 crates, 2 dependencies, none upward\nbase: no layers listed\n"),
        "{said}"
    );
    let (code, said) = with(&order(r#""tool", "base", "absent""#), "disorder");
    let expected = "Cargo.toml:1: demo is not in the order of crates: list it in `crates` of [workspace] in layers.toml\n\
        layers.toml:2: absent is no crate of the workspace: correct or remove the entry\n\
        more/tool/Cargo.toml:4: tool depends on base, which stands below it in layers.toml: \
        move what it needs to a crate above, or correct the order\n";
    assert_eq!((code, &said[..]), (1, expected));
}

#[test]
fn a_bad_list_is_refused_with_its_line_and_the_remedy() {
    for (index, (text, expected)) in [
        ("[crate.demo\n", "layers.toml:1: a section's name ends with ]: [crate.demo\n"),
        ("[crate.demo]\npath\n", "layers.toml:2: neither [section] nor key = value: path\n"),
        (
            "[crate.demo]\npath = 7\n",
            "layers.toml:2: a value is a \"string\" or an array of them: path = 7\n",
        ),
        ("[crate.demo]\nlayers = [\"a\" \"b\"]\n", "layers.toml:2: a comma separates an array's strings: "),
        ("[crate.demo]\nlayers = [\n  \"a\",\n", "layers.toml:2: the array of layers has no end: add ]\n"),
        ("[crate.demo]\nlayers = [\"a\",\n\"b\",\n\"a\"]\n", "layers.toml:4: a is listed twice: keep one\n"),
        (
            "[crate.demo]\ndepth = \"1\"\n",
            "layers.toml:2: depth of [crate.demo] is unknown: write `crates` of [workspace]",
        ),
        (
            "[crate.demo]\nlayers = \"a\"\n",
            "layers.toml:2: layers of demo is given twice, or write layers = [",
        ),
        (
            "[crate.demo]\npath = \"src\"\n",
            "layers.toml: [crate.demo] has no layers, or an empty one: write layers = [",
        ),
        ("", "layers.toml: no crate is listed: add a [crate.NAME]\n"),
        (
            "[crate.demo]\npath = \"far\"\nlayers = [\"a\"]\n",
            "layers: far has no lib.rs and no main.rs: correct the crate's path",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let (code, said) = check(&format!("bad{index}"), &[("layers.toml", text)]);
        assert!(code == 2 && said.contains(expected), "{text}: {code} {said}");
    }
    let root = tree("usage", &[]);
    let (code, _, said) = script(&[root.path(), Path::new("--deep")]);
    assert!(code == 2 && said.starts_with("layers: --deep is no argument here\nusage: "), "{said}");
    let absent = root.path().join("absent.toml");
    let (code, _, said) = script(&[Path::new("--layers"), &absent, root.path()]);
    assert!(code == 2 && said.contains("absent.toml cannot be read: "), "{said}");
}
