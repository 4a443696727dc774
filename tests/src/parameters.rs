//! Parameters of functions, as the source has them.

use std::collections::BTreeSet;
use syn::visit::{self, Visit};
use syn::{FnArg, ItemMod, Signature, Type};

/// The functions of a source file with a parameter that is a tuple; those of its tests are left out.
pub fn with_tuples(text: &str) -> Result<BTreeSet<String>, syn::Error> {
    let mut found = Found::default();
    found.visit_file(&syn::parse_file(text)?);
    Ok(found.0)
}

#[derive(Default)]
struct Found(BTreeSet<String>);

impl<'ast> Visit<'ast> for Found {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if module.ident != "tests" {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_signature(&mut self, signature: &'ast Signature) {
        let is_tuple = |argument: &FnArg| match argument {
            FnArg::Receiver(_) => false,
            FnArg::Typed(typed) => has_fields(&typed.ty),
        };
        if signature.inputs.iter().any(is_tuple) {
            self.0.insert(signature.ident.to_string());
        }
        visit::visit_signature(self, signature);
    }
}

fn has_fields(of: &Type) -> bool {
    match of {
        Type::Reference(reference) => has_fields(&reference.elem),
        Type::Tuple(tuple) => !tuple.elems.is_empty(),
        _ => false,
    }
}
