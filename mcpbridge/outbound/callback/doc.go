// Package callback runs an engine's workflows over HTTP: a POST starts a run,
// its response is a stream of events, answers to what the run asks are posted
// to the run's own address, and a DELETE there cancels it. docs/outbound.md
// describes the form.
//
// The engine's side is read as a stranger's: every line, the whole stream, the
// questions and the run's address are bounded and checked. The package may
// never dial (its HTTP client is handed in), follow an address to another
// origin, or put a header or an address into an error or a log.
package callback
