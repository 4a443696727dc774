//! Tests of commands: their responses, and the errno of each refusal.

use crate::client::{Client, extended, plain};
use crate::world::{World, gid};
use rdmesh_uverbs::abi::*;
use rdmesh_uverbs::session::{MrInfo, RequestKind, Segment, SegmentKind};
use rdmesh_verbs::{AttrMask, Key};
use rustix::io::Errno;
use std::os::fd::AsFd;
use zerocopy::{FromBytes, Immutable, IntoBytes};

fn refused<R: FromBytes>(
    client: &mut Client,
    number: u8,
    request: &(impl IntoBytes + Immutable),
    room: usize,
) -> Errno {
    client.command::<R>(number, request, room).map(|_| ()).unwrap_err()
}

#[test]
fn nothing_works_before_get_context() {
    let world = World::new(1);
    let mut client = Client::connect(&world.endpoint(1));
    client.open().unwrap();
    assert_eq!(refused::<AllocPdResponse>(&mut client, number::ALLOC_PD, &AllocPd::default(), 0), Errno::INVAL);
    client.get_context().unwrap();
    assert_eq!(client.get_context().err(), Some(Errno::INVAL));
    client.alloc_pd();
}

#[test]
fn the_device_describes_itself() {
    let world = World::new(1);
    let mut client = world.device(1);
    let limits = *world.limits();
    let (plain, _) = client.command::<QueryDeviceResponse>(number::QUERY_DEVICE, &QueryDevice::default(), 0).unwrap();
    assert_eq!((plain.max_qp, plain.max_cqe, plain.phys_port_cnt), (limits.max_qp, limits.max_cqe, 1));
    assert_eq!((plain.vendor_id, plain.node_guid), (0xff_ffff, [2, 0, 0, 0xff, 0xfe, 0, 0, 1]));

    let bytes = extended(number::QUERY_DEVICE, &ExQueryDevice::default(), 304, 0);
    let answer = client.call(RequestKind::Verbs, &bytes, &[], None).unwrap();
    let full = ExQueryDeviceResponse::read_from_bytes(&answer.response).unwrap();
    assert_eq!((full.base, full.response_length), (plain, 304));
    assert_eq!((full.odp_caps.general_caps, full.odp_caps.rc_odp_caps), (3, 0x3f));
    let with_driver = extended(number::QUERY_DEVICE, &ExQueryDevice::default(), 304, 8);
    assert_eq!(client.call(RequestKind::Verbs, &with_driver, &[], None).err(), Some(Errno::INVAL));

    let port = QueryPort { port_num: 1, ..Default::default() };
    let (port, _) = client.command::<QueryPortResponse>(number::QUERY_PORT, &port, 0).unwrap();
    assert_eq!((port.state, port.active_mtu, port.link_layer, port.gid_tbl_len), (4, 5, 2, 16));
    let absent = QueryPort { port_num: 2, ..Default::default() };
    assert_eq!(refused::<QueryPortResponse>(&mut client, number::QUERY_PORT, &absent, 0), Errno::INVAL);
}

#[test]
fn unknown_commands_are_not_supported() {
    let world = World::new(1);
    let mut client = world.device(1);
    // QUERY_MR, OPEN_XRCD, POLL_CQ, and CREATE_FLOW of the extended family.
    for number in [12, 37, 21] {
        assert_eq!(client.order(number, &[0u8; 40]).err(), Some(Errno::OPNOTSUPP), "{number}");
    }
    let bytes = extended(50, &[0u8; 32], 8, 0);
    assert_eq!(client.call(RequestKind::Verbs, &bytes, &[], None).err(), Some(Errno::OPNOTSUPP));
    assert_eq!(client.ioctl(1, 0, &[]), Err(Errno::OPNOTSUPP));
}

#[test]
fn completion_queues_check_what_they_are_asked() {
    let world = World::new(1);
    let mut client = world.device(1);
    for cqe in [0, world.limits().max_cqe + 1, u32::MAX] {
        assert_eq!(client.try_create_cq(cqe, -1).err(), Some(Errno::INVAL));
    }
    assert_eq!(client.try_create_cq(1, 5).err(), Some(Errno::BADF));
    let bad_vector = CreateCq { cqe: 1, comp_vector: 1, comp_channel: -1, ..Default::default() };
    assert_eq!(refused::<CreateCqResponse>(&mut client, number::CREATE_CQ, &bad_vector, 16), Errno::INVAL);
    let request = CreateCq { cqe: 1, comp_channel: -1, ..Default::default() };
    assert_eq!(refused::<CreateCqResponse>(&mut client, number::CREATE_CQ, &request, 8), Errno::INVAL);
    let flags = ExCreateCq { cqe: 1, comp_channel: -1, flags: 1, ..Default::default() };
    let bytes = extended(number::CREATE_CQ, &flags, 16, 16);
    assert_eq!(client.call(RequestKind::Verbs, &bytes, &[], None).err(), Some(Errno::OPNOTSUPP));

    // Of the flags, only that an overrun is no error.
    let bytes = extended(number::CREATE_CQ, &ExCreateCq { flags: 2, ..flags }, 16, 16);
    let answer = client.call(RequestKind::Verbs, &bytes, &[], None).unwrap();
    let made = ExCreateCqResponse::read_from_prefix(&answer.response).unwrap().0;
    client.map(&answer.response[16..]);
    let resize = ResizeCq { cq_handle: made.base.cq_handle, cqe: 100, ..Default::default() };
    let (resized, answer) = client.command::<ResizeCqResponse>(number::RESIZE_CQ, &resize, 16).unwrap();
    assert!(resized.cqe >= 100);
    client.map(&answer.response[8..]);
    let absent = DestroyCq { cq_handle: 77, ..Default::default() };
    assert_eq!(refused::<DestroyCqResponse>(&mut client, number::DESTROY_CQ, &absent, 0), Errno::NOENT);
}

#[test]
fn a_closed_channel_goes_with_its_last_queue() {
    let world = World::new(1);
    let mut client = world.device(1);
    let (channel, _events) = client.create_channel();
    let (cq, _) = client.try_create_cq(1, channel as i32).unwrap();
    let close = |client: &mut Client, channel: u32| {
        client.ioctl(
            ioctl_object::COMP_CHANNEL,
            ioctl_method::CLOSE_COMP_CHANNEL,
            &[(CHANNEL_ATTR, &channel.to_ne_bytes())],
        )
    };
    assert_eq!(close(&mut client, channel), Ok(()));
    assert_eq!(world.server.snapshot()[0].objects.channels, 1);
    assert_eq!(client.try_create_cq(1, channel as i32).err(), Some(Errno::BADF));
    let destroy = DestroyCq { cq_handle: cq, ..Default::default() };
    client.command::<DestroyCqResponse>(number::DESTROY_CQ, &destroy, 0).unwrap();
    assert_eq!(world.server.snapshot()[0].objects.channels, 0);
    assert_eq!(close(&mut client, channel), Err(Errno::NOENT));
    let (unused, _events) = client.create_channel();
    assert_eq!(close(&mut client, unused), Ok(()));
    assert_eq!(world.server.snapshot()[0].objects.channels, 0);
}

#[test]
fn queue_pairs_get_at_least_what_they_ask_for() {
    let world = World::new(1);
    let mut client = world.device(1);
    let (pd, (cq, _)) = (client.alloc_pd(), client.create_cq(8));
    let request = CreateQp {
        pd_handle: pd,
        send_cq_handle: cq,
        recv_cq_handle: cq,
        max_send_wr: 5,
        max_recv_wr: 9,
        max_send_sge: 2,
        max_recv_sge: 3,
        max_inline_data: 100,
        sq_sig_all: 1,
        qp_type: 4,
        ..Default::default()
    };
    let (made, _) = client.try_create_qp(&request).unwrap();
    assert_eq!((made.max_send_sge, made.max_inline_data, made.max_recv_sge), (6, 100, 3));
    assert!(made.max_send_wr >= 5 && made.max_recv_wr >= 9);
    let query = QueryQp { qp_handle: made.qp_handle, ..Default::default() };
    let (info, _) = client.command::<QueryQpResponse>(number::QUERY_QP, &query, 0).unwrap();
    assert_eq!((info.max_send_wr, info.max_recv_wr), (made.max_send_wr, made.max_recv_wr));
    assert_eq!((info.qp_state, info.sq_sig_all), (0, 1));

    let mut refuse = |request: &CreateQp| client.try_create_qp(request).map(|_| ()).unwrap_err();
    assert_eq!(refuse(&CreateQp { max_send_wr: u32::MAX, ..request }), Errno::INVAL);
    assert_eq!(refuse(&CreateQp { max_recv_sge: 0xffff, ..request }), Errno::INVAL);
    assert_eq!(refuse(&CreateQp { max_inline_data: 4096, ..request }), Errno::INVAL);
    assert_eq!(refuse(&CreateQp { qp_type: 8, ..request }), Errno::OPNOTSUPP);
    assert_eq!(refuse(&CreateQp { qp_type: 1, ..request }), Errno::INVAL);
    assert_eq!(refuse(&CreateQp { pd_handle: 9, ..request }), Errno::INVAL);
    assert_eq!(refuse(&CreateQp { is_srq: 1, srq_handle: 9, ..request }), Errno::INVAL);
}

#[test]
fn doorbell_and_arming_also_work_as_commands() {
    let world = World::new(1);
    let mut client = world.device(1);
    let (pd, (cq, _)) = (client.alloc_pd(), client.create_cq(8));
    let (qp, ..) = client.create_qp(pd, cq, 2);
    let arm = ReqNotifyCq { cq_handle: cq, solicited_only: 0 };
    client.order(number::REQ_NOTIFY_CQ, &arm).unwrap();
    assert!(client.page.as_ref().unwrap().take_arm(cq, false));
    let absent = client.order(number::REQ_NOTIFY_CQ, &ReqNotifyCq { cq_handle: 50, ..arm });
    assert_eq!(absent.err(), Some(Errno::INVAL));
    // A queue pair that was just created takes no work.
    let post = PostSend { qp_handle: qp, ..Default::default() };
    assert_eq!(refused::<PostSendResponse>(&mut client, number::POST_SEND, &post, 0), Errno::INVAL);
}

#[test]
fn modify_checks_ports_paths_and_attributes() {
    let world = World::new(1);
    let mut client = world.device(1);
    let (pd, (cq, _)) = (client.alloc_pd(), client.create_cq(8));
    let (qp, ..) = client.create_qp(pd, cq, 2);
    let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    let to_init = ModifyQp { qp_handle: qp, attr_mask: init.bits(), qp_state: 1, port_num: 1, ..Default::default() };
    let mut modify = |request: &ModifyQp| client.order(number::MODIFY_QP, request).map(|_| ());
    assert_eq!(modify(&ModifyQp { port_num: 2, ..to_init }), Err(Errno::INVAL));
    assert_eq!(modify(&ModifyQp { attr_mask: 1 << 25, ..to_init }), Err(Errno::OPNOTSUPP));
    assert_eq!(modify(&ModifyQp { qp_state: 7, ..to_init }), Err(Errno::INVAL));
    assert_eq!(modify(&ModifyQp { qp_handle: 1000, ..to_init }), Err(Errno::INVAL));
    assert_eq!(modify(&to_init), Ok(()));

    let rtr = AttrMask::STATE
        | AttrMask::AV
        | AttrMask::PATH_MTU
        | AttrMask::DEST_QPN
        | AttrMask::RQ_PSN
        | AttrMask::MAX_DEST_RD_ATOMIC
        | AttrMask::MIN_RNR_TIMER;
    let dest = QpDest { dgid: gid(2).0, sgid_index: 1, is_global: 1, port_num: 1, ..Default::default() };
    let to_rtr =
        ModifyQp { dest, qp_handle: qp, attr_mask: rtr.bits(), qp_state: 2, path_mtu: 3, ..Default::default() };
    assert_eq!(modify(&ModifyQp { dest: QpDest { is_global: 0, ..dest }, ..to_rtr }), Err(Errno::INVAL));
    assert_eq!(modify(&ModifyQp { dest: QpDest { sgid_index: 5, ..dest }, ..to_rtr }), Err(Errno::NODATA));
    assert_eq!(modify(&ModifyQp { dest: QpDest { sgid_index: 16, ..dest }, ..to_rtr }), Err(Errno::INVAL));
    assert_eq!(modify(&ModifyQp { path_mtu: 6, ..to_rtr }), Err(Errno::INVAL));
    assert_eq!(modify(&to_rtr), Ok(()));
}

#[test]
fn shared_receive_queues_resize_and_keep_their_limit() {
    let world = World::new(1);
    let mut client = world.device(1);
    let pd = client.alloc_pd();
    let request = CreateSrq { pd_handle: pd, max_wr: 10, max_sge: 2, ..Default::default() };
    let (made, answer) = client.command::<CreateSrqResponse>(number::CREATE_SRQ, &request, 24).unwrap();
    client.map(&answer.response[16..]);
    assert_eq!(
        refused::<CreateSrqResponse>(&mut client, number::CREATE_SRQ, &CreateSrq { max_wr: 0, ..request }, 24),
        Errno::INVAL
    );

    let modify = |client: &mut Client, attr_mask: u32, max_wr: u32, srq_limit: u32| {
        let request = ModifySrq { srq_handle: made.srq_handle, attr_mask, max_wr, srq_limit };
        client.call(RequestKind::Verbs, &plain(number::MODIFY_SRQ, &request, &[0; 8], 0), &[], None)
    };
    modify(&mut client, 2, 0, 5).unwrap();
    assert_eq!(modify(&mut client, 2, 0, made.max_wr + 1).err(), Some(Errno::INVAL));
    assert_eq!(modify(&mut client, 1, 4, 0).err(), Some(Errno::INVAL));
    let answer = modify(&mut client, 1, 100, 0).unwrap();
    client.map(&answer.header.mminfo);
    let query = QuerySrq { srq_handle: made.srq_handle, ..Default::default() };
    let (info, _) = client.command::<QuerySrqResponse>(number::QUERY_SRQ, &query, 0).unwrap();
    assert!(info.max_wr >= 100);
    assert_eq!((info.max_sge, info.srq_limit), (2, 5));
    let destroy = DestroySrq { srq_handle: made.srq_handle, ..Default::default() };
    assert_eq!(client.order(number::DEALLOC_PD, &DeallocPd { pd_handle: pd }).err(), Some(Errno::BUSY));
    client.command::<DestroySrqResponse>(number::DESTROY_SRQ, &destroy, 0).unwrap();
}

#[test]
fn address_handles_are_numbered_from_one() {
    let world = World::new(1);
    let mut client = world.device(1);
    let pd = client.alloc_pd();
    let grh = GlobalRoute { dgid: gid(2).0, sgid_index: 1, ..Default::default() };
    let attr = AhAttr { grh, is_global: 1, port_num: 1, ..Default::default() };
    let request = CreateAh { pd_handle: pd, attr, ..Default::default() };
    let (made, answer) = client.command::<CreateAhResponse>(number::CREATE_AH, &request, 8).unwrap();
    let driver = RxeCreateAhResponse::read_from_bytes(&answer.response[4..]).unwrap();
    assert_eq!(driver.ah_num, made.ah_handle + 1);
    let local = CreateAh { attr: AhAttr { is_global: 0, ..attr }, ..request };
    assert_eq!(refused::<CreateAhResponse>(&mut client, number::CREATE_AH, &local, 8), Errno::INVAL);
    client.order(number::DESTROY_AH, &DestroyAh { ah_handle: made.ah_handle }).unwrap();
    let again = client.order(number::DESTROY_AH, &DestroyAh { ah_handle: made.ah_handle });
    assert_eq!(again.err(), Some(Errno::NOENT));
}

#[test]
fn multicast_is_for_datagrams_and_groups() {
    let world = World::new(1);
    let mut client = world.device(1);
    let (pd, (cq, _)) = (client.alloc_pd(), client.create_cq(8));
    let (ud, ..) = client.create_qp(pd, cq, 4);
    let (rc, ..) = client.create_qp(pd, cq, 2);
    let mut group = [0; 16];
    group[..2].copy_from_slice(&[0xff, 0x0e]);
    let attach = AttachMcast { gid: group, qp_handle: ud, ..Default::default() };
    client.order(number::ATTACH_MCAST, &attach).unwrap();
    client.order(number::ATTACH_MCAST, &attach).unwrap();
    let refused = client.order(number::ATTACH_MCAST, &AttachMcast { qp_handle: rc, ..attach });
    assert_eq!(refused.err(), Some(Errno::INVAL));
    let refused = client.order(number::ATTACH_MCAST, &AttachMcast { gid: gid(2).0, ..attach });
    assert_eq!(refused.err(), Some(Errno::INVAL));
    let destroy = DestroyQp { qp_handle: ud, ..Default::default() };
    let busy = client.command::<DestroyQpResponse>(number::DESTROY_QP, &destroy, 0);
    assert_eq!(busy.err(), Some(Errno::BUSY));
    client.order(number::DETACH_MCAST, &attach).unwrap();
    assert_eq!(client.order(number::DETACH_MCAST, &attach).err(), Some(Errno::INVAL));
    client.command::<DestroyQpResponse>(number::DESTROY_QP, &destroy, 0).unwrap();
}

#[test]
fn registrations_are_checked_and_accounted() {
    let world = World::new(1);
    let path = world.endpoint_with(1, |spec| {
        spec.quota.pinned_bytes = 16 * 4096;
        spec.quota.mrs = 2;
    });
    let mut client = Client::device(&path);
    let pd = client.alloc_pd();
    let (memory, arena) = rdmesh_uverbs::shared::SharedMemory::create("arena", 8 * 4096).unwrap();
    let start = memory.as_ptr() as u64;
    let segment = Segment { addr: start, len: 8 * 4096, kind: SegmentKind::Arena as u32, reserved: 0, offset: 0 };
    let request =
        RegMr { start, length: 8 * 4096, hca_va: start, pd_handle: pd, access_flags: 1, ..Default::default() };
    let mut register = |request: RegMr, segments: &[Segment]| client.reg_mr(&request, segments, Some(arena.as_fd()));

    assert_eq!(register(RegMr { hca_va: start + 1, ..request }, &[segment]).err(), Some(Errno::INVAL));
    // Remote writing needs local writing.
    assert_eq!(register(RegMr { access_flags: 2, ..request }, &[segment]).err(), Some(Errno::INVAL));
    assert_eq!(register(RegMr { access_flags: 1 << 15, ..request }, &[segment]).err(), Some(Errno::INVAL));
    assert_eq!(register(RegMr { length: 0, ..request }, &[]).err(), Some(Errno::INVAL));
    assert_eq!(register(RegMr { length: 7 * 4096, ..request }, &[segment]).err(), Some(Errno::INVAL));
    assert_eq!(register(RegMr { pd_handle: 9, ..request }, &[segment]).err(), Some(Errno::INVAL));
    assert_eq!(register(RegMr { length: 17 * 4096, ..request }, &[segment]).err(), Some(Errno::NOMEM));
    let first = register(request, &[segment]).unwrap();
    assert_eq!(first.lkey, first.rkey);
    register(request, &[segment]).unwrap();
    assert_eq!(register(request, &[segment]).err(), Some(Errno::NOMEM));
    assert_eq!(world.server.snapshot()[0].pinned_bytes, 16 * 4096);
    client.order(number::DEREG_MR, &DeregMr { mr_handle: first.mr_handle }).unwrap();
    assert_eq!(client.order(number::DEREG_MR, &DeregMr { mr_handle: first.mr_handle }).err(), Some(Errno::NOENT));
    assert_eq!(world.server.snapshot()[0].pinned_bytes, 8 * 4096);
    assert_eq!(world.server.totals().refused_by_quota, 2);
}

#[test]
fn an_arena_is_known_to_the_connection_that_has_sent_it() {
    let world = World::new(1);
    let path = world.endpoint(1);
    let (mut client, mut forked) = (Client::device(&path), Client::connect(&path));
    forked.attach(&client.token).unwrap();
    let pd = client.alloc_pd();
    let (memory, arena) = rdmesh_uverbs::shared::SharedMemory::create("arena", 8 * 4096).unwrap();
    let start = memory.as_ptr() as u64;
    let segment = Segment { addr: start, len: 4096, kind: SegmentKind::Arena as u32, reserved: 0, offset: 0 };
    let request = RegMr { start, length: 4096, hca_va: start, pd_handle: pd, access_flags: 1, ..Default::default() };
    let register = |client: &mut Client, fd| client.reg_mr(&request, &[segment], fd).map(drop);
    assert_eq!(register(&mut client, None), Err(Errno::NODATA));
    // One that is refused is not remembered.
    let elsewhere = RegMr { pd_handle: 99, ..request };
    assert_eq!(client.reg_mr(&elsewhere, &[], Some(arena.as_fd())).err(), Some(Errno::INVAL));
    assert_eq!(register(&mut client, None), Err(Errno::NODATA));
    assert_eq!(register(&mut client, Some(arena.as_fd())), Ok(()));
    assert_eq!(register(&mut client, None), Ok(()));
    // A child has an arena of its own.
    assert_eq!(register(&mut forked, None), Err(Errno::NODATA));
    assert_eq!(register(&mut forked, Some(arena.as_fd())), Ok(()));
    assert_eq!(register(&mut forked, None), Ok(()));
}

#[test]
fn on_demand_memory_takes_advice() {
    const ON_DEMAND: u32 = 1 << 6;
    let world = World::new(1);
    let mut client = world.device(1);
    let pd = client.alloc_pd();
    let everything = RegMr { length: u64::MAX, pd_handle: pd, access_flags: ON_DEMAND | 1, ..Default::default() };
    let shifted = RegMr { hca_va: 4096, ..everything };
    assert_eq!(client.reg_mr(&shifted, &[], None).err(), Some(Errno::INVAL));
    let region = client.reg_mr(&everything, &[], None).unwrap();
    assert_eq!(world.server.snapshot()[0].pinned_bytes, 0);

    let page = vec![0u8; 4096];
    let entry = AdviseSge { addr: page.as_ptr() as u64, length: 4096, lkey: region.lkey };
    let mut advise = |pd: u32, advice: u64, entry: AdviseSge| {
        client.ioctl(
            ioctl_object::MR,
            ioctl_method::ADVISE_MR,
            &[
                (ioctl_attr::advise_mr::PD_HANDLE, u64::from(pd).as_bytes()),
                (ioctl_attr::advise_mr::ADVICE, advice.as_bytes()),
                (ioctl_attr::advise_mr::FLAGS, 1u32.as_bytes()),
                (ioctl_attr::advise_mr::SGE_LIST, entry.as_bytes()),
            ],
        )
    };
    assert_eq!(advise(pd, 1, entry), Ok(()));
    assert_eq!(advise(pd, 9, entry), Err(Errno::OPNOTSUPP));
    assert_eq!(advise(pd + 1, 0, entry), Err(Errno::INVAL));
    let wrong_key = Key(region.lkey).0 ^ 1;
    assert_eq!(advise(pd, 0, AdviseSge { lkey: wrong_key, ..entry }), Err(Errno::INVAL));
}

#[test]
fn regions_are_described_by_handle() {
    let world = World::new(1);
    let mut client = world.device(1);
    let everything =
        RegMr { length: u64::MAX, pd_handle: client.alloc_pd(), access_flags: 1 << 6, ..Default::default() };
    let region = client.reg_mr(&everything, &[], None).unwrap();
    let mut query = |handle: u32| {
        let attributes: &[(u16, &[u8])] = &[(ioctl_attr::query_mr::HANDLE, handle.as_bytes())];
        client.ask(ioctl_object::MR, ioctl_method::QUERY_MR, attributes)
    };
    let info = MrInfo { length: u64::MAX, iova: 0, lkey: region.lkey, rkey: region.rkey };
    assert_eq!(query(region.mr_handle), Ok(info.as_bytes().to_vec()));
    assert_eq!(query(region.mr_handle + 1), Err(Errno::NOENT));
    assert_eq!(client.ask(ioctl_object::MR, ioctl_method::QUERY_MR, &[]), Err(Errno::NOENT));
}

#[test]
fn the_gid_table_is_told_without_its_empty_entries() {
    let world = World::new(1);
    let mut client = world.device(1);
    let table = client.ask(ioctl_object::DEVICE, ioctl_method::QUERY_GID_TABLE, &[]).unwrap();
    let (first, rest) = GidEntry::read_from_prefix(&table).unwrap();
    assert_eq!((first.gid_index, first.port_num, first.gid_type), (0, 1, GID_TYPE_ROCE_V2));
    assert_eq!(rest.len() % size_of::<GidEntry>(), 0);
    let mut entry = |port: u64, index: u64| {
        let attributes: &[(u16, &[u8])] =
            &[(ioctl_attr::gid_entry::PORT, port.as_bytes()), (ioctl_attr::gid_entry::GID_INDEX, index.as_bytes())];
        client.ask(ioctl_object::DEVICE, ioctl_method::QUERY_GID_ENTRY, attributes)
    };
    assert_eq!(entry(1, 0), Ok(first.as_bytes().to_vec()));
    assert_eq!(entry(1, 15), Err(Errno::NODATA));
    for (port, index) in [(1, 16), (1, u64::MAX), (0, 0), (2, 0), (1 << 32 | 1, 0)] {
        assert_eq!(entry(port, index), Err(Errno::INVAL), "{port} {index}");
    }
    // Reading an empty entry is not recorded as a failed request; reading beyond the table is.
    let noted: Vec<_> = world.server.failed_requests().iter().map(|info| info.request.to_string()).collect();
    assert_eq!(noted.len(), 1, "{noted:?}");
    assert!(noted[0].contains("Invalid argument"), "{noted:?}");
}

#[test]
fn regions_change_their_domain_and_their_access() {
    const LOCAL_WRITE: u32 = 1;
    const REMOTE_READ: u32 = 4;
    const ON_DEMAND: u32 = 1 << 6;
    let world = World::new(1);
    let mut client = world.device(1);
    let (first, second) = (client.alloc_pd(), client.alloc_pd());
    let (memory, arena) = rdmesh_uverbs::shared::SharedMemory::create("arena", 4096).unwrap();
    let (addr, kind) = (memory.as_ptr() as u64, SegmentKind::Arena as u32);
    let segment = Segment { addr, len: 4096, kind, reserved: 0, offset: 0 };
    let request = RegMr { start: addr, length: 4096, hca_va: addr, pd_handle: first, ..Default::default() };
    let region = client.reg_mr(&request, &[segment], Some(arena.as_fd())).unwrap();
    let mut change = |flags, pd_handle, access_flags| {
        let (start, mr_handle) = (addr, region.mr_handle);
        let change = ReregMr {
            mr_handle,
            flags,
            start,
            hca_va: addr,
            length: 64,
            pd_handle,
            access_flags,
            ..Default::default()
        };
        let made = client.command::<ReregMrResponse>(number::REREG_MR, &change, 0);
        made.map(|(keys, _)| (keys.lkey, keys.rkey))
    };
    assert_eq!(change(0, second, 0), Err(Errno::INVAL));
    // Other memory, which rxe does not support, and an unknown flag.
    assert_eq!([change(1, 0, 0), change(8, 0, 0)], [Err(Errno::OPNOTSUPP); 2]);
    assert_eq!(change(2, 99, 0), Err(Errno::INVAL));
    // A peer may only write what the program itself may.
    assert_eq!(change(4, 0, 2), Err(Errno::INVAL));
    assert_eq!(change(4, 0, ON_DEMAND), Err(Errno::OPNOTSUPP));
    assert_eq!(change(2, second, 0), Ok((region.lkey, region.rkey)));
    assert_eq!(change(6, second, LOCAL_WRITE | REMOTE_READ), Ok((region.lkey, region.rkey)));
    client.order(number::DEALLOC_PD, &DeallocPd { pd_handle: first }).unwrap();
    assert_eq!(client.order(number::DEALLOC_PD, &DeallocPd { pd_handle: second }).err(), Some(Errno::BUSY));
    client.order(number::DEREG_MR, &DeregMr { mr_handle: region.mr_handle }).unwrap();
    client.order(number::DEALLOC_PD, &DeallocPd { pd_handle: second }).unwrap();
}

#[test]
fn memory_windows_are_of_two_types() {
    let world = World::new(1);
    let mut client = world.device(1);
    let pd = client.alloc_pd();
    for mw_type in [1, 2] {
        let request = AllocMw { pd_handle: pd, mw_type, ..Default::default() };
        let (made, _) = client.command::<AllocMwResponse>(number::ALLOC_MW, &request, 0).unwrap();
        client.order(number::DEALLOC_MW, &DeallocMw { mw_handle: made.mw_handle }).unwrap();
    }
    let third = AllocMw { pd_handle: pd, mw_type: 3, ..Default::default() };
    assert_eq!(refused::<AllocMwResponse>(&mut client, number::ALLOC_MW, &third, 0), Errno::INVAL);
}
