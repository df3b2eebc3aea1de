// Package notify is the doorbell of the outbox: it tells a sleeping relay that
// a row was committed, and keeps writers from paying for that while the relay
// is awake.
//
// # Why writers do not always notify
//
// NOTIFY takes one cluster-wide lock and holds it through the commit, whether
// or not anybody listens, so that commits that notify happen one after the
// other: single-row writers that reach 15,000 commits/s without it stop at
// about 3,000. So the insert trigger notifies only when somebody sleeps, and
// finds out with a try of an advisory lock, which costs microseconds.
//
// # The bell
//
// Each outbox table has one advisory lock, the bell.
//
//   - ARMED: a sleeping relay holds the bell exclusively. A writer's shared try
//     is refused, so its commit notifies.
//   - BUSY: nobody holds it. The try is granted, the commit is silent, and the
//     relay polls.
//
// # Why no wake is lost
//
// A writer that was granted the shared lock keeps it until its transaction
// ends, and Postgres makes its rows visible before it releases its locks. So
// once the relay is granted the bell, every writer that did not notify has
// committed, and one look after that shows its rows. The relay sleeps only if
// that look finds no unpublished row at all. Rows that are merely locked count:
// whoever holds them may fail, and then nobody would be awake to see them. The
// relay never waits for the bell, since a queued exclusive request would refuse
// the writers' tries just as a granted one does.
//
// # One connection
//
// LISTEN, the bell and the sentinel lock live on one connection and die with
// it. If they did not, a relay could hold the bell and hear nothing.
//
// A connection may look healthy and hear nothing: half-open TCP, or a pooler in
// transaction mode. A probe every half a second, and rows that nobody announced,
// tell; an answer that is 100 ms late makes the relay poll every 20 ms, and one
// that is a second late has the connection replaced. Behind a pooler nothing is
// set or held in a session before a notification has come through it.
//
// # The model
//
// doorbell.pml is the protocol in Promela, with the loss of a connection and the
// death of a relay; "make model" checks that no wake is lost, and that each of
// its mutants loses one.
//
// # Several relays
//
// One of them, the sentinel, holds a second advisory lock; it alone arms the
// bell, and polls while it does not hold it. The others, its helpers, hear the
// notifications too and look a little later. While they see the bell free they
// look every 100 ms: no writer notifies then, and the sentinel may be frozen.
// Relays whose claims come back full hold a third lock, shared, and find in
// pg_locks how many they are, so that each can keep to a slice of the keys.
//
// # A listener that hears nothing
//
// A half-open TCP connection and a pooler in transaction mode look healthy and
// deliver nothing. An answer to a probe that is 100 ms late puts the connection
// in doubt, and so does a row that the relay found while it slept, without a
// call: it polls every 20 ms until an answer comes. One second without an answer
// is deafness: the connection is closed and opened anew.
//
// # At rest
//
// The sentinel probes its listening connection every 500 ms, or each tick if that
// is shorter: it notifies itself, and the look for rows that a tick needs is the
// query of that probe. A helper looks once a tick, in a statement that also tells
// whether the place of the sentinel is free, and probes every 5 s. A claim is
// made only when such a look found a row.
package notify
