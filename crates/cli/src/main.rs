//! `rdmesh`: the command-line program; RDMA for unprivileged programs.

#![forbid(unsafe_code)]

mod accel;
mod args;
mod capture;
mod chain;
mod completion;
mod container;
mod declare;
mod diagnose;
mod doctor;
mod elf;
mod endpoint;
mod events;
mod failure;
mod faults;
mod gateway;
mod group;
mod held;
mod linger;
mod mpi;
mod network;
mod page;
mod peer;
mod policy;
mod pool;
mod program;
#[cfg(test)]
mod reference;
mod remote;
mod run;
mod show;
mod sockets;
mod table;
mod tenant;
mod top;
mod trace;
mod tunnel;
mod up;
mod vm;

use args::{
    Args, Command, GroupCommand, KeyCommand, LingerCommand, NetworkCommand, PeerCommand, PolicyCommand, TenantCommand,
};
use clap::Parser;
use failure::Failure;
use rdmesh_fabric::{Client, StateDir};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = match args::expand(std::env::args_os()) {
        Ok(arguments) => Args::parse_from(arguments),
        Err(failure) => return failed(&failure),
    };
    let uid = rustix::process::geteuid().as_raw();
    let located = StateDir::locate(args.state_dir, uid).map_err(Failure::from);
    let done = located.and_then(|state| {
        let client = remote::client(&args.router, &args.command, &state)?;
        dispatch(args.command, client, &state)
    });
    match done {
        Ok(code) => code,
        Err(failure) => failed(&failure),
    }
}

fn failed(failure: &Failure) -> ExitCode {
    if !failure.is_silent() {
        show::say(format!("rdmesh: {failure}"));
    }
    failure.code()
}

fn dispatch(command: Command, client: Client, state: &StateDir) -> Result<ExitCode, Failure> {
    let done = match command {
        Command::Up(options) => up::up(&options, state),
        Command::Router(options) => up::router(&options, state),
        Command::Down => up::down(&client, state),
        Command::Run(options) => run::run(options, &client, state),
        Command::Vm(options) => return vm::vm(options, &client, state),
        Command::Accel(options) => accel::accel(options),
        Command::Mpi(options) => return mpi::mpi(&options),
        Command::Endpoint(command) => endpoint::execute(command, &client),
        Command::Pool(command) => pool::execute(command, &client),
        Command::Chain(command) => chain::execute(command, &client),
        Command::Tenant(TenantCommand::Add(options)) => tenant::add(&options.tenant(), &client),
        Command::Tenant(TenantCommand::Ls(options)) => tenant::list(&options, &client),
        Command::Tenant(TenantCommand::Rm { name }) => tenant::remove(&name, &client),
        Command::Group(GroupCommand::Set(options)) => group::set(&options.group(), &client),
        Command::Group(GroupCommand::Ls(options)) => group::list(&options, &client),
        Command::Group(GroupCommand::Show(group)) => group::show(&group, &client),
        Command::Group(GroupCommand::Rm(group)) => group::remove(&group, &client),
        Command::Policy(PolicyCommand::Ls(options)) => policy::list(&options, &client),
        Command::Policy(PolicyCommand::Set(options)) => policy::set(&options.scope, Some(options.policy()), &client),
        Command::Policy(PolicyCommand::Rm { scope }) => policy::set(&scope, None, &client),
        Command::Linger(LingerCommand::Ls(options)) => linger::list(&options, &client),
        Command::Linger(LingerCommand::End(options)) => linger::end(&options, &client),
        Command::Key(KeyCommand::Rotate) => peer::rotate_own(&client),
        Command::Peer(PeerCommand::Add { host, address, key }) => peer::add(&host, address, key.as_deref(), &client),
        Command::Peer(PeerCommand::Key) => peer::key(),
        Command::Peer(PeerCommand::Rotate { host, key }) => peer::rotate(host.as_ref(), &key, &client),
        Command::Peer(PeerCommand::Endpoint(options)) => peer::add_endpoint(options, &client),
        Command::Peer(PeerCommand::Rm { host, address, net }) => peer::remove(&host, &net, address, &client),
        Command::Peer(PeerCommand::Ls(options)) => peer::list(&options, &client),
        Command::Network(NetworkCommand::Rm { network }) => network::remove(&network, &client),
        Command::Network(NetworkCommand::Attach { network, interface, vni }) => {
            network::attach(&network, interface, vni, &client)
        }
        Command::Network(NetworkCommand::Detach { network, interface }) => {
            network::detach(&network, &interface, &client)
        }
        Command::Network(NetworkCommand::Add(options)) => network::add(&options.network(), &client),
        Command::Network(NetworkCommand::Ls(options)) => network::list(&options, &client),
        Command::Apply(options) => declare::apply(&options, &client),
        Command::Get(options) => declare::get(&options, &client),
        Command::Capture(options) => capture::capture(&options, &client),
        Command::Faults(options) => faults::faults(options, &client),
        Command::ContainerArgs(options) => container::arguments(options, &client),
        Command::Cdi(options) => container::cdi(options, &client),
        Command::Sockets(options) => sockets::list(&options, &client),
        Command::Ps(options) => show::ps(&options, &client),
        Command::Events(options) => events::events(&options, &client),
        Command::Top(options) => top::top(&options, &client),
        Command::Stats(options) => show::stats(&options, &client),
        Command::Page(options) => page::page(&options, client),
        Command::Gateway(options) => gateway::gateway(&options, client),
        Command::Completion { shell } => completion::completion(shell),
        Command::Diagnose(options) => diagnose::diagnose(&options, &client, state),
        Command::Trace(options) => return trace::trace(&options, &client),
        Command::Doctor(options) => return doctor::doctor(&options, &client, state),
    };
    done.map(|()| ExitCode::SUCCESS)
}
