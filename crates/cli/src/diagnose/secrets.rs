//! Secrets, which leave the host in no archive: passwords in URLs, and values that are named as secrets.

use regex::Regex;
use serde_json::Value;
use std::sync::LazyLock;

/// A text without secrets, such as a log or a configuration file.
pub(crate) fn out_of_text(text: &str) -> String {
    let text = USER.replace_all(text, format!("$scheme://{REMOVED}@"));
    NAMED.replace_all(&text, format!("$name$between{REMOVED}")).into_owned()
}

/// A value in JSON, without secrets.
pub(crate) fn out_of_json(value: &Value) -> String {
    let mut value = value.clone();
    clean(&mut value);
    format!("{value:#}\n")
}

fn clean(value: &mut Value) {
    match value {
        Value::String(text) => *text = out_of_text(text),
        Value::Array(values) => values.iter_mut().for_each(clean),
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match value {
                    // Numbers by such a name are counts.
                    Value::String(text) if SECRET.is_match(name) => *text = REMOVED.to_owned(),
                    value => clean(value),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

const REMOVED: &str = "(removed)";

/// User and password of a URL: all up to its last `@`, for a password may have `@` and `/` in it.
static USER: LazyLock<Regex> = LazyLock::new(|| compiled(r#"(?P<scheme>[a-z][a-z0-9+.-]*)://[^\s"']*@"#));
/// The value of a name that says that it is secret.
static NAMED: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r#"(?i)(?P<name>[\w-]*(?:password|passwd|secret|token|private[_-]?key)\b"?)(?P<between>\s*[=:]\s*)(?:"[^"]*"|'[^']*'|[^\s,;&]+)"#,
    )
});
/// Such a name.
static SECRET: LazyLock<Regex> = LazyLock::new(|| compiled("(?i)password|passwd|secret|token|^key$|private"));

fn compiled(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a valid pattern: the tests use each")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn passwords_in_urls_are_removed() {
        let removed = |text: &str| out_of_text(text);
        assert_eq!(
            removed("--store etcd://root:s3cr3t@10.0.0.1:2379,10.0.0.2:2379?tls --workers 2"),
            "--store etcd://(removed)@10.0.0.1:2379,10.0.0.2:2379?tls --workers 2"
        );
        assert_eq!(removed("store = \"etcd://a:p@s/s@host\""), "store = \"etcd://(removed)@host\"");
        let plain = "serving at http://[::1]:80/x, mail to a@b";
        assert_eq!(removed(plain), plain);
    }

    #[test]
    fn values_that_are_named_as_secrets_are_removed() {
        for (text, expected) in [
            ("password = \"open sesame\"\nworkers = 2", "password = (removed)\nworkers = 2"),
            ("RDMESH_TOKEN=abc next", "RDMESH_TOKEN=(removed) next"),
            ("{\"api-secret\": \"x\", \"n\": 1}", "{\"api-secret\": (removed), \"n\": 1}"),
            ("?password-file=/etc/p&tls", "?password-file=/etc/p&tls"),
            ("key=/etc/rdmesh/mesh.key", "key=/etc/rdmesh/mesh.key"),
        ] {
            assert_eq!(out_of_text(text), expected);
        }
    }

    #[test]
    fn secrets_in_json_are_removed_at_any_depth() {
        let value = json!({ "hosts": [{ "key": "a1b2", "store": "etcd://u:p@h" }], "tokens": 3, "name": "a" });
        let expected =
            json!({ "hosts": [{ "key": REMOVED, "store": "etcd://(removed)@h" }], "tokens": 3, "name": "a" });
        assert_eq!(out_of_json(&value), format!("{expected:#}\n"));
    }
}
