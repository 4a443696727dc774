//! Policies of scopes.

use super::{Registry, RegistryError, encode};
use crate::invalid::Validate;
use crate::store::Expect;
use crate::{Policy, PolicyScope, PolicyTree};

impl Registry {
    /// All policies.
    pub fn policies(&self) -> Result<PolicyTree, RegistryError> {
        let entries = self.store.list(POLICIES)?;
        entries.iter().map(|entry| Ok((scope(&entry.key)?, super::decode(entry)?))).collect()
    }

    /// Sets the policy of a scope, or removes it.
    pub fn set_policy(&self, scope: &PolicyScope, policy: Option<&Policy>) -> Result<(), RegistryError> {
        let key = format!("{POLICIES}{scope}");
        match policy {
            Some(policy) => {
                policy.validate()?;
                self.store.put(&key, &encode(policy)?, Expect::Anything, None)?;
            }
            None => {
                self.store.delete(&key, Expect::Anything)?;
            }
        }
        Ok(())
    }
}

fn scope(key: &str) -> Result<PolicyScope, RegistryError> {
    Ok(key.trim_start_matches(POLICIES).parse()?)
}

const POLICIES: &str = "policies/";
