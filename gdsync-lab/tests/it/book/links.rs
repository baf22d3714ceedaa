//! The navigation names every page once, and every link leads somewhere.

use super::chapters;
use super::page::Page;
use gdsync_test_support::folder::Folder;
use gdsync_test_support::root;
use std::path::{Path, PathBuf};

fn navigation(docs: &Path) -> Vec<String> {
    let summary = Page::read(docs, &docs.join("SUMMARY.md"));
    let named: Vec<PathBuf> = summary.links().iter().map(|link| docs.join(&link.target)).collect();
    let there = chapters(docs);
    let count = |page: &PathBuf| named.iter().filter(|one| *one == page).count();
    let wrong = there.iter().filter(|page| count(page) != 1);
    let mut wrong: Vec<String> =
        wrong.map(|page| format!("{} is named {} times", page.display(), count(page))).collect();
    wrong.extend(
        named
            .iter()
            .filter(|page| !there.contains(page))
            .map(|page| format!("there is no {}", page.display())),
    );
    wrong
}

fn wrong(root: &Path, page: &Page) -> Vec<String> {
    let of = |link: &super::page::Link| {
        let say = |why: &str| Some(format!("{}:{}: {}: {why}", page.name, link.line, link.target));
        let (path, anchor) = link.target.split_once('#').unwrap_or((&link.target, ""));
        let target = if path.is_empty() { page.path.clone() } else { page.path.parent().unwrap().join(path) };
        let Ok(target) = target.canonicalize() else { return say("there is no such file") };
        if !target.starts_with(root) {
            return say("it leaves the repository");
        }
        if anchor.is_empty() || Page::read(root, &target).anchors().iter().any(|one| one == anchor) {
            return None;
        }
        say("there is no such heading")
    };
    page.links().iter().filter_map(of).collect()
}

#[test]
fn the_navigation_names_every_page_once() {
    let wrong = navigation(&root().join("docs"));
    assert!(wrong.is_empty(), "docs/SUMMARY.md:\n{}", wrong.join("\n"));
}

#[test]
fn every_link_and_anchor_leads_somewhere() {
    let root = root().canonicalize().unwrap();
    let top = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/SUMMARY.md"];
    let paths = top.iter().map(|name| root.join(name)).chain(chapters(&root.join("docs")));
    let pages: Vec<Page> = paths.map(|path| Page::read(&root, &path)).collect();
    assert!(pages.iter().map(|page| page.links().len()).sum::<usize>() > 100, "links are found");
    let wrong: Vec<String> = pages.iter().flat_map(|page| wrong(&root, page)).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn what_is_wrong_with_a_book_is_found() {
    let folder = Folder::new("book");
    let root = folder.path().canonicalize().unwrap();
    for (name, text) in [
        ("SUMMARY.md", "[a](a.md)\n- [a](a.md)\n- [c](c.md)\n"),
        ("a.md", "# A\n[good](b.md#b) [self](#a)\n[no](b.md#c)\n[none](d.md)\n[out](../../../etc/passwd)\n"),
        ("b.md", "# B\n"),
    ] {
        std::fs::write(root.join(name), text).unwrap();
    }
    let at = |name: &str| root.join(name).display().to_string();
    let expected = [
        format!("{} is named 2 times", at("a.md")),
        format!("{} is named 0 times", at("b.md")),
        format!("there is no {}", at("c.md")),
    ];
    assert_eq!(navigation(&root), expected);
    let found = wrong(&root, &Page::read(&root, &root.join("a.md")));
    assert_eq!(found.len(), 3, "{found:?}");
    for (one, said) in found.iter().zip([
        "a.md:3: b.md#c: there is no such heading",
        "a.md:4: d.md: there is no such file",
        "a.md:5: ",
    ]) {
        assert!(one.starts_with(said), "{one}");
    }
}
