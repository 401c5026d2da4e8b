// Package gateway serves the descriptors of one sandbox's gateway with its
// Egress: it accepts the connections that the engine's rules redirect, answers
// DNS over UDP and TCP by asking the Egress, and reports refused packets.
//
// It runs in the unprivileged caller and reads what the guest's kernel sent:
// IP headers that the kernel copied, and the framing of DNS. It decides
// nothing, it may never open a connection or a socket of its own, and the
// bytes of a connection are the Egress's alone.
package gateway
