// Package casefile runs files of egress cases, one JSON object a line: a
// policy, what is attempted, and the verdict that is expected. Each case goes
// through a Guard and an Egress as any sandbox's attempt does, with a resolver
// that answers from the case and a dialer that only takes notes, so there is
// no second evaluator that could disagree with production.
//
// This package may never open a connection, read a file or decide anything.
package casefile
