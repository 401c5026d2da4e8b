package streamhttp

import (
	"net/http/httptest"
	"testing"
	"time"
)

// deadlines notes that the writes of an answer are bounded.
type deadlines struct {
	*httptest.ResponseRecorder
	bounded, open int // writes under a deadline, and without one
	set           bool
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.set = !at.IsZero()
	return nil
}

func (d *deadlines) Write(b []byte) (int, error) {
	if d.set {
		d.bounded++
	} else {
		d.open++
	}
	return d.ResponseRecorder.Write(b)
}

// A client that reads nothing holds no answer in memory for ever, whichever form
// it asked for.
func TestAnswersAreWrittenUnderADeadline(t *testing.T) {
	for _, accept := range []string{"application/json", "text/event-stream"} {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/", nil)
		r.Header.Set("Accept", accept)
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		ch := make(chan []byte, 1)
		ch <- []byte(`{"jsonrpc":"2.0","id":1,"result":{}}`)
		if respond(w, r, ch, nil, nil); w.bounded == 0 || w.open > 0 || w.set {
			t.Errorf("%s: %d writes with a deadline, %d without", accept, w.bounded, w.open)
		}
	}
}
