//! `rdmesh page`: a page about the router, for a browser on this host.

use crate::args::PageOptions;
use crate::failure::Failure;
use crate::show::print_line;
use rdmesh_fabric::Client;
use rdmesh_page::Page;

/// Serves the page until the process is ended.
pub(crate) fn page(options: &PageOptions, client: Client) -> Result<(), Failure> {
    // A router that is not there is better said here than in the browser.
    client.status()?;
    let page = Page::bind(options.listen, client)?;
    print_line(page.url()?)?;
    page.serve()?;
    Ok(())
}
