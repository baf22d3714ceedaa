//! A crate's modules, each with the names it defines and the paths it writes.

use crate::lex::{Token, tokens};
use crate::list::read;
use crate::parse::{Found, Parser};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// An index into [`Tree::modules`]; the crate's root is 0.
pub type Id = usize;
pub const ROOT: Id = 0;

/// A leaf of a `use` tree.
pub struct Use {
    pub path: Vec<String>,
    /// The name that the module gains; none for a glob.
    pub name: Option<String>,
    pub public: bool,
    /// Inside a function, where it is no name of the module for others.
    pub local: bool,
    pub line: usize,
}

/// A path in code, or the name of a macro that is called.
pub struct Mention {
    pub path: Vec<String>,
    pub call: bool,
    pub line: usize,
}

#[derive(Default)]
pub struct Module {
    /// From the crate's root, which has none: `card::packet`.
    pub path: String,
    pub parent: Id,
    pub children: Vec<Id>,
    /// The source file, from the root of the repository.
    pub file: PathBuf,
    /// Whether a `mod name;` brings it in, rather than a block.
    pub own_file: bool,
    pub items: HashSet<String>,
    pub macros: HashSet<String>,
    pub uses: Vec<Use>,
    pub mentions: Vec<Mention>,
}

impl Module {
    pub fn name(&self) -> &str {
        self.path.rsplit("::").next().unwrap_or(&self.path)
    }
}

pub struct Tree {
    pub modules: Vec<Module>,
    /// How many files of code that is no test were read.
    pub files: usize,
    /// Files that no module includes, and modules that have no file.
    pub stray: Vec<(PathBuf, usize, String)>,
    root: PathBuf,
    /// Files and folders of test modules.
    tests: Vec<PathBuf>,
}

/// Where a module's child modules have their files.
struct Folders<'a> {
    /// The folder of `mod name;`.
    children: &'a Path,
    /// The folder that a `#[path]` starts from.
    paths: &'a Path,
}

impl Tree {
    /// Reads the crate whose `lib.rs` or `main.rs` lies in `folder`, from `root`.
    pub fn read(root: &Path, folder: &str) -> Result<Self, String> {
        let names = ["lib.rs", "main.rs"].map(|name| Path::new(folder).join(name));
        let Some(file) = names.into_iter().find(|file| root.join(file).is_file()) else {
            return Err(format!(
                "{folder} has no lib.rs and no main.rs: correct the crate's path in the layers file"
            ));
        };
        let (stray, tests) = (Vec::new(), Vec::new());
        let mut tree = Self { modules: Vec::new(), files: 0, stray, root: root.into(), tests };
        tree.file(Module { file, own_file: true, ..Module::default() }, Path::new(folder))?;
        tree.find_stray(Path::new(folder))?;
        Ok(tree)
    }

    /// Whether `ancestor` is `module` or holds it.
    pub fn holds(&self, ancestor: Id, mut module: Id) -> bool {
        while module != ancestor && module != ROOT {
            module = self.modules[module].parent;
        }
        module == ancestor
    }

    fn add(&mut self, module: Module) -> Id {
        self.modules.push(module);
        self.modules.len() - 1
    }

    fn file(&mut self, module: Module, children: &Path) -> Result<Id, String> {
        let file = module.file.clone();
        let text = read(&self.root.join(&file))?;
        self.files += 1;
        let id = self.add(module);
        let paths = file.parent().unwrap_or(Path::new(""));
        self.scan(id, &tokens(&text), &Folders { children, paths })?;
        Ok(id)
    }

    fn scan(&mut self, id: Id, tokens: &[Token<'_>], folders: &Folders<'_>) -> Result<(), String> {
        let mut parser = Parser::new(tokens);
        while let Some(found) = parser.next() {
            let module = &mut self.modules[id];
            match found {
                Found::Item(name) => drop(module.items.insert(name)),
                Found::Macro(name) => drop(module.macros.insert(name)),
                Found::Use(uses) => module.uses.extend(uses),
                Found::Mention(mention) => module.mentions.push(mention),
                Found::Module { name, path, line, test, body } => {
                    let own_path = match module.path.as_str() {
                        "" => name.clone(),
                        parent => format!("{parent}::{name}"),
                    };
                    let file = module.file.clone();
                    let child = Module { path: own_path, parent: id, file, ..Module::default() };
                    match body {
                        Some(_) if test => {}
                        Some(body) => {
                            let inner = folders.children.join(&name);
                            let child = self.add(child);
                            self.modules[id].children.push(child);
                            self.scan(child, body, &Folders { children: &inner, paths: &inner })?;
                        }
                        None => self.outside(child, &name, path, (line, test), folders)?,
                    }
                }
            }
        }
        Ok(())
    }

    /// `mod name;`
    fn outside(
        &mut self,
        mut child: Module,
        name: &str,
        path: Option<String>,
        (line, test): (usize, bool),
        folders: &Folders<'_>,
    ) -> Result<(), String> {
        let folder = folders.children.join(name);
        let candidates = match &path {
            Some(path) => vec![normal(&folders.paths.join(path))],
            None => vec![folder.with_extension("rs"), folder.join("mod.rs")],
        };
        let Some(file) = candidates.iter().find(|file| self.root.join(file).is_file()).cloned() else {
            let looked =
                candidates.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" or ");
            self.stray.push((child.file, line, format!("mod {name} has no file: add {looked}")));
            return Ok(());
        };
        if test || is_test(&file) {
            self.tests.push(file.with_extension(""));
            self.tests.push(if file.ends_with("mod.rs") { folder } else { file });
            return Ok(());
        }
        // Children of a `mod.rs` and of a file that a `#[path]` names lie beside it.
        let beside = path.is_some() || file.ends_with("mod.rs");
        let children = if beside { file.parent().unwrap_or(Path::new("")).into() } else { folder };
        (child.file, child.own_file) = (file, true);
        let parent = child.parent;
        let child = self.file(child, &children)?;
        self.modules[parent].children.push(child);
        Ok(())
    }

    fn find_stray(&mut self, folder: &Path) -> Result<(), String> {
        let unread = |error| format!("{} cannot be read: {error}", folder.display());
        for entry in fs::read_dir(self.root.join(folder)).map_err(unread)? {
            let path = folder.join(entry.map_err(unread)?.file_name());
            if is_test(&path) || self.tests.contains(&path) {
                continue;
            }
            if self.root.join(&path).is_dir() {
                self.find_stray(&path)?;
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && !self.modules.iter().any(|module| module.file == path)
            {
                let text = "no module of the crate includes this file: declare it or remove it";
                self.stray.push((path, 1, text.into()));
            }
        }
        Ok(())
    }
}

/// Whether a file or folder holds tests, by its name.
fn is_test(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with("_tests.rs") || name == "tests.rs" || name == "tests"
}

/// Resolves `..` by name.
fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, part| {
        if part.as_os_str() == ".." {
            path.pop();
        } else {
            path.push(part);
        }
        path
    })
}
