package mcpbridge

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/mcpbridge/schema"
)

// Code is the closed set of what can go wrong with a call.
type Code string

// The codes.
const (
	CodeUnknownConnector Code = "unknown_connector"
	CodeUnknownAction    Code = "unknown_action"
	CodeInvalidArguments Code = "invalid_arguments" // see Error.Path
	CodeInvalidRequest   Code = "invalid_request"
	CodeTooLarge         Code = "too_large"    // of a request
	CodeServerDown       Code = "server_down"  // with the exit cause
	CodeTimeout          Code = "timeout"      // of a call
	CodeCancelled        Code = "cancelled"    // by the caller
	CodeBusy             Code = "busy"         // the server's queue is full
	CodeBadResult        Code = "bad_result"   // over a bound or against its schema
	CodeServerError      Code = "server_error" // a JSON-RPC error of the server
	CodeToolError        Code = "tool_error"   // the tool's own failure: ok is false, HTTP 200
	CodeForbidden        Code = "forbidden"    // Host or Origin
	CodeUnauthorized     Code = "unauthorized" // Config.Authorize said no
	CodeNoPath           Code = "no_such_path"
	CodeInternal         Code = "internal" // a fault of the bridge
)

// Error is a call's failure with its code. It wraps its cause.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// Path is a JSON pointer into the arguments, for CodeInvalidArguments.
	Path  string `json:"path,omitempty"`
	cause error
}

// Error joins the code and the message.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

func errf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Status maps a code to HTTP. It is the one place that does.
func (c Code) Status() int {
	switch c {
	case CodeUnknownConnector, CodeUnknownAction, CodeNoPath:
		return http.StatusNotFound
	case CodeInvalidArguments:
		return http.StatusUnprocessableEntity
	case CodeInvalidRequest:
		return http.StatusBadRequest
	case CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case CodeServerDown:
		return http.StatusServiceUnavailable
	case CodeTimeout:
		return http.StatusGatewayTimeout
	case CodeCancelled:
		return 499 // as nginx has it: the client is not there to read it
	case CodeBusy:
		return http.StatusTooManyRequests
	case CodeBadResult, CodeServerError:
		return http.StatusBadGateway
	case CodeToolError:
		return http.StatusOK
	case CodeForbidden:
		return http.StatusForbidden
	case CodeUnauthorized:
		return http.StatusUnauthorized
	case CodeInternal:
	}
	return http.StatusInternalServerError
}

// rpcCode maps a code to JSON-RPC. It is the one place that does.
func (c Code) rpcCode() int {
	switch c { //nolint:exhaustive // all others are the server's or the bridge's fault
	case CodeUnknownConnector, CodeUnknownAction, CodeInvalidArguments:
		return -32602
	case CodeInvalidRequest, CodeTooLarge:
		return -32600
	case CodeInternal:
		return -32603
	}
	return -32000
}

// asError translates what the client session and the schema report.
func asError(err error) *Error {
	var e *Error
	var exit *relay.ExitError
	var rpc *client.RPCError
	var inv *schema.InvalidError
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &exit):
		return &Error{Code: CodeServerDown, Message: exit.Error(), cause: err}
	case errors.Is(err, relay.ErrClosed):
		return &Error{Code: CodeServerDown, Message: "the server is being stopped", cause: err}
	case errors.As(err, &rpc):
		return &Error{Code: CodeServerError, Message: rpc.Error(), cause: err}
	case errors.As(err, &inv):
		return &Error{Code: CodeInvalidArguments, Message: inv.Error(), Path: inv.Path, cause: err}
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Code: CodeTimeout, Message: "the call did not end in time", cause: err}
	case errors.Is(err, context.Canceled):
		return &Error{Code: CodeCancelled, Message: "the call was cancelled", cause: err}
	case errors.Is(err, client.ErrTooLarge), errors.Is(err, client.ErrProtocol):
		return &Error{Code: CodeBadResult, Message: err.Error(), cause: err}
	}
	return &Error{Code: CodeInternal, Message: "the bridge failed", cause: err}
}
