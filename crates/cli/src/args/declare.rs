//! Options of `rdmesh apply` and `rdmesh get`.

use super::OutputOptions;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Options of `rdmesh apply`.
#[derive(Args)]
pub(crate) struct ApplyOptions {
    /// The file, in YAML or JSON; `-` for standard input
    #[arg(long, short, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Remove the objects of these kinds that are not in the file, after all else is done; comma-separated
    ///
    /// Never endpoints that go with a program, and none of a pool's.
    #[arg(long, value_name = "KINDS", value_enum, value_delimiter = ',')]
    pub(crate) prune: Vec<Kind>,
    /// Show what would be created, changed and removed, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// Options of `rdmesh get`.
#[derive(Args)]
pub(crate) struct GetOptions {
    /// Kinds of objects [default: all]
    #[arg(value_enum)]
    pub(crate) kinds: Vec<Kind>,
    /// Format
    #[arg(long, short, value_enum, default_value_t = Format::Yaml)]
    pub(crate) output: Format,
}

/// Kinds of objects that an operator declares.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Kind {
    Tenants,
    Networks,
    Groups,
    Policies,
    Pools,
    Endpoints,
}

/// Formats of a declaration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Format {
    Yaml,
    Json,
    /// A table, a line for each object
    Wide,
}
