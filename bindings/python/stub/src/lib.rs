//! `#[documented]`: the docstrings of the Python module are those of the package's type stub, which is their only source.

mod stub;

use proc_macro::{Delimiter, Group, Ident, Literal, Punct, Spacing, Span, TokenStream, TokenTree};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;
use std::{env, fs};

/// The stub, in the folder of the package that is compiled.
const STUB: &str = "python/gdsync/__init__.pyi";

/// Gives a function, a class, or all methods of an `impl` block the docstrings of the stub. A public one without a docstring does not
/// compile.
#[proc_macro_attribute]
pub fn documented(_: TokenStream, item: TokenStream) -> TokenStream {
    expand(item).unwrap_or_else(|(text, span)| {
        let error = format!("compile_error!({text:?});").parse::<TokenStream>().unwrap_or_default();
        error.into_iter().map(|mut token| (token.set_span(span), token).1).collect()
    })
}

/// Expands to an array of the stub's docstrings: names and texts.
#[proc_macro]
pub fn docstrings(_: TokenStream) -> TokenStream {
    let all = texts().as_ref().map(|all| format!("{:?}", all.iter().collect::<Vec<_>>()));
    all.unwrap_or_else(|text| format!("compile_error!({text:?})")).parse().unwrap_or_default()
}

/// A message of the compiler, and its place.
type Refusal = (String, Span);

fn texts() -> &'static Result<BTreeMap<String, String>, String> {
    static TEXTS: OnceLock<Result<BTreeMap<String, String>, String>> = OnceLock::new();
    TEXTS.get_or_init(|| {
        let path = Path::new(&env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join(STUB);
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(stub::docstrings(&text))
    })
}

fn expand(item: TokenStream) -> Result<TokenStream, Refusal> {
    let mut tokens: Vec<TokenTree> = item.into_iter().collect();
    let kinds = ["impl", "struct", "fn"];
    let found = tokens.windows(2).find_map(|pair| match pair {
        [TokenTree::Ident(kind), TokenTree::Ident(name)] if kinds.contains(&kind.to_string().as_str()) => {
            Some((kind.to_string(), name.clone()))
        }
        _ => None,
    });
    let Some((kind, name)) = found else {
        return Err(("documented: no impl, struct or fn".to_owned(), Span::call_site()));
    };
    if kind == "impl"
        && let Some(TokenTree::Group(body)) = tokens.pop()
    {
        let methods = methods(body.stream(), &name.to_string())?;
        return Ok(tokens.into_iter().chain([Group::new(Delimiter::Brace, methods).into()]).collect());
    }
    Ok(attribute(&name.to_string(), &name)?.chain(tokens).collect())
}

/// Puts an attribute before each function of a block.
fn methods(body: TokenStream, class: &str) -> Result<TokenStream, Refusal> {
    let (mut all, mut item) = (Vec::new(), Vec::new());
    for token in body {
        let is_end = matches!(&token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
        item.push(token);
        if is_end {
            let name = item.windows(2).find_map(|pair| match pair {
                [TokenTree::Ident(word), TokenTree::Ident(name)] if word.to_string() == "fn" => Some(name),
                _ => None,
            });
            // A constructor's text is in its class's, and methods with a meaning for the language need none.
            if let Some(name) = name.filter(|name| !is_special(&name.to_string())) {
                all.extend(attribute(&format!("{class}.{name}"), name)?);
            }
            all.append(&mut item);
        }
    }
    all.append(&mut item);
    Ok(all.into_iter().collect())
}

fn is_special(name: &str) -> bool {
    name == "new" || name.starts_with("__")
}

/// Returns the tokens of a `doc` attribute.
fn attribute(name: &str, place: &Ident) -> Result<impl Iterator<Item = TokenTree> + use<>, Refusal> {
    let refused = |text: String| Err((text, place.span()));
    let text = match texts() {
        Ok(all) => all.get(name),
        Err(error) => return refused(error.clone()),
    };
    let Some(text) = text else { return refused(format!("{STUB} has no docstring of {name}")) };
    let doc: [TokenTree; 3] = [
        Ident::new("doc", Span::call_site()).into(),
        Punct::new('=', Spacing::Alone).into(),
        Literal::string(text).into(),
    ];
    let attribute: [TokenTree; 2] = [
        Punct::new('#', Spacing::Alone).into(),
        Group::new(Delimiter::Bracket, doc.into_iter().collect()).into(),
    ];
    Ok(attribute.into_iter())
}
