//! Labels of endpoints: what their owners say about them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Labels of an endpoint, by which others find it; rdmesh itself gives them no meaning. A key has 1 to 63 of
/// `a-z A-Z 0-9 . _ - /`, a value at most 253 of these; an endpoint has at most 16.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
#[schemars(with = "BTreeMap<String, String>")]
pub struct Labels(BTreeMap<String, String>);

/// Key of the label with the namespace of a pod of Kubernetes.
pub const POD_NAMESPACE: &str = "kubernetes.io/namespace";
/// Key of the label with the name of a pod of Kubernetes.
pub const POD: &str = "kubernetes.io/pod";

/// Error of labels that are not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLabels {
    /// A key or a value has wrong characters or a wrong length.
    #[error(
        "`{0}` is not a label: KEY=VALUE, a key of 1 to {LONGEST_KEY} and a value of at most {LONGEST_VALUE} letters, digits, `.`, \
         `_`, `-` or `/`"
    )]
    Label(String),
    /// There are too many.
    #[error("an endpoint has at most {MOST} labels")]
    TooMany,
}

impl Labels {
    /// Labels from texts `KEY=VALUE`; the last one of a key counts.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidLabels> {
        let pair = |text: &'a str| {
            let pair = text.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
            pair.ok_or_else(|| InvalidLabels::Label(text.to_owned()))
        };
        texts.into_iter().map(pair).collect::<Result<BTreeMap<_, _>, _>>()?.try_into()
    }

    /// Labels of an endpoint of a pod. Names of Kubernetes are valid labels.
    pub fn of_pod(namespace: &str, pod: &str) -> Self {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        BTreeMap::from([pair(POD_NAMESPACE, namespace), pair(POD, pod)]).try_into().unwrap_or_default()
    }

    /// The value of a key.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// All of them, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl TryFrom<BTreeMap<String, String>> for Labels {
    type Error = InvalidLabels;

    fn try_from(labels: BTreeMap<String, String>) -> Result<Self, InvalidLabels> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        let is_text = |text: &str, longest| text.len() <= longest && text.chars().all(is_allowed);
        let is_label = |key: &String, value: &String| {
            !key.is_empty() && is_text(key, LONGEST_KEY) && is_text(value, LONGEST_VALUE)
        };
        if let Some((key, value)) = labels.iter().find(|(key, value)| !is_label(key, value)) {
            return Err(InvalidLabels::Label(format!("{key}={value}")));
        }
        if labels.len() > MOST { Err(InvalidLabels::TooMany) } else { Ok(Self(labels)) }
    }
}

impl From<Labels> for BTreeMap<String, String> {
    fn from(labels: Labels) -> Self {
        labels.0
    }
}

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.iter().map(|(key, value)| format!("{key}={value}")).collect();
        f.write_str(&texts.join(","))
    }
}

const LONGEST_KEY: usize = 63;
/// As long as the longest name of Kubernetes.
const LONGEST_VALUE: usize = 253;
/// Most labels of an endpoint.
const MOST: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_pairs_of_short_texts() {
        let labels = Labels::parse(["app=db", "kubernetes.io/pod=web-1", "empty=", "app=web"]).unwrap();
        assert_eq!((labels.value("app"), labels.value("empty"), labels.value("x")), (Some("web"), Some(""), None));
        assert_eq!(labels.to_string(), "app=web,empty=,kubernetes.io/pod=web-1");
        let json = serde_json::to_string(&labels).unwrap();
        assert_eq!(serde_json::from_str::<Labels>(&json).unwrap(), labels);
        let long = format!("{}=x", "k".repeat(64));
        for wrong in ["app", "=x", "a b=c", "a=ü", "a=b=c", &long] {
            assert!(Labels::parse([wrong]).is_err(), "{wrong}");
        }
        let many: Vec<String> = (0..17).map(|number| format!("k{number}=")).collect();
        assert_eq!(Labels::parse(many.iter().map(String::as_str)), Err(InvalidLabels::TooMany));
        assert!(serde_json::from_str::<Labels>(r#"{"a b":"c"}"#).is_err());
    }
}
