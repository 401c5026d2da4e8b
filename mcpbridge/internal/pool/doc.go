// Package pool keeps sandboxes of one server started, so that who needs one
// does not wait for a start.
//
// A pool belongs to one server of one tenant. It may never hand a sandbox out
// twice, take one back, or speak to one: what is done to it before it waits is
// its Start's affair.
package pool
