//! The objects in packaging/kubernetes have the form that the API server wants.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::api::resource::v1::DeviceClass;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::Path;

/// `object` as it is after it was read as a `T`: what a `T` has not, is not there any more.
fn read<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
    let object: T = serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{error}: {object}"));
    serde_json::to_value(object).expect("JSON")
}

#[test]
fn no_field_is_unknown_or_of_another_type() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes");
    let mut count = 0;
    for file in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        for object in serde_saphyr::from_multiple::<Value>(&text).unwrap() {
            let known = match object["kind"].as_str().unwrap() {
                "ClusterRole" => read::<ClusterRole>(&object),
                "ClusterRoleBinding" => read::<ClusterRoleBinding>(&object),
                "ConfigMap" => read::<ConfigMap>(&object),
                "DaemonSet" => read::<DaemonSet>(&object),
                "DeviceClass" => read::<DeviceClass>(&object),
                "Secret" => read::<Secret>(&object),
                "ServiceAccount" => read::<ServiceAccount>(&object),
                other => panic!("{}: {other}", file.display()),
            };
            assert_eq!(known, object, "{}", file.display());
            count += 1;
        }
    }
    assert!(count >= 11, "only {count} objects");
}
