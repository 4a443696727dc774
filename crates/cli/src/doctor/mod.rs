//! `rdmesh doctor`: diagnosis of missing or wrong settings, with a fix for each.

mod device;
mod failed_requests;
mod host;
mod hosts;
mod limits;
mod packages;
pub(crate) mod path;
pub(crate) mod rates;
mod router;
mod store;
pub(crate) mod tunnel;

use crate::args::DoctorOptions;
use crate::failure::Failure;
use crate::show::{print_json, print_line};
use rdmesh_fabric::{Client, StateDir, printable};
use serde::Serialize;
use serde_json::Value;
use std::process::ExitCode;

/// Runs the checks; the exit status is 1 if any failed.
pub(crate) fn doctor(options: &DoctorOptions, client: &Client, state: &StateDir) -> Result<ExitCode, Failure> {
    let findings = match options.to {
        Some(to) => path::check(&options.net, options.endpoint.as_ref(), to, client)?,
        None => all(client, state),
    };
    if options.output.json {
        print_json(&findings)?;
    } else {
        for finding in &findings {
            print_line(finding.text())?;
        }
    }
    let failed = findings.iter().any(Finding::is_failure);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// All findings, as `--json` prints them.
pub(crate) fn findings(client: &Client, state: &StateDir) -> Result<Value, Failure> {
    Ok(serde_json::to_value(all(client, state))?)
}

fn all(client: &Client, state: &StateDir) -> Vec<Finding> {
    let status = client.status();
    let mut findings = router::check(&status, state);
    let status = status.ok();
    findings.extend(packages::check());
    findings.extend(host::check(status.as_ref(), state));
    findings.extend(limits::check(status.as_ref()));
    findings.extend(device::check(status.as_ref(), client));
    if let Some(status) = &status {
        findings.extend(store::check(status));
        findings.extend(tunnel::check(status, client));
        findings.extend(hosts::check(client));
        findings.extend(failed_requests::check(client));
        findings.extend(rates::check(client));
    }
    findings
}

/// Result of a check.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    level: Level,
    subject: &'static str,
    message: String,
    fix: Option<String>,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// As it should be.
    Ok,
    /// Some things will not work, or not well.
    Warn,
    /// Programs will not find a device.
    Fail,
}

impl Finding {
    /// As it should be.
    pub(crate) fn ok(subject: &'static str, message: impl Into<String>) -> Self {
        Self { level: Level::Ok, subject, message: message.into(), fix: None }
    }

    /// Some things will not work, or not well.
    pub(crate) fn warn(subject: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Warn, subject, message: message.into(), fix: Some(fix.into()) }
    }

    /// Programs will not find a device, or their peer.
    pub(crate) fn fail(subject: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Fail, subject, message: message.into(), fix: Some(fix.into()) }
    }

    /// Whether it is of the severest level.
    pub(crate) fn is_failure(&self) -> bool {
        self.level == Level::Fail
    }

    /// As people read it, with the remedy.
    pub(crate) fn text(&self) -> String {
        let level = match self.level {
            Level::Ok => "ok  ",
            Level::Warn => "warn",
            Level::Fail => "FAIL",
        };
        let mut text = format!("{level}  {}: {}", self.subject, printable(&self.message));
        if let Some(fix) = &self.fix {
            text += &format!("\n        fix: {}", printable(fix));
        }
        text
    }
}
