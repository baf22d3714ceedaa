//! Rust source as tokens, without comments, numbers, characters and lifetimes.

/// What a token is; a mark is one character, or `::`.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Word,
    Text,
    Mark,
}

pub struct Token<'a> {
    pub kind: Kind,
    /// A text's characters stand here without their quotes.
    pub text: &'a str,
    pub line: usize,
}

impl Token<'_> {
    /// Whether this is the keyword or mark `code`; a string literal never is.
    pub fn is(&self, code: &str) -> bool {
        self.kind != Kind::Text && self.text == code
    }
}

pub fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut lexer = Lexer { source, bytes: source.as_bytes(), at: 0, line: 1, tokens: Vec::new() };
    while lexer.at < lexer.bytes.len() {
        lexer.step();
    }
    lexer.tokens
}

struct Lexer<'a> {
    source: &'a str,
    bytes: &'a [u8],
    at: usize,
    line: usize,
    tokens: Vec<Token<'a>>,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    /// Moves to `end` and counts the lines on the way.
    fn skip_to(&mut self, end: usize) {
        let end = end.min(self.bytes.len());
        self.line += self.bytes[self.at..end].iter().filter(|&&byte| byte == b'\n').count();
        self.at = end;
    }

    fn push(&mut self, kind: Kind, start: usize, end: usize) {
        self.tokens.push(Token { kind, text: &self.source[start..end], line: self.line });
    }

    fn step(&mut self) {
        match self.peek(0) {
            b'/' if self.peek(1) == b'/' => {
                let rest = &self.bytes[self.at..];
                self.at += rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
            }
            b'/' if self.peek(1) == b'*' => self.block_comment(),
            b'"' => self.string(),
            b'\'' => self.quote(),
            b':' if self.peek(1) == b':' => {
                self.push(Kind::Mark, self.at, self.at + 2);
                self.at += 2;
            }
            byte if byte.is_ascii_whitespace() => self.skip_to(self.at + 1),
            byte if byte.is_ascii_digit() => self.at = self.word_end(self.at),
            byte if is_word(byte) => self.word(),
            _ => {
                self.push(Kind::Mark, self.at, self.at + 1);
                self.at += 1;
            }
        }
    }

    fn word_end(&self, start: usize) -> usize {
        let length = self.bytes[start..].iter().position(|&byte| !is_word(byte));
        length.map_or(self.bytes.len(), |length| start + length)
    }

    /// A word, or a literal that starts with one: `b"…"`, `r#"…"#`, `b'…'`.
    fn word(&mut self) {
        let (start, end) = (self.at, self.word_end(self.at));
        let word = &self.source[start..end];
        self.at = end;
        match (word, self.peek(0)) {
            ("r" | "br" | "cr", b'"' | b'#') => {
                let hashes = self.bytes[end..].iter().take_while(|&&byte| byte == b'#').count();
                if self.peek(hashes) == b'"' {
                    self.at = end + hashes + 1;
                    let close = format!("\"{}", "#".repeat(hashes));
                    let length = self.source[self.at..].find(&close).unwrap_or(self.bytes.len() - self.at);
                    self.push(Kind::Text, self.at, self.at + length);
                    self.skip_to(self.at + length + close.len());
                } else {
                    // A raw identifier keeps its prefix, so that it is no keyword.
                    self.at = self.word_end(end + 1);
                    self.push(Kind::Word, start, self.at);
                }
            }
            ("b" | "c", b'"') => self.string(),
            ("b", b'\'') => self.quote(),
            _ => self.push(Kind::Word, start, end),
        }
    }

    fn string(&mut self) {
        let start = self.at + 1;
        let mut end = start;
        while end < self.bytes.len() && self.bytes[end] != b'"' {
            end += if self.bytes[end] == b'\\' { 2 } else { 1 };
        }
        let end = end.min(self.bytes.len());
        self.push(Kind::Text, start, end);
        self.skip_to(end + 1);
    }

    /// A character, or a lifetime.
    fn quote(&mut self) {
        let mut rest = self.source[self.at + 1..].char_indices();
        let (first, after) = (rest.next().map(|(_, first)| first), rest.next());
        if first == Some('\\') {
            // The escaped character may itself be a quote.
            let body = self.at + 3;
            let close = self.bytes.iter().skip(body).position(|&byte| byte == b'\'').unwrap_or(0);
            self.skip_to(body + close + 1);
        } else if let Some((length, '\'')) = after {
            self.skip_to(self.at + 1 + length + 1);
        } else {
            self.at = self.word_end(self.at + 1);
        }
    }

    fn block_comment(&mut self) {
        let (mut depth, mut end) = (1, self.at + 2);
        while depth > 0 && end < self.bytes.len() {
            match &self.bytes[end..] {
                [b'/', b'*', ..] => (depth, end) = (depth + 1, end + 2),
                [b'*', b'/', ..] => (depth, end) = (depth - 1, end + 2),
                _ => end += 1,
            }
        }
        self.skip_to(end);
    }
}

fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric() || !byte.is_ascii()
}
