package streamhttp

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// bodyTime bounds how long a client may take to send one body: a stalled one
// would hold what it has sent so far in memory.
const bodyTime = 30 * time.Second

// ReadBody reads a request's body of at most limit bytes, within bodyTime. The
// error is a *http.MaxBytesError for a larger one.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	rc := http.NewResponseController(w)
	// What answers without a connection, as in a test, has no deadline.
	if err := rc.SetReadDeadline(time.Now().Add(bodyTime)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	// From here on the client may be silent for as long as its call takes.
	if derr := rc.SetReadDeadline(time.Time{}); err == nil && !errors.Is(derr, http.ErrNotSupported) {
		err = derr
	}
	return body, err
}
