// Package parked reads and changes the failure table: what an operator does about
// rows that could not be published. All of it happens in the database, beside
// running relays or without one; a relay that runs is woken.
//
// # Locks
//
// A relay locks rows of the outbox table first and their failure records after
// that, in one transaction. So does this package, each in the order of the row
// ids. What meets in a deadlock all the same is tried again.
//
// # Which row a record is about
//
// A record names the row's id and its event id, and means the row only where both
// agree: an outbox table that was emptied may count from 1 again.
package parked
