// Package demo shows the relay at work: it sets up a database and a broker,
// lets a shop write orders with their events at a steady rate, consumes what the
// relay publishes, and reports whether anything was lost or out of order.
//
// It knows nothing of the relay itself, which the caller runs on the stage that
// Prepare sets up.
package demo
