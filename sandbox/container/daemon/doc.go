// Package daemon finds a containerd to work with, or supervises one of its
// own: started with a generated configuration that offers no more than what
// sandboxes need, restarted after a crash, and ended with the process that
// owns it, however that process ends.
//
// It knows nothing of containers. It may never end a process that it cannot
// prove to be its own, never by a name, and never touch the root or the state
// of a containerd that it did not start.
package daemon
