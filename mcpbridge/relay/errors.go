package relay

import (
	"errors"
	"fmt"

	"github.com/sandboxd/sandboxd/sandbox"
)

// ErrClosed marks use of a connection that its owner closed.
var ErrClosed = errors.New("connection closed")

// ExitError says that the server at the other end is gone, and how it ended.
type ExitError struct{ Exit sandbox.Exit }

// Error names the cause, the status, the runtime's detail and, after a failure,
// what was used.
func (e *ExitError) Error() string {
	s := "server ended: " + e.Exit.Cause.String()
	switch {
	case e.Exit.Signal != 0:
		s += fmt.Sprintf(" by signal %d", e.Exit.Signal)
	case e.Exit.Cause == sandbox.Exited:
		s += fmt.Sprintf(" with status %d", e.Exit.Code)
	}
	if e.Exit.Detail != "" {
		s += " (" + e.Exit.Detail + ")"
	}
	if use := e.Exit.Use(); use != "" && (e.Exit.Cause != sandbox.Exited || e.Exit.Code != 0) {
		s += "; it used at most " + use
	}
	return s
}

// JSON-RPC error codes that the relay itself answers with.
const (
	codeInvalidRequest = -32600
	codeServerGone     = -32000
	codeTooLarge       = -32001
)

// ErrorLine builds a JSON-RPC error response for the id as it stood in the
// request, without a newline.
func ErrorLine(id []byte, code int, message string) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%s}}`, id, code, quote(message))
}
