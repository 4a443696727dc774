//! `rdmesh apply` and `rdmesh get`: what an operator has declared, as one file.
//!
//! * [`declaration`]: the file, and the objects in it.
//! * [`plan`]: what has to be done so that the router has what the file says.

mod declaration;
mod plan;

use crate::args::{ApplyOptions, Format, GetOptions};
use crate::failure::Failure;
use crate::show::{print_json, print_line};
use crate::table::Table;
use declaration::Declaration;
use plan::{Action, Plan};
use rdmesh_fabric::Client;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

/// Lets the router have what a file says. What is not in the file stays as it is, unless it is to be pruned.
pub(crate) fn apply(options: &ApplyOptions, client: &Client) -> Result<(), Failure> {
    let is_standard_input = options.file == Path::new("-");
    let shown = if is_standard_input { "standard input".into() } else { options.file.display().to_string() };
    let text = read(&options.file).map_err(|error| Failure::new(format_args!("cannot read {shown}: {error}")))?;
    let wanted = Declaration::parse(&text).map_err(|error| Failure::new(format_args!("{shown}: {error}")))?;
    let present = Declaration::of_router(client)?;
    let mut plan = Plan::new(&wanted, &present).map_err(|error| Failure::new(format_args!("{shown}: {error}")))?;
    plan.prune(&options.prune, &wanted, &present);
    for (number, change) in plan.changes().iter().enumerate() {
        if !options.dry_run {
            change.carry_out(client).map_err(|error| {
                let made = if number > 0 { format!(" ({number} changes were made before)") } else { String::new() };
                Failure::new(format_args!("{} `{}`: {error}{made}", change.object().kind(), change.object().key()))
            })?;
        }
        if !options.output.json {
            print_line(change.describe(options.dry_run))?;
        }
    }
    if options.output.json {
        return print_json(&plan.report(options.dry_run));
    }
    let [created, changed, removed] = [Action::Create, Action::Change, Action::Remove].map(|action| plan.count(action));
    let unchanged = plan.unchanged();
    let would = if options.dry_run { "would be " } else { "" };
    print_line(format_args!(
        "{would}created: {created}, changed: {changed}, removed: {removed}, unchanged: {unchanged}"
    ))
}

/// Prints what has been declared, in the form that `apply` reads, or as a table.
pub(crate) fn get(options: &GetOptions, client: &Client) -> Result<(), Failure> {
    let declared = Declaration::of_router(client)?.only(&options.kinds);
    match options.output {
        Format::Json => print_json(&declared.to_value()),
        Format::Yaml => print_line(serde_saphyr::to_string(&declared.to_value())?.trim_end()),
        Format::Wide => {
            let mut table = Table::new(&["KIND", "NAME", "FIELDS"]);
            for object in declared.objects() {
                table.row([object.kind().to_owned(), object.key(), object.details()]);
            }
            print_line(table)
        }
    }
}

fn read(file: &Path) -> io::Result<String> {
    if file != Path::new("-") {
        return fs::read_to_string(file);
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(text)
}
