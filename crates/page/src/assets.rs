//! Files of the page, as they are.

use axum::Router;
use axum::http::header;
use axum::routing::get;

/// Their routes.
pub(crate) fn routes() -> Router {
    FILES.iter().fold(Router::new(), |router, file| {
        router.route(file.path, get(|| async { ([(header::CONTENT_TYPE, file.kind)], file.text) }))
    })
}

struct File {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

const FILES: [File; 4] = [
    File { path: "/", kind: "text/html; charset=utf-8", text: include_str!("../assets/index.html") },
    File { path: "/page.css", kind: "text/css; charset=utf-8", text: include_str!("../assets/page.css") },
    File { path: "/page.js", kind: "text/javascript; charset=utf-8", text: include_str!("../assets/page.js") },
    File { path: "/table.js", kind: "text/javascript; charset=utf-8", text: include_str!("../assets/table.js") },
];
