//! Several requests outstanding, many clients, long lives.

mod common;

use common::*;
use rdmesh_chain::Site;
use rdmesh_chain::assemble::assemble;
use rdmesh_chain::build::{Design, Program};
use rdmesh_chain::model::{Fetch, Model, Schedule};
use rdmesh_chain::verify::verify;

#[test]
fn instances_answer_as_many_requests_as_come_at_once() {
    for design in DESIGNS {
        let (program, _) = if_else();
        for count in [1, 2, 5] {
            let chain = program.build(design).unwrap().instances(count).unwrap();
            if count < 3 {
                assert_eq!(verify(&chain), Ok(()), "{chain}");
            }
            assert_eq!(assemble(&chain.to_string()).unwrap(), chain);
            for (fetch, schedule) in every_way().take(6) {
                let mut run = Run::new(chain.clone(), fetch, schedule, |_, _| ());
                let keys = [0, 1, 0, 0, 2, 0, 3, 4, 0, 0, 0, 5, 0];
                keys.iter().for_each(|key| run.model.send(run.installed.receives[0], u56(*key)));
                let answers: Vec<_> = run.settle().into_iter().map(|m| m.imm).collect();
                let expected: Vec<_> = keys.iter().map(|key| Some(if *key == 0 { HIT } else { MISS })).collect();
                assert_eq!(answers, expected, "{count} {design:?} {fetch:?}");
            }
        }
    }
}

#[test]
fn instances_of_offloads_are_verified() {
    for (name, program) in offloads() {
        if ["hash_two_choice", "hash_early_exit", "hash_parallel", "list_unrolled", "lock", "counter"].contains(&name) {
            let chain = program.lower(Design::Local).instances(2).unwrap();
            assert_eq!(verify(&chain), Ok(()), "{chain}");
            assert_eq!(assemble(&chain.to_string()).unwrap(), chain);
        }
    }
}

#[test]
fn what_serves_once_has_no_instances() {
    let mut p = Program::new("once");
    p.on_request();
    let refusal = p.lower(Design::Local).instances(2).unwrap_err().to_string();
    assert!(refusal.contains("end the program with `rearm`"), "{refusal}");
    assert!(list_walk().0.lower(Design::Local).instances(2).is_err());
}

/// Counts go on across 2^16, 2^24 and 2^32 requests, slots and completions.
#[test]
fn counts_cross_powers_of_two() {
    for (number, program) in [if_else().0, hash_get(2).0, list_walk().0].into_iter().enumerate() {
        for design in DESIGNS {
            let chain = program.build(design).unwrap();
            let most = chain.queues.iter().map(|queue| queue.slots.len()).max().unwrap() as u64;
            for power in [1 << 16, 1 << 24, 1_u64 << 32] {
                for lap in [power - 2, power / most - 1] {
                    let mut model = Model::new(Fetch::Earliest);
                    let client = model.create_client();
                    let buffer = model.register_at_client(client, 0x4000, vec![0; BUFFER]);
                    let site = Site { client: Some(client), lap, ..Site::default() };
                    let installed = chain.install_at(&mut model, &site);
                    for _ in 0..4 {
                        let rest = [&0_u64.to_le_bytes()[..], &0_u64.to_le_bytes(), &to(buffer), &[0; 4]].concat();
                        let request: Vec<u8> = u56(0).into_iter().chain(rest).take(request_length(&chain)).collect();
                        model.send(installed.receives[0], request);
                        assert!(model.run(Schedule::First, 10_000), "endless");
                        assert_eq!(model.fault(), None, "{number} {design:?} {lap}");
                        assert_eq!(
                            model.take_messages(client).len().min(1),
                            1,
                            "{number} {design:?} lap {lap}\n{chain}"
                        );
                    }
                }
            }
        }
    }
}

fn request_length(chain: &rdmesh_chain::program::Chain) -> usize {
    chain.receives[0].message(0) as usize
}

/// A table of one program serves several clients, each by a chain of its own.
#[test]
fn clients_share_tables() {
    let (program, x) = if_else();
    let chain = program.build(Design::Local).unwrap();
    let mut model = Model::new(Fetch::Earliest);
    let clients = [model.create_client(), model.create_client()];
    let first = chain.install(&mut model, Some(clients[0]));
    let site = Site { client: Some(clients[1]), beside: Some(&first), lap: 0 };
    let second = chain.install_at(&mut model, &site);
    model.bytes_mut(first.regions[x.number()])[0] = 9;
    for (installed, client) in [(first, clients[0]), (second, clients[1])] {
        model.send(installed.receives[0], u56(9));
        assert!(model.run(Schedule::First, 1000));
        assert_eq!(model.take_messages(client)[0].imm, Some(HIT));
    }
}
