//! Batches that form by themselves: one transaction is under way at a time, and whatever arrives meanwhile is the next
//! batch. No timer, so an idle system adds no latency and a busy one gets large batches.

use tokio::sync::mpsc;

/// Turns that a lane gives the scheduler before it closes a batch. Callers that the last commit woke are about to send
/// their next item; without these turns batches are half as large.
pub(crate) const TURNS_BEFORE_CLOSING: usize = 4;

/// How large a batch may become.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub max_items: usize,
    /// Sum of the items' weights; the item that crosses it is the last.
    pub max_weight: usize,
}

/// Takes what is there behind a first item, and what arrives in the next turns of the scheduler. Not to be cancelled:
/// what was taken would be lost.
pub async fn gather<T>(
    first: T,
    receiver: &mut mpsc::Receiver<T>,
    bounds: Bounds,
    weigh: impl Fn(&T) -> usize,
) -> Vec<T> {
    let mut weight = weigh(&first);
    let mut batch = vec![first];
    for _ in 0..TURNS_BEFORE_CLOSING {
        while batch.len() < bounds.max_items && weight < bounds.max_weight {
            let Ok(item) = receiver.try_recv() else { break };
            weight += weigh(&item);
            batch.push(item);
        }
        tokio::task::yield_now().await;
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { max_items: 3, max_weight: 10 };

    #[tokio::test]
    async fn what_waits_becomes_one_batch_within_the_bounds() {
        let (sender, mut receiver) = mpsc::channel(16);
        for weight in [1, 1, 1, 1, 9, 9, 1, 2] {
            sender.try_send(weight).expect("there is room");
        }
        drop(sender);
        let mut batches = Vec::new();
        while let Some(first) = receiver.recv().await {
            batches.push(gather(first, &mut receiver, BOUNDS, |weight| *weight).await);
        }
        assert_eq!(batches, [vec![1, 1, 1], vec![1, 9], vec![9, 1], vec![2]]);
    }

    #[tokio::test]
    async fn items_that_arrive_while_a_batch_forms_join_it() {
        let (sender, mut receiver) = mpsc::channel(16);
        let late = async {
            tokio::task::yield_now().await;
            sender.send(2).await.expect("the lane listens");
        };
        let (batch, ()) = tokio::join!(gather(1, &mut receiver, BOUNDS, |_| 1), late);
        assert_eq!(batch, [1, 2]);
    }
}
