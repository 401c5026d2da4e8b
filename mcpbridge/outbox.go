package mcpbridge

import "sync/atomic"

const (
	outboxMessages = 256
	outboxBytes    = 4 << 20
)

// outbox holds what servers say unasked until a client reads it. It never
// blocks who puts something in, and what does not fit is dropped: one message
// of any size fits an empty one.
type outbox struct {
	ch   chan []byte
	size atomic.Int64
}

func newOutbox() *outbox { return &outbox{ch: make(chan []byte, outboxMessages)} }

func (o *outbox) put(msg []byte) bool {
	n := int64(len(msg))
	if total := o.size.Add(n); total > outboxBytes && total > n {
		o.size.Add(-n)
		return false
	}
	select {
	case o.ch <- msg:
		return true
	default:
		o.size.Add(-n)
		return false
	}
}

// taken must be called with each message that came out of ch.
func (o *outbox) taken(msg []byte) { o.size.Add(-int64(len(msg))) }
