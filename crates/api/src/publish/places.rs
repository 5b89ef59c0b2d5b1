//! Places among the events that wait to be stored, and who may take them: applications share what there is, and none
//! of them can take what the others need.
//!
//! Invariant: an application takes a further place only while it holds fewer than are free (a dynamic threshold:
//! Choudhury and Hahne 1998). Alone it gets half of all places; `n` that want all they can get have an equal number each,
//! and as many are free; so whoever comes with little finds a place at once, however much the others have waiting.

use std::{
    collections::{BTreeSet, HashMap, VecDeque, hash_map::Entry},
    sync::{Mutex, MutexGuard, PoisonError},
};

use postrider_core::id::ApplicationId;
use tokio::sync::oneshot;

/// All places of this process.
#[derive(Debug)]
pub(crate) struct Places(Mutex<Book>);

/// A place that is taken until this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Place<'a> {
    places: &'a Places,
    application_id: ApplicationId,
}

impl Places {
    pub(crate) fn new(count: usize) -> Self {
        Self(Mutex::new(Book::new(count)))
    }

    /// A place, unless the application has its share.
    pub(crate) fn try_take(&self, application_id: ApplicationId) -> Option<Place<'_>> {
        let is_taken = self.book().try_take(application_id);
        // Made only where it is taken: it would be given back at once.
        is_taken.then(|| Place { places: self, application_id })
    }

    /// A place, as soon as the application's share allows it. Within an application, first come is first served.
    pub(crate) async fn take(&self, application_id: ApplicationId) -> Place<'_> {
        loop {
            let called = {
                let mut book = self.book();
                if book.try_take(application_id) {
                    return Place { places: self, application_id };
                }
                book.line_up(application_id)
            };
            let mut waiter = Waiter { places: self, application_id, called };
            // Nobody but the waiter itself leaves the line, so this is the place, and the loop ends here.
            if (&mut waiter.called).await.is_ok() {
                return Place { places: self, application_id };
            }
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.places.book().give_back(self.application_id);
    }
}

/// Somebody in the line of an application, who may leave it at any time.
struct Waiter<'a> {
    places: &'a Places,
    application_id: ApplicationId,
    called: oneshot::Receiver<()>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.called.is_terminated() {
            return;
        }
        self.called.close();
        // Once closed, the call has either come or never will.
        match self.called.try_recv() {
            Ok(()) => self.places.book().give_back(self.application_id),
            Err(_never) => self.places.book().leave(self.application_id),
        }
    }
}

/// Who holds how many places, and who waits for one.
///
/// Invariant: nobody waits who may take one.
#[derive(Debug)]
struct Book {
    free: usize,
    /// Of the applications that hold or want something.
    accounts: HashMap<ApplicationId, Account>,
    /// The applications that somebody waits for: the next place is for the one that holds the fewest, and of those for
    /// the one with the lowest ticket.
    waiting: BTreeSet<(usize, u64, ApplicationId)>,
    /// How many tickets were drawn.
    tickets: u64,
}

#[derive(Debug, Default)]
struct Account {
    held: usize,
    /// Drawn whenever somebody of it begins to wait or is served: who was served lately comes after the others.
    ticket: u64,
    line: VecDeque<oneshot::Sender<()>>,
}

impl Account {
    fn is_empty(&self) -> bool {
        self.held == 0 && self.line.is_empty()
    }
}

impl Book {
    fn new(free: usize) -> Self {
        Self { free, accounts: HashMap::new(), waiting: BTreeSet::new(), tickets: 0 }
    }

    fn try_take(&mut self, application_id: ApplicationId) -> bool {
        // Most publishers find an account, or make one that stays: one look serves both.
        match self.accounts.entry(application_id) {
            Entry::Occupied(account) if account.get().held >= self.free => return false,
            Entry::Occupied(mut account) => account.get_mut().held += 1,
            Entry::Vacant(_) if self.free == 0 => return false,
            Entry::Vacant(account) => account.insert(Account::default()).held = 1,
        }
        self.free -= 1;
        true
    }

    fn line_up(&mut self, application_id: ApplicationId) -> oneshot::Receiver<()> {
        let (call, called) = oneshot::channel();
        let account = self.accounts.entry(application_id).or_default();
        if account.line.is_empty() {
            self.tickets += 1;
            account.ticket = self.tickets;
            self.waiting.insert((account.held, account.ticket, application_id));
        }
        account.line.push_back(call);
        called
    }

    fn give_back(&mut self, application_id: ApplicationId) {
        let Entry::Occupied(mut entry) = self.accounts.entry(application_id) else { return };
        let account = entry.get_mut();
        if self.waiting.remove(&(account.held, account.ticket, application_id)) {
            self.waiting.insert((account.held - 1, account.ticket, application_id));
        }
        account.held -= 1;
        self.free += 1;
        if account.is_empty() {
            entry.remove();
        }
        self.hand_out();
    }

    /// Gives places to those who wait, as far as their shares go: after one came back that is one or two.
    fn hand_out(&mut self) {
        while let Some((held, _, application_id)) = self.waiting.first().copied()
            && held < self.free
        {
            self.waiting.pop_first();
            let Entry::Occupied(mut entry) = self.accounts.entry(application_id) else { continue };
            let account = entry.get_mut();
            while let Some(next) = account.line.pop_front() {
                // Whoever is leaving just now does not take it.
                if next.send(()).is_ok() {
                    account.held += 1;
                    self.free -= 1;
                    break;
                }
            }
            if !account.line.is_empty() {
                self.tickets += 1;
                account.ticket = self.tickets;
                self.waiting.insert((account.held, account.ticket, application_id));
            } else if account.is_empty() {
                entry.remove();
            }
        }
    }

    /// Strikes whoever waits no longer off an application's line.
    fn leave(&mut self, application_id: ApplicationId) {
        let Entry::Occupied(mut entry) = self.accounts.entry(application_id) else { return };
        let account = entry.get_mut();
        account.line.retain(|waiter| !waiter.is_closed());
        if account.line.is_empty() {
            self.waiting.remove(&(account.held, account.ticket, application_id));
            if account.is_empty() {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::Pin, task::Poll};

    use futures::poll;
    use uuid::Uuid;

    use super::*;

    fn application(name: char) -> ApplicationId {
        ApplicationId::from_uuid(Uuid::from_u128(u128::from(u32::from(name))))
    }

    fn is_as_new(places: &Places, count: usize) -> bool {
        let book = places.book();
        book.free == count && book.accounts.is_empty() && book.waiting.is_empty()
    }

    #[test]
    fn an_application_takes_a_place_while_it_holds_fewer_than_are_free() {
        // Each takes all it gets, one after the other.
        let check = |count: usize, expected: &[(char, usize)]| {
            let places = Places::new(count);
            let mut held = Vec::new();
            for (name, expected) in expected {
                let before = held.len();
                held.extend(std::iter::from_fn(|| places.try_take(application(*name))));
                assert_eq!(held.len() - before, *expected, "{name} of {count}");
            }
            drop(held);
            assert!(is_as_new(&places, count), "{places:?}");
        };
        check(0, &[('a', 0)]);
        check(1, &[('a', 1), ('b', 0), ('a', 0)]);
        check(2, &[('a', 1), ('b', 1), ('c', 0)]);
        check(9, &[('a', 5), ('b', 2), ('c', 1), ('d', 1), ('e', 0)]);
        check(4_096, &[('a', 2_048), ('b', 1_024), ('a', 0), ('c', 512)]);
    }

    type Wait<'a> = Pin<Box<dyn Future<Output = Place<'a>> + 'a>>;

    /// Somebody of each of these applications waits, in this order.
    async fn line<'a>(places: &'a Places, names: &str) -> Vec<Wait<'a>> {
        let mut line: Vec<Wait<'a>> = Vec::new();
        for name in names.chars() {
            let mut wait: Wait<'a> = Box::pin(places.take(application(name)));
            assert!(poll!(&mut wait).is_pending(), "{name} does not wait");
            line.push(wait);
        }
        line
    }

    /// Of so many places, these applications take one each in this order, and then these wait. Some places come back;
    /// which of the waiting are served?
    async fn served(count: usize, taken: &str, waiting: &str, back: &str) -> Vec<usize> {
        let places = Places::new(count);
        let take = |name| places.try_take(application(name)).expect("a place");
        let mut held: Vec<_> = taken.chars().map(take).collect();
        let mut line = line(&places, waiting).await;
        for name in back.chars() {
            let first = held.iter().position(|place| place.application_id == application(name));
            drop(held.remove(first.expect("it holds one")));
        }
        let mut served = Vec::new();
        for (index, wait) in line.iter_mut().enumerate() {
            if let Poll::Ready(place) = poll!(wait) {
                served.push(index);
                held.push(place);
            }
        }
        drop((held, line));
        assert!(is_as_new(&places, count), "{places:?}");
        served
    }

    #[tokio::test]
    async fn a_place_that_comes_back_goes_to_whoever_has_the_fewest() {
        for (count, taken, waiting, back, expected) in [
            (4, "aa", "aa", "a", vec![0]),
            (2, "ab", "acc", "b", vec![1]),
            (2, "ab", "cad", "ab", vec![0, 1]),
            (3, "acb", "daae", "acb", vec![0, 1, 3]),
            (7, "aaaabbc", "abc", "a", vec![]),
            (7, "aaaabbc", "abc", "aa", vec![2]),
            (7, "aaaabbc", "abc", "ca", vec![2]),
        ] {
            assert_eq!(served(count, taken, waiting, back).await, expected, "{taken} {waiting} {back}");
        }
    }

    #[tokio::test]
    async fn whoever_leaves_the_line_leaves_nothing_behind() {
        let places = Places::new(2);
        let held = places.try_take(application('a'));
        let mut waiting = line(&places, "aaa").await;
        // One leaves before it is called, one when it was and has not seen it.
        drop(waiting.remove(0));
        drop(held);
        drop(waiting.remove(0));
        assert!(poll!(&mut waiting[0]).map(drop).is_ready(), "the next one is called");
        assert!(is_as_new(&places, 2), "{places:?}");

        let held = places.try_take(application('a'));
        drop(line(&places, "aa").await);
        drop(held);
        assert!(is_as_new(&places, 2), "{places:?}");
    }
}
