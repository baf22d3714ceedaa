//! The parts of a file that the guard reads: modules, names, `use` trees and paths.

use crate::lex::{Kind, Token};
use crate::tree::{Mention, Use};

pub enum Found<'a> {
    Item(String),
    Macro(String),
    Use(Vec<Use>),
    Mention(Mention),
    /// `mod name;`, or with a body `mod name { … }`.
    Module {
        name: String,
        path: Option<String>,
        line: usize,
        test: bool,
        body: Option<&'a [Token<'a>]>,
    },
}

pub struct Parser<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
    /// Brackets that are open; at 0 stand the module's own items.
    depth: usize,
    /// Of the attributes before the next item.
    path: Option<String>,
    test: bool,
    public: bool,
    mentions: Vec<Mention>,
    /// The end of the `extern` block that is open.
    foreign: usize,
}

const ITEMS: [&str; 8] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static"];

impl<'a> Parser<'a> {
    pub fn new(tokens: &'a [Token<'a>]) -> Self {
        let mentions = Vec::new();
        Self { tokens, at: 0, depth: 0, path: None, test: false, public: false, mentions, foreign: 0 }
    }

    pub fn next(&mut self) -> Option<Found<'a>> {
        loop {
            let token = self.tokens.get(self.at)?;
            if token.is("#") && self.is(1, "[") {
                self.attribute();
            } else if token.is("pub") {
                self.public = true;
                let scoped =
                    self.is(1, "(") && ["crate", "super", "self", "in"].iter().any(|scope| self.is(2, scope));
                self.at = if scoped { self.close(self.at + 1) + 1 } else { self.at + 1 };
            } else if self.test && !token.is("mod") {
                self.mentions.clear();
                (self.path, self.test, self.public) = (None, false, false);
                self.skip_item();
            } else if let Some(mention) = self.mentions.pop() {
                return Some(Found::Mention(mention));
            } else {
                let (path, test) = (self.path.take(), std::mem::take(&mut self.test));
                let public = std::mem::take(&mut self.public);
                let found = match token.text {
                    "mod" if self.word(1).is_some() && (self.is(2, ";") || self.is(2, "{")) => {
                        self.module(path, test)
                    }
                    "use" if token.kind == Kind::Word && !self.is(1, "<") => {
                        Found::Use(self.use_item(public))
                    }
                    _ => match self.code(token) {
                        Some(found) => found,
                        None => continue,
                    },
                };
                return Some(found);
            }
        }
    }

    fn is(&self, ahead: usize, code: &str) -> bool {
        self.tokens.get(self.at + ahead).is_some_and(|token| token.is(code))
    }

    fn word(&self, ahead: usize) -> Option<&'a str> {
        self.tokens.get(self.at + ahead).filter(|token| token.kind == Kind::Word).map(|token| token.text)
    }

    /// The token that closes the bracket at `open`, or the end.
    fn close(&self, open: usize) -> usize {
        let mut depth = 0;
        for (index, token) in self.tokens.iter().enumerate().skip(open) {
            depth += step(token);
            if depth == 0 {
                return index;
            }
        }
        self.tokens.len()
    }

    /// Keeps what an attribute says about its item, and the paths inside.
    fn attribute(&mut self) {
        let end = self.close(self.at + 1);
        let inside = &self.tokens[self.at + 2..end];
        match inside {
            [cfg, _, condition @ .., _] if cfg.is("cfg") => {
                self.test |= Condition { tokens: condition }.is_test();
            }
            [path, _, file] if path.is("path") => self.path = Some(file.text.into()),
            _ => {
                let mut inner = Parser::new(inside);
                while let Some(found) = inner.next() {
                    if let Found::Mention(mention) = found {
                        self.mentions.push(mention);
                    }
                }
            }
        }
        self.at = end + 1;
    }

    fn module(&mut self, path: Option<String>, test: bool) -> Found<'a> {
        let (name, line) = (self.tokens[self.at + 1].text.into(), self.tokens[self.at].line);
        let end = if self.is(2, "{") { self.close(self.at + 2) } else { self.at + 2 };
        let body = self.is(2, "{").then(|| &self.tokens[self.at + 3..end]);
        self.at = end + 1;
        Found::Module { name, path, line, test, body }
    }

    /// Steps over the item, field or statement that an attribute keeps for tests.
    fn skip_item(&mut self) {
        let starts = |words: &[&str]| words.iter().any(|word| self.is(0, word));
        let function = ["fn", "unsafe", "async", "extern"].iter().any(|word| self.is(1, word));
        let to_semicolon = starts(&["use", "let", "const", "static", "type"]) && !function;
        let has_commas =
            to_semicolon || starts(&ITEMS) || starts(&["impl", "unsafe", "async", "extern", "macro_rules"]);
        while let Some(token) = self.tokens.get(self.at) {
            let block = token.is("{");
            match step(token) {
                1 => self.at = self.close(self.at),
                -1 => return,
                _ => {}
            }
            self.at += 1;
            if token.is(";") || (block && !to_semicolon) || (token.is(",") && !has_commas) {
                return;
            }
        }
    }

    fn use_item(&mut self, public: bool) -> Vec<Use> {
        self.at += 1;
        let mut uses = Vec::new();
        self.use_tree(&[], &mut uses);
        for each in &mut uses {
            (each.public, each.local) = (public, self.depth > 0);
        }
        while !self.is(0, ";") && self.at < self.tokens.len() {
            self.at += 1;
        }
        uses
    }

    fn use_tree(&mut self, prefix: &[String], uses: &mut Vec<Use>) {
        let mut path = prefix.to_vec();
        while let Some(token) = self.tokens.get(self.at) {
            let line = token.line;
            self.at += 1;
            if token.is("::") {
                if path.is_empty() {
                    // No module has this name: what follows is another crate's.
                    path.push(String::new());
                }
            } else if token.is("*") {
                uses.push(Use { path, name: None, public: false, local: false, line });
                return;
            } else if token.is("{") {
                while self.at < self.tokens.len() && !self.is(0, "}") {
                    self.use_tree(&path, uses);
                    if self.is(0, ",") {
                        self.at += 1;
                    }
                }
                self.at += 1;
                return;
            } else if token.kind == Kind::Word {
                if !token.is("self") || path.is_empty() {
                    path.push(token.text.into());
                }
                if !self.is(0, "::") {
                    let mut name = path.last().cloned();
                    if self.is(0, "as") {
                        name = self.word(1).map(String::from);
                        self.at += 2;
                    }
                    uses.push(Use { path, name, public: false, local: false, line });
                    return;
                }
            } else if !token.is("$") {
                return;
            }
        }
    }

    /// One token of code, or a path.
    fn code(&mut self, token: &Token<'a>) -> Option<Found<'a>> {
        let before = self.at.checked_sub(1).map(|before| &self.tokens[before]);
        let after = |mark: &str| before.is_some_and(|before| before.is(mark));
        let follows_path = after("::") || (after("$") && !token.is("crate"));
        let line = token.line;
        if token.is("extern") && self.is(2, "{") {
            self.foreign = self.close(self.at + 2);
        }
        self.depth = self.depth.saturating_add_signed(step(token));
        self.at += 1;
        if token.kind != Kind::Word || follows_path {
            return None;
        }
        if (self.depth == 0 || (self.depth == 1 && self.at < self.foreign)) && ITEMS.contains(&token.text) {
            let name = self.word(usize::from(self.is(0, "mut")));
            return name.filter(|name| !ITEMS.contains(name)).map(|name| Found::Item(name.into()));
        }
        if self.is(0, "!") {
            if token.is("macro_rules") {
                return self.word(1).map(|name| Found::Macro(name.into()));
            }
            let called = ["(", "[", "{"].iter().any(|open| self.is(1, open));
            return called.then_some(Found::Mention(Mention {
                path: vec![token.text.into()],
                call: true,
                line,
            }));
        }
        let mut path = vec![token.text.to_string()];
        while self.is(0, "::")
            && let Some(word) = self.word(1)
        {
            path.push(word.into());
            self.at += 2;
        }
        (path.len() > 1).then_some(Found::Mention(Mention { path, call: false, line }))
    }
}

fn step(token: &Token<'_>) -> isize {
    match token.text {
        _ if token.kind != Kind::Mark => 0,
        "(" | "[" | "{" => 1,
        ")" | "]" | "}" => -1,
        _ => 0,
    }
}

/// What stands inside a `cfg(…)`.
struct Condition<'a> {
    tokens: &'a [Token<'a>],
}

impl Condition<'_> {
    /// Whether the condition holds in builds for tests, doctests and fuzzing only.
    fn is_test(&self) -> bool {
        match self.tokens {
            [word] => ["test", "doctest", "fuzzing"].iter().any(|test| word.is(test)),
            [all, _, inner @ .., _] if all.is("all") => parts(inner).any(|part| part.is_test()),
            [any, _, inner @ .., _] if any.is("any") => parts(inner).all(|part| part.is_test()),
            _ => false,
        }
    }
}

/// The conditions between the commas of an `all(…)` or `any(…)`.
fn parts<'a>(tokens: &'a [Token<'a>]) -> impl Iterator<Item = Condition<'a>> {
    let mut depth = 0;
    let split = tokens.split(move |token| {
        depth += step(token);
        depth == 0 && token.is(",")
    });
    split.filter(|part| !part.is_empty()).map(|tokens| Condition { tokens })
}
