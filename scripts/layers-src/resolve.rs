//! Paths, as written, to the modules that define what they name.

use crate::tree::{Id, Mention, Module, ROOT, Tree, Use};

/// What a path leads to.
#[derive(Clone, Copy, PartialEq)]
pub enum Place {
    Module(Id),
    /// An item of this module.
    Item(Id),
    /// A name of another crate, or of a scope inside a function.
    Outside,
}

/// A module imports from another one.
pub struct Import {
    pub from: Id,
    pub to: Id,
    pub line: usize,
    /// As it stands in the code, a `use` tree written out.
    pub text: String,
}

/// The names that are being followed, against circles of `use`.
type Trail = Vec<(Id, String)>;

impl Tree {
    /// The imports of every module but the root, each once a line.
    pub fn imports(&self) -> Vec<Import> {
        let mut imports: Vec<Import> = Vec::new();
        for (from, module) in self.modules.iter().enumerate().skip(1) {
            let mut add = |to: Id, line: usize, text: String| {
                let again = |import: &Import| (import.to, import.line, &import.text) == (to, line, &text);
                let own = imports.iter().rev().take_while(|import| import.from == from);
                if to != from && !own.into_iter().any(again) {
                    imports.push(Import { from, to, line, text });
                }
            };
            for each in &module.uses {
                self.imported(from, each, &mut add);
            }
            for Mention { path, call, line } in &module.mentions {
                if *call {
                    if let Some(to) = self.textual_macro(module, &path[0]) {
                        add(to, *line, format!("{}!", path[0]));
                    }
                } else if let Some(to) = self.mentioned(from, path) {
                    add(to, *line, path.join("::"));
                }
            }
        }
        imports
    }

    fn imported(&self, from: Id, each: &Use, add: &mut impl FnMut(Id, usize, String)) {
        let place = self.resolve(from, &each.path, &mut Trail::new());
        let (Place::Module(to) | Place::Item(to)) = place else { return };
        // A folder hands its own modules' items on: no import.
        if each.public && to != from && self.holds(from, to) {
            return;
        }
        let text = each.path.join("::");
        if each.name.is_some() {
            return add(to, each.line, text);
        }
        add(to, each.line, format!("{text}::*"));
        // A glob brings in what the module imports itself, too.
        let inner = if let Place::Module(_) = place { &self.modules[to].uses[..] } else { &[] };
        for passed in inner.iter().filter(|passed| !passed.local && (passed.public || self.holds(to, from))) {
            let place = self.resolve(to, &passed.path, &mut Trail::new());
            if let (Place::Module(behind) | Place::Item(behind), Some(name)) = (place, &passed.name) {
                add(behind, each.line, format!("{text}::* with {name}"));
            }
        }
    }

    /// The module that a path in code leads to, unless a `use` of its first name is what imports it.
    fn mentioned(&self, from: Id, path: &[String]) -> Option<Id> {
        let anchored = matches!(path[0].as_str(), "crate" | "self" | "super");
        if !anchored
            && !matches!(self.lookup(from, &path[0], true, &mut Trail::new()), Some(Place::Module(_)))
        {
            return None;
        }
        match self.follow(from, path, true, &mut Trail::new()) {
            Place::Module(to) | Place::Item(to) => Some(to),
            Place::Outside => None,
        }
    }

    /// The ancestor whose macro is in scope because its text stands before the module's.
    fn textual_macro(&self, module: &Module, name: &str) -> Option<Id> {
        if module.macros.contains(name) || module.uses.iter().any(|each| each.name.as_deref() == Some(name)) {
            return None;
        }
        let mut ancestor = module.parent;
        while ancestor != ROOT && !self.modules[ancestor].macros.contains(name) {
            ancestor = self.modules[ancestor].parent;
        }
        self.modules[ancestor].macros.contains(name).then_some(ancestor)
    }

    fn resolve(&self, from: Id, path: &[String], trail: &mut Trail) -> Place {
        self.follow(from, path, false, trail)
    }

    /// Follows a path from a module; `local` also sees what the module's functions import.
    fn follow(&self, from: Id, path: &[String], local: bool, trail: &mut Trail) -> Place {
        let mut module = from;
        for (index, name) in path.iter().enumerate() {
            match (index, name.as_str()) {
                (0, "crate") => module = ROOT,
                (_, "self") => {}
                (_, "super") => module = self.modules[module].parent,
                _ => match self.lookup(module, name, local && index == 0, trail) {
                    Some(Place::Module(next)) => module = next,
                    Some(Place::Item(owner)) => return Place::Item(owner),
                    None | Some(Place::Outside) if index == 0 => return Place::Outside,
                    // Another crate's item that the module hands on, or an item that a macro makes.
                    None | Some(Place::Outside) => return Place::Item(self.exported_macro(module, name)),
                },
            }
        }
        Place::Module(module)
    }

    /// A `#[macro_export]` puts a macro's name at the crate's root.
    fn exported_macro(&self, module: Id, name: &str) -> Id {
        let defines = |id: &Id| self.modules[*id].macros.contains(name);
        if module == ROOT { (0..self.modules.len()).find(defines).unwrap_or(module) } else { module }
    }

    /// What a name is in a module.
    fn lookup(&self, module: Id, name: &str, local: bool, trail: &mut Trail) -> Option<Place> {
        let here = &self.modules[module];
        if let Some(&child) = here.children.iter().find(|&&child| self.modules[child].name() == name) {
            return Some(Place::Module(child));
        }
        if here.items.contains(name) || here.macros.contains(name) {
            return Some(Place::Item(module));
        }
        let step = (module, name.to_string());
        if trail.contains(&step) {
            return None;
        }
        trail.push(step);
        let uses = here.uses.iter().filter(|each| local || !each.local);
        let found = uses
            .clone()
            .find(|each| each.name.as_deref() == Some(name))
            .map(|each| self.resolve(module, &each.path, trail));
        let found = found.or_else(|| {
            uses.filter(|each| each.name.is_none()).find_map(|glob| {
                match self.resolve(module, &glob.path, trail) {
                    Place::Module(of) => self.lookup(of, name, false, trail),
                    Place::Item(_) | Place::Outside => None,
                }
            })
        });
        trail.pop();
        found
    }
}
