//! Tests of the scoreboard: what is sent again, when, and what is not.

use super::*;
use proptest::prelude::*;

const ROUND_TRIP: Duration = Duration::from_micros(100);
const REQUEST: Sending = Sending { psns: 1, is_answered: false, is_timed: false, lane: Lane(0), is_copied: false };

fn micros(at: u64) -> Time {
    Time(at * 1000)
}

fn psn(n: u32) -> Psn {
    Psn::new(n)
}

/// A board with `count` requests from PSN 0 on, sent a microsecond apart.
fn board(count: u32) -> Scoreboard {
    let mut board = Scoreboard::new(psn(0), Lanes::new(1, 0));
    (0..count).for_each(|n| board.push(micros(n.into()), REQUEST));
    board
}

#[test]
fn a_packet_is_lost_when_a_later_one_has_arrived_long_enough_before() {
    let mut board = board(10);
    assert!(board.hold(micros(105), psn(5), true).0);
    // The allowance is the round trip of the packet that arrived, and a quarter of the usual one.
    let losses = board.find_lost(micros(105), ROUND_TRIP);
    assert_eq!(losses, Losses { counted: None, again_at: Some(micros(125)) });
    assert!(!board.has_lost());
    let losses = board.find_lost(micros(126), ROUND_TRIP);
    assert_eq!((losses.counted.is_some(), board.oldest_lost(), board.lost_from(psn(0), 100)), (true, Some(psn(0)), 2));
    // Packets behind the one that arrived say nothing of themselves.
    board.find_lost(micros(10_000), ROUND_TRIP);
    assert_eq!((board.lost_from(psn(0), 100), board.lost_from(psn(6), 100), board.in_flight()), (5, 0, 4));
}

#[test]
fn what_overtakes_on_another_lane_is_no_sign_of_loss() {
    let mut board = Scoreboard::new(psn(0), Lanes::new(2, 0));
    // The round trips of both lanes are known: 300 and 100 us.
    for (lane, at) in [(0, 0), (1, 1)] {
        board.push(micros(at), Sending { lane: Lane(lane), ..REQUEST });
    }
    board.hold(micros(101), psn(1), true);
    board.acknowledge(micros(300), psn(2), true);
    board.take_done();
    for (n, lane) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
        board.push(micros(1000 + n), Sending { lane: Lane(lane), ..REQUEST });
    }
    // The later ones arrive first, by the shorter path.
    board.hold(micros(1102), psn(4), true);
    board.hold(micros(1103), psn(5), true);
    let losses = board.find_lost(micros(1200), ROUND_TRIP);
    assert!(!board.has_lost() && losses.again_at.is_some_and(|at| at > micros(1300)), "{losses:?}");
    // On its own lane a later packet says that an earlier one is lost.
    board.hold(micros(1305), psn(3), true);
    board.find_lost(micros(1400), ROUND_TRIP);
    assert_eq!((board.oldest_lost(), board.lost_from(psn(2), 9)), (Some(psn(2)), 1));
    assert_eq!(board.choose_lane_again(psn(2)), Lane(1));
}

#[test]
fn what_has_a_copy_on_another_lane_says_nothing_of_its_own() {
    let mut board = Scoreboard::new(psn(0), Lanes::new(4, 0));
    let lane = Lane(1);
    for n in 0..32 {
        board.push(micros(n), Sending { lane, ..REQUEST });
        board.lose_to_silence(micros(n), psn(n as u32));
    }
    assert!(board.rests(lane));
    // A READ of which a copy left by another lane: its answer may have come for that.
    board.push(micros(100), Sending { is_answered: true, lane, is_copied: true, ..REQUEST });
    assert!(board.answer(micros(200), psn(32), false).0 && board.rests(lane));
    board.push(micros(300), Sending { is_answered: true, lane, ..REQUEST });
    assert!(board.answer(micros(400), psn(33), false).0 && !board.rests(lane));
    // The same for the loss of it.
    for n in 34..66 {
        board.push(micros(500), Sending { is_answered: true, lane, is_copied: true, ..REQUEST });
        board.lose_to_silence(micros(600), psn(n));
    }
    assert!(!board.rests(lane));
}

#[test]
fn a_lost_retransmission_is_noticed_by_what_was_sent_after_it() {
    let mut board = board(3);
    board.hold(micros(100), psn(1), true);
    board.find_lost(micros(1000), ROUND_TRIP);
    assert_eq!(board.oldest_lost(), Some(psn(0)));
    board.repeat(micros(1000), psn(0), 1, Lane(0));
    assert!(board.find_lost(micros(1010), ROUND_TRIP).counted.is_none() && !board.has_lost());
    board.push(micros(1001), REQUEST);
    board.hold(micros(1101), psn(3), true);
    let losses = board.find_lost(micros(1200), ROUND_TRIP);
    assert!(losses.counted.is_some() && board.oldest_lost() == Some(psn(0)), "{losses:?}");
}

#[test]
fn the_late_arrival_of_what_was_sent_again_says_nothing_of_what_was_sent_before() {
    let mut board = board(5);
    board.lose(psn(0));
    board.repeat(micros(1000), psn(0), 1, Lane(0));
    assert_eq!(board.acknowledge(micros(1200), psn(1), false), (1, None));
    assert_eq!((board.take_done(), board.find_lost(micros(9000), ROUND_TRIP)), (1, Losses::default()));
    assert!(board.reordering.span(ROUND_TRIP) > ROUND_TRIP / 4);
    board.lose(psn(1));
    board.repeat(micros(9000), psn(1), 1, Lane(0));
    board.acknowledge(micros(9100), psn(2), true);
    assert!(board.find_lost(micros(9100), ROUND_TRIP).counted.is_some() && board.lost_from(psn(2), 9) == 3);
}

#[test]
fn losses_of_one_round_trip_narrow_the_window_once() {
    let mut board = board(20);
    board.hold(micros(100), psn(10), true);
    assert!(board.find_lost(micros(1000), ROUND_TRIP).counted.is_some());
    board.hold(micros(1001), psn(19), true);
    let losses = board.find_lost(micros(2000), ROUND_TRIP);
    assert!(losses.counted.is_none() && board.lost_from(psn(11), 20) == 8);
}

#[test]
fn what_was_only_late_widens_the_allowance_and_calm_narrows_it() {
    let mut board = board(4);
    let span = |board: &Scoreboard| board.reordering.span(ROUND_TRIP);
    assert_eq!(span(&board), ROUND_TRIP / 4);
    for n in 1..10 {
        board.on_spurious(micros(1000 * n), ROUND_TRIP);
        board.on_spurious(micros(1000 * n + 1), ROUND_TRIP);
        assert_eq!(span(&board), ROUND_TRIP / 4 * (1 << n).min(8), "{n}");
    }
    board.on_spurious(micros(20_000), ROUND_TRIP);
    assert_eq!(span(&board), ROUND_TRIP / 2);
}

#[test]
fn of_a_read_each_packet_of_data_is_waited_for() {
    let mut board = board(1);
    board.push(micros(1), Sending { psns: 4, is_answered: true, is_timed: true, ..REQUEST });
    assert_eq!(board.acknowledge(micros(100), psn(5), true), (1, None));
    assert_eq!((board.take_done(), board.in_flight()), (1, 4));
    assert!(board.is_executed(psn(1), 4));
    assert_eq!(board.answer(micros(101), psn(1), true), (true, Some(micros(1))));
    assert_eq!(board.answer(micros(102), psn(3), true), (true, None));
    assert_eq!(board.answer(micros(102), psn(3), true), (false, None));
    board.find_lost(micros(1000), ROUND_TRIP);
    assert_eq!((board.oldest_lost(), board.lost_from(psn(2), 9), board.take_done()), (Some(psn(2)), 1, 1));
    assert!(board.awaits(psn(2)) && board.awaits(psn(4)) && !board.awaits(psn(3)) && !board.awaits(psn(1)));
}

#[test]
fn a_read_that_waits_behind_a_gap_at_the_peer_is_not_lost() {
    let mut board = board(1);
    board.push(micros(1), Sending { psns: 3, is_answered: true, is_timed: true, ..REQUEST });
    board.push(micros(2), REQUEST);
    assert!(board.hold(micros(100), psn(1), true).0 && board.hold(micros(100), psn(4), true).0);
    board.find_lost(micros(10_000), ROUND_TRIP);
    assert_eq!((board.lost_from(psn(0), 9), board.in_flight()), (1, 0));
    board.repeat(micros(10_000), psn(0), 1, Lane(0));
    board.acknowledge(micros(10_100), psn(5), true);
    assert_eq!((board.take_done(), board.in_flight()), (1, 3));
}

#[test]
fn what_the_peer_no_longer_holds_is_sent_again() {
    let mut board = board(3);
    board.hold(micros(100), psn(1), true);
    board.acknowledge(micros(101), psn(1), false);
    assert_eq!(board.take_done(), 1);
    board.take_back(psn(1));
    assert_eq!((board.oldest_lost(), board.in_flight()), (Some(psn(1)), 1));
    board.take_back(psn(2));
    assert_eq!((board.lost_from(psn(2), 9), board.in_flight()), (0, 1));
}

#[test]
fn an_old_report_of_a_read_takes_no_answer_back() {
    let mut board = board(1);
    board.push(micros(1), Sending { psns: 3, is_answered: true, is_timed: true, ..REQUEST });
    assert_eq!(board.answer(micros(100), psn(2), false), (true, None));
    board.hold(micros(101), psn(1), false);
    assert!(!board.awaits(psn(2)) && board.awaits(psn(1)) && board.awaits(psn(3)));
}

#[test]
fn a_refused_request_and_what_was_to_be_answered_behind_it_are_sent_again() {
    let mut board = board(2);
    board.push(micros(2), Sending { psns: 2, is_answered: true, is_timed: true, ..REQUEST });
    board.hold(micros(100), psn(1), true);
    board.lose(psn(1));
    board.lose_answers(psn(1));
    assert_eq!((board.oldest_lost(), board.lost_from(psn(1), 9), board.in_flight()), (Some(psn(1)), 3, 1));
}

proptest! {
    /// Whatever the peer says: counts are those of the entries, and all that was sent is done, held, lost or in flight.
    #[test]
    fn any_answers_leave_it_whole(steps in prop::collection::vec((0..8_u8, 0..40_u32, 1..5_u32), 0..200)) {
        let mut board = Scoreboard::new(psn(0xff_fff0), Lanes::new(1, 0));
        let (mut next, mut taken) = (psn(0xff_fff0), 0);
        for (at, (step, n, psns)) in steps.into_iter().enumerate() {
            let (now, psn) = (micros(at as u64 * 20), psn(0xff_fff0).add(taken + n).add(0u32.wrapping_sub(5)));
            match step {
                0 => {
                    board.push(now, Sending { psns, is_answered: psns != 1, is_timed: true, ..REQUEST });
                    next = next.add(psns);
                }
                1 => drop(board.acknowledge(now, if psn.since(next) > 0 { next } else { psn }, psns % 2 == 0)),
                2 => drop(board.hold(now, psn, psns % 2 == 0)),
                3 => drop(board.answer(now, psn, psns % 2 == 0)),
                4 => drop(board.find_lost(now, ROUND_TRIP)),
                5 if psns == 4 => board.take_back(psn),
                5 => board.repeat(now, psn, psns, Lane(0)),
                6 => board.lose(psn),
                _ => board.lose_answers(psn),
            }
            taken += board.take_done();
            let count = |state| board.entries.iter().filter(|entry| entry.state == state).count() as u32;
            prop_assert_eq!((board.in_flight, board.lost), (count(State::InFlight), count(State::Lost)));
            prop_assert_eq!(board.base.add(board.entries.len() as u32), next);
            prop_assert_eq!(board.oldest_lost().is_some(), board.has_lost());
        }
    }
}
