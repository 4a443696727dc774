//! Values in linked lists: `rdmesh_list_*`.
#![allow(unsafe_code)]

use super::answer::Answer;
use super::area::Area;
use super::border::{Failure, Result, code, free, given, given_mut, list, object, store};
use super::hash::{design, put_message};
use super::service::Service;
use super::text::Verified;
use libc::{c_int, c_void};
use rdmesh_chain::build::Design;
use rdmesh_chain::offload::Buffer;
use rdmesh_chain::offload::list::{Client, Lists as Nodes, Shape as ListShape, Walk};
use rdmesh_preload::replace;
use rustix::io::Errno;
use std::sync::Arc;

/// `struct rdmesh_list_shape`.
#[repr(C)]
struct Shape {
    nodes: u64,
    record_size: u64,
    walk: u32,
    hops: u32,
}

/// A server's lists in the memory of a service.
struct Lists {
    nodes: Nodes,
    areas: [Arc<Area>; 2],
}

impl Shape {
    fn parse(&self) -> Result<ListShape> {
        let hops = self.hops as usize;
        let walk = match self.walk {
            2 => Walk::Loop,
            _ if !(1..=MOST_HOPS).contains(&hops) => {
                return Err(Failure::invalid(format_args!("`hops` is 1 to {MOST_HOPS}")));
            }
            0 => Walk::Unrolled(hops),
            1 => Walk::Break(hops),
            other => return Err(Failure::invalid(format_args!("{other} is no walk"))),
        };
        let Self { nodes, record_size, .. } = *self;
        let fits = (1..=MOST).contains(&nodes) && (1..=MOST).contains(&record_size) && record_size.is_multiple_of(8);
        if !fits || nodes.checked_mul(record_size).is_none_or(|bytes| bytes > MOST) {
            return Err(Failure::invalid(
                "there is at least a node; `record_size` is a multiple of 8, of 2^40 bytes in all at most",
            ));
        }
        Ok(ListShape { walk, nodes, record_size })
    }
}

replace! {
    /// See `rdmesh_chain.h`, as for all of these.
    fn rdmesh_list_chain(shape: *const Shape, number: u32) -> *mut Verified {
        object(|| {
            // SAFETY: what the program passes is as the header says; so it is below.
            let shape = unsafe { given(shape, "the shape")? }.parse()?;
            Verified::new(shape.program().lower(design(number)?))
        })
    }

    /// Opens lists.
    fn rdmesh_list_open(shape: *const Shape, service: *const Service) -> *mut Lists {
        object(|| {
            // SAFETY: as above.
            let (shape, service) = unsafe { (given(shape, "the shape")?.parse()?, given(service, "the service")?) };
            let chain = shape.program().lower(Design::Local);
            let areas = service.areas_of(&chain, 2).and_then(|areas| <[Arc<Area>; 2]>::try_from(areas).ok());
            let areas = areas.ok_or_else(|| Failure::invalid("the service has no lists of that shape"))?;
            Ok(Lists { nodes: Nodes::new(shape), areas })
        })
    }

    /// Puts a node before a list.
    fn rdmesh_list_push(
        lists: *mut Lists,
        head: *mut u64,
        key: *const u8,
        key_length: usize,
        value: *const u8,
        length: usize,
    ) -> c_int {
        code(|| {
            // SAFETY: as above.
            let (lists, head) = unsafe { (given_mut(lists, "the lists")?, given_mut(head, "the head")?) };
            // SAFETY: as above.
            let (key, value) = unsafe { (list(key, key_length, "the key")?, list(value, length, "the value")?) };
            let none = || Failure::with(Errno::NOSPC, "no node is free, or key and value do not fit in a record");
            let (node, stores) = lists.nodes.push(*head, key, value).ok_or_else(none)?;
            stores.iter().for_each(|store| lists.areas[store.region.min(1)].make(store));
            *head = node;
            Ok(0)
        })
    }

    /// Takes a node out.
    fn rdmesh_list_unlink(lists: *mut Lists, node: u64, behind: u64) -> c_int {
        code(|| {
            // SAFETY: as above.
            let lists = unsafe { given_mut(lists, "the lists")? };
            if !lists.nodes.has(node) || behind != 0 && !lists.nodes.has(behind) {
                return Err(Failure::invalid("there is no such node"));
            }
            lists.areas[0].make(&lists.nodes.unlink(node, behind));
            Ok(0)
        })
    }

    /// Closes lists, whose content stays.
    fn rdmesh_list_close(lists: *mut Lists) -> () {
        // SAFETY: as above.
        unsafe { free(lists) }
    }

    /// A client.
    fn rdmesh_list_client_new() -> *mut Client {
        object(|| Ok(Client::default()))
    }

    /// A request.
    fn rdmesh_list_request(
        client: *mut Client,
        head: u64,
        key: *const u8,
        key_length: usize,
        address: u64,
        rkey: u32,
        message: *mut c_void,
        size: usize,
        tag: *mut u32,
    ) -> c_int {
        code(|| {
            // SAFETY: as above.
            let (client, key) = unsafe { (given_mut(client, "the client")?, list(key, key_length, "the key")?) };
            let bytes = client.request(head, key, Buffer { addr: address, rkey });
            // SAFETY: as above.
            unsafe {
                store(tag, client.tag());
                put_message(&bytes, message, size)
            }
        })
    }

    /// Judges a reply.
    fn rdmesh_list_reply(client: *mut Client, tag: u32, reply: *const u8, length: usize, answer: *mut Answer) -> c_int {
        code(|| {
            // SAFETY: as above.
            let (client, reply) = unsafe { (given_mut(client, "the client")?, list(reply, length, "the reply")?) };
            // SAFETY: as above.
            unsafe { store(answer, Answer::of(&client.reply_in_place(tag, reply))) };
            Ok(0)
        })
    }

    /// Frees a client.
    fn rdmesh_list_client_free(client: *mut Client) -> () {
        // SAFETY: as above.
        unsafe { free(client) }
    }
}

const MOST: u64 = 1 << 40;
const MOST_HOPS: usize = 32;

const _: () = assert!(size_of::<Shape>() == 24);
