package streamhttp

import (
	"errors"
	"net/http"
	"time"
)

// writeTimeout is how long a client may take no bytes at all.
const writeTimeout = time.Minute

// writer puts messages into one HTTP response, as events or as plain JSON.
type writer struct {
	w     http.ResponseWriter
	sse   bool
	batch bool
	n     int
}

func (o *writer) begin() {
	h := o.w.Header()
	h.Set("Cache-Control", "no-cache, no-transform")
	if !o.sse {
		h.Set("Content-Type", "application/json")
		return
	}
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	o.w.WriteHeader(http.StatusOK)
	// An error shows at the first write.
	_ = http.NewResponseController(o.w).Flush()
}

// message writes one message; plain JSON takes responses alone.
func (o *writer) message(raw []byte) error {
	rc := http.NewResponseController(o.w)
	if err := rc.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	before, after := "event: message\ndata: ", "\n\n"
	if !o.sse {
		before, after = "", ""
		if o.batch {
			before = ","
			if o.n == 0 {
				before = "["
			}
		}
	}
	o.n++
	if _, err := o.w.Write([]byte(before)); err != nil {
		return err
	}
	if _, err := o.w.Write(raw); err != nil {
		return err
	}
	if _, err := o.w.Write([]byte(after)); err != nil {
		return err
	}
	if !o.sse {
		return nil
	}
	return rc.Flush()
}

func (o *writer) comment() error {
	if _, err := o.w.Write([]byte(": alive\n\n")); err != nil {
		return err
	}
	return http.NewResponseController(o.w).Flush()
}

func (o *writer) finish() {
	if !o.sse && o.batch {
		// The client may be gone; there is nothing left to tell it.
		_, _ = o.w.Write([]byte("]"))
	}
}
