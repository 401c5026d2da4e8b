package streamhttp

import (
	"errors"
	"net/http"
	"time"
)

// writeTimeout is how long a client may take no bytes at all.
const writeTimeout = time.Minute

// aliveEvery is how often a stream that is silent shows that it is there.
const aliveEvery = 25 * time.Second

// writer puts messages into one HTTP response, as events or as plain JSON.
type writer struct {
	w     http.ResponseWriter
	sse   bool
	batch bool
	n     int

	// s and st, where set, give each event an id.
	s     *session
	st    *stream
	prime bool // begin with an event that has nothing but an id
	begun bool
}

// primed is the revision whose clients know an event without data.
const primed = "2025-11-25"

func (o *writer) begin() {
	if o.begun {
		return
	}
	o.begun = true
	h := o.w.Header()
	h.Set("Cache-Control", "no-cache, no-transform")
	if !o.sse {
		h.Set("Content-Type", "application/json")
		return
	}
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	o.w.WriteHeader(http.StatusOK)
	if o.prime {
		_ = o.write([]byte("id: " + eventID(o.st.n, 0) + "\ndata: \n\n"))
	}
	// An error shows at the first write.
	_ = http.NewResponseController(o.w).Flush()
}

// message writes one message; plain JSON takes responses alone.
func (o *writer) message(raw []byte) error {
	if o.sse && o.s != nil {
		o.s.mu.Lock()
		ev := o.s.note(o.st, raw)
		o.s.mu.Unlock()
		return o.again(ev)
	}
	if o.sse {
		return o.write([]byte("event: message\ndata: "), raw, []byte("\n\n"))
	}
	before := ""
	if o.batch {
		before = ","
		if o.n == 0 {
			before = "["
		}
	}
	o.n++
	return o.write([]byte(before), raw)
}

// again writes an event that has its number.
func (o *writer) again(ev sent) error {
	return o.write([]byte("id: "+eventID(ev.stream, ev.n)+"\nevent: message\ndata: "), ev.raw, []byte("\n\n"))
}

// comment keeps the connection alive and notices when it is not.
func (o *writer) comment() error { return o.write([]byte(": alive\n\n")) }

func (o *writer) write(parts ...[]byte) error {
	done, err := Deadline(o.w)
	if err != nil {
		return err
	}
	defer done()
	for _, p := range parts {
		if _, err := o.w.Write(p); err != nil {
			return err
		}
	}
	if !o.sse {
		return nil
	}
	return http.NewResponseController(o.w).Flush()
}

// Deadline bounds the next writes to a client that may not read. done lifts
// the bound again; without it, a deadline that has passed ends the connection.
func Deadline(w http.ResponseWriter) (done func(), err error) {
	rc := http.NewResponseController(w)
	err = rc.SetWriteDeadline(time.Now().Add(writeTimeout))
	if errors.Is(err, http.ErrNotSupported) {
		return func() {}, nil
	}
	// If the connection is gone the next write says so.
	return func() { _ = rc.SetWriteDeadline(time.Time{}) }, err
}

func (o *writer) finish() {
	if !o.sse && o.batch {
		// The client may be gone; there is nothing left to tell it.
		_, _ = o.w.Write([]byte("]"))
	}
}
