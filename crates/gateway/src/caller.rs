//! A caller, as its certificate describes it.

use rdmesh_fabric::Name;
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

/// A caller's name and role.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Caller {
    pub(crate) name: String,
    pub(crate) role: Role,
}

/// Set of rights.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// An operator.
    Admin,
    /// A reader, for example a monitoring system.
    Reader,
    /// Someone of a tenant.
    Tenant(Name),
}

impl Caller {
    /// The caller with a certificate whose chain and term TLS has checked.
    pub(crate) fn of_certificate(certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|e| format!("the certificate: {e}"))?;
        let texts = |attributes: Vec<&x509_parser::x509::AttributeTypeAndValue<'_>>| {
            attributes.into_iter().filter_map(|attribute| attribute.as_str().ok().map(str::to_owned)).collect()
        };
        let subject = parsed.subject();
        Self::of_subject(texts(subject.iter_common_name().collect()), texts(subject.iter_organization().collect()))
    }

    /// The caller whose certificate has these common names and organizations.
    fn of_subject(names: Vec<String>, organizations: Vec<String>) -> Result<Self, String> {
        let is_plain = |name: &str| name.len() <= LONGEST_NAME && name.bytes().all(|byte| byte.is_ascii_graphic());
        let [name] = &names[..] else { return Err("the certificate must have one common name (CN)".to_owned()) };
        if !is_plain(name) {
            return Err(format!(
                "the certificate's common name (CN) must have {LONGEST_NAME} visible characters of ASCII at most"
            ));
        }
        // One role: with several it would not be clear which one an order was given in.
        let mut roles = organizations.iter().filter_map(|organization| organization.strip_prefix(PREFIX));
        let (Some(role), None) = (roles.next(), roles.next()) else {
            return Err(format!(
                "the certificate must have one organization (O) of {PREFIX}admin, {PREFIX}reader or {PREFIX}tenant:NAME"
            ));
        };
        let role = match (role, role.strip_prefix("tenant:")) {
            ("admin", _) => Role::Admin,
            ("reader", _) => Role::Reader,
            (_, Some(tenant)) => {
                Role::Tenant(Name::try_from(tenant.to_owned()).map_err(|e| format!("the certificate's tenant: {e}"))?)
            }
            _ => return Err(format!("the certificate's organization (O) {PREFIX}{role} is no role")),
        };
        Ok(Self { name: name.clone(), role })
    }
}

/// Beginning of a role in a certificate.
const PREFIX: &str = "rdmesh:";
/// Bytes of a common name (X.520, ub-common-name).
const LONGEST_NAME: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str], organizations: &[&str]) -> Result<Role, String> {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        Caller::of_subject(owned(names), owned(organizations)).map(|caller| caller.role)
    }

    #[test]
    fn certificates_name_one_role() {
        assert_eq!(of(&["ann"], &["rdmesh:admin"]), Ok(Role::Admin));
        assert_eq!(of(&["ann"], &["Example Ltd", "rdmesh:reader"]), Ok(Role::Reader));
        let acme = Name::try_from("acme".to_owned()).expect("a name");
        assert_eq!(of(&["ann"], &["rdmesh:tenant:acme"]), Ok(Role::Tenant(acme)));
        for organizations in [
            &[][..],
            &["admin"],
            &["rdmesh:"],
            &["rdmesh:root"],
            &["rdmesh:admin:x"],
            &["rdmesh:tenant"],
            &["rdmesh:tenant:"],
            &["rdmesh:tenant:a/b"],
            &["RDMESH:admin"],
            &["rdmesh:reader", "rdmesh:admin"],
        ] {
            assert!(of(&["ann"], organizations).is_err(), "{organizations:?}");
        }
    }

    #[test]
    fn certificates_name_one_caller() {
        let long = "x".repeat(LONGEST_NAME + 1);
        for names in [&[][..], &["a", "b"], &["a b"], &["a\nb"], &["ä"], &[&long]] {
            assert!(of(names, &["rdmesh:admin"]).is_err(), "{names:?}");
        }
    }
}
