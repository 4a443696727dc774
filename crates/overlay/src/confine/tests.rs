//! The programs, checked by this machine's kernel.

use super::*;

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn the_kernel_takes_the_programs_for_any_addresses() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: programs for control groups need root");
        return;
    }
    let cases: [&[&str]; 5] =
        [&[], &["10.1.0.7"], &["fd00::7"], &["10.1.0.7", "fd00::7"], &["10.1.0.7", "10.1.0.8", "fd00::7", "fd00::8"]];
    for case in cases {
        let own = Own::new(&addresses(case)).unwrap();
        for has_errors in [false, true] {
            for (kind, code) in own.programs(has_errors) {
                Program::load(kind, &code).unwrap_or_else(|error| panic!("{case:?} {kind:?}: {error}\n{code:#?}"));
            }
        }
    }
}
