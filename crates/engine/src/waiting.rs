//! The waiting room of the ingest lane: whoever publishes much at once, or to many, waits behind others who publish
//! little, and not the other way round.
//!
//! Invariant: a batch takes one item of each application in turn, so what an application waits for is at most one item
//! of each other one, however many those have waiting.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

use tokio::sync::mpsc;

use crate::batch::{Bounds, TURNS_BEFORE_CLOSING};

/// Items in the room; the others wait in the channel, whose end refuses what does not fit.
const MAX_INSIDE: usize = 4_096;

#[derive(Debug)]
pub(crate) struct WaitingRoom<K, T> {
    /// Whose turn it is; each key once.
    turns: VecDeque<K>,
    lines: HashMap<K, VecDeque<T>>,
    count: usize,
}

impl<K: Copy + Eq + Hash, T> WaitingRoom<K, T> {
    pub(crate) fn new() -> Self {
        Self { turns: VecDeque::new(), lines: HashMap::new(), count: 0 }
    }

    /// Lets in whoever has come, waiting for the first if nobody is inside. `false`: nobody is, and nobody comes any more.
    pub(crate) async fn fill(&mut self, receiver: &mut mpsc::Receiver<T>, key: impl Fn(&T) -> K) -> bool {
        if self.count == 0 {
            let Some(first) = receiver.recv().await else { return false };
            self.admit(key(&first), first);
        }
        for _ in 0..TURNS_BEFORE_CLOSING {
            while self.count < MAX_INSIDE {
                let Ok(item) = receiver.try_recv() else { break };
                self.admit(key(&item), item);
            }
            tokio::task::yield_now().await;
        }
        true
    }

    /// The next batch: one item of each line in turn, until a bound is reached. The item that crosses it is the last.
    pub(crate) fn next_batch(&mut self, bounds: Bounds, weigh: impl Fn(&T) -> usize) -> Vec<T> {
        let (mut batch, mut weight) = (Vec::new(), 0);
        while batch.len() < bounds.max_items && weight < bounds.max_weight {
            let Some(key) = self.turns.pop_front() else { break };
            let Some(line) = self.lines.get_mut(&key) else { continue };
            let item = line.pop_front();
            if line.is_empty() {
                self.lines.remove(&key);
            } else {
                self.turns.push_back(key);
            }
            if let Some(item) = item {
                self.count -= 1;
                weight += weigh(&item);
                batch.push(item);
            }
        }
        batch
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes out all items of some keys, those first whose turn it would be.
    pub(crate) fn take_out(&mut self, is_meant: impl Fn(&K) -> bool) -> Vec<T> {
        let (leaving, staying): (VecDeque<K>, VecDeque<K>) = self.turns.drain(..).partition(is_meant);
        self.turns = staying;
        let items: Vec<T> = leaving.iter().filter_map(|key| self.lines.remove(key)).flatten().collect();
        self.count -= items.len();
        items
    }

    fn admit(&mut self, key: K, item: T) {
        let line = self.lines.entry(key).or_default();
        if line.is_empty() {
            self.turns.push_back(key);
        }
        line.push_back(item);
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { max_items: 4, max_weight: 10 };

    async fn filled(items: &[(char, usize)]) -> WaitingRoom<char, (char, usize)> {
        let (sender, mut receiver) = mpsc::channel(64);
        for item in items {
            sender.try_send(*item).expect("there is room");
        }
        drop(sender);
        let mut room = WaitingRoom::new();
        assert!(room.fill(&mut receiver, |(key, _)| *key).await);
        room
    }

    fn batch(room: &mut WaitingRoom<char, (char, usize)>) -> Vec<(char, usize)> {
        room.next_batch(BOUNDS, |(_, weight)| *weight)
    }

    #[tokio::test]
    async fn lines_take_turns_within_the_bounds() {
        let mut room = filled(&[('a', 1), ('a', 2), ('a', 3), ('a', 4), ('b', 1), ('c', 1)]).await;
        assert_eq!(batch(&mut room), [('a', 1), ('b', 1), ('c', 1), ('a', 2)]);
        assert_eq!(batch(&mut room), [('a', 3), ('a', 4)]);
        assert!(batch(&mut room).is_empty());
    }

    #[tokio::test]
    async fn a_heavy_line_delays_a_light_one_by_one_item() {
        let mut room = filled(&[('a', 90), ('a', 90), ('a', 90), ('b', 1)]).await;
        assert_eq!(batch(&mut room), [('a', 90)]);
        assert_eq!(batch(&mut room), [('b', 1), ('a', 90)]);
    }

    #[tokio::test]
    async fn whole_lines_are_taken_out_and_the_others_keep_their_turns() {
        let mut room = filled(&[('a', 1), ('b', 1), ('c', 1), ('a', 2), ('d', 1)]).await;
        assert_eq!(room.take_out(|key| ['a', 'c', 'e'].contains(key)), [('a', 1), ('a', 2), ('c', 1)]);
        assert_eq!(room.count, 2);
        assert_eq!(batch(&mut room), [('b', 1), ('d', 1)]);
    }

    #[tokio::test]
    async fn an_empty_room_without_senders_is_closed() {
        let (sender, mut receiver) = mpsc::channel::<(char, usize)>(1);
        drop(sender);
        assert!(!WaitingRoom::new().fill(&mut receiver, |(key, _)| *key).await);
    }
}
