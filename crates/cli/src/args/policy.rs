//! Arguments of `rdmesh policy`.

use super::OutputOptions;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use rdmesh_fabric::{Policy, PolicyScope, Priority, Rate};

#[derive(Subcommand)]
pub(crate) enum PolicyCommand {
    /// List policies
    Ls(OutputOptions),
    /// Set the policy of a scope: all of it, what is left out is without limit
    Set(SetPolicy),
    /// Remove the policy of a scope
    Rm {
        /// host/NAME, tenant/NAME or endpoint/NETWORK/NAME
        scope: PolicyScope,
    },
}

#[derive(ClapArgs)]
pub(crate) struct SetPolicy {
    /// host/NAME, tenant/NAME or endpoint/NETWORK/NAME
    pub(crate) scope: PolicyScope,
    /// Payload rate of the scope, in bits a second: 800k, 100M, 10G
    #[arg(long, value_name = "BITS", value_parser = rate)]
    rate: Option<u64>,
    /// Messages a second of the scope
    #[arg(long, value_name = "N", value_parser = rate)]
    messages: Option<u64>,
    /// Bytes sent at full speed after a pause [default: what the rate allows in 10 ms]
    #[arg(long, value_name = "BYTES", requires = "rate")]
    burst: Option<u64>,
    /// Payload rate of each queue pair, in bits a second
    #[arg(long, value_name = "BITS", value_parser = rate)]
    qp_rate: Option<u64>,
    /// Messages a second of each queue pair
    #[arg(long, value_name = "N", value_parser = rate)]
    qp_messages: Option<u64>,
    /// Scheduling class: high before normal before low [default: normal]
    #[arg(long)]
    priority: Option<PriorityArg>,
    /// Relative share under contention [default: 100]
    #[arg(long, value_name = "N")]
    weight: Option<u16>,
}

#[derive(Clone, Copy, ValueEnum)]
enum PriorityArg {
    /// Before all others: limit its rate, or it starves them
    High,
    Normal,
    /// After all others
    Low,
}

impl SetPolicy {
    pub(crate) fn policy(&self) -> Policy {
        let of = |bits_per_second: Option<u64>, messages_per_second: Option<u64>, burst_bytes| {
            let is_limited = bits_per_second.is_some() || messages_per_second.is_some();
            is_limited.then_some(Rate { bits_per_second, messages_per_second, burst_bytes, burst_messages: None })
        };
        Policy {
            rate: of(self.rate, self.messages, self.burst),
            qp_rate: of(self.qp_rate, self.qp_messages, None),
            priority: self.priority.map(|priority| match priority {
                PriorityArg::High => Priority::High,
                PriorityArg::Normal => Priority::Normal,
                PriorityArg::Low => Priority::Low,
            }),
            weight: self.weight,
            ..Policy::default()
        }
    }
}

/// A number with a decimal prefix.
pub(super) fn rate(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor: u64 = match &text[digits.len()..] {
        "" => 1,
        "k" | "K" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        unit => return Err(format!("`{unit}` is not a unit: k, M, G or T")),
    };
    let value: f64 = digits.parse().map_err(|_| format!("`{digits}` is not a number"))?;
    let product = value * factor as f64;
    if product.is_finite() && product >= 1.0 { Ok(product.round() as u64) } else { Err("must be at least 1".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_decimal_prefixes() {
        assert_eq!(
            ["5", "800k", "2.5G", "1T"].map(|text| rate(text).unwrap()),
            [5, 800_000, 2_500_000_000, 10_u64.pow(12)]
        );
        assert!(["", "0", "-1", "3x", "inf", "nan"].iter().all(|text| rate(text).is_err()));
    }
}
