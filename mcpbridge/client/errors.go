package client

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

var (
	// ErrProtocol marks a server that broke the protocol: an unsupported
	// version, a response that is no result, a tool list that has no end.
	ErrProtocol = errors.New("server broke the protocol")
	// ErrTooLarge marks a result over the bounds on size or depth.
	ErrTooLarge = errors.New("result over the limit")
)

// RPCError is a JSON-RPC error response.
type RPCError struct {
	Code    int64
	Message string
	// Raw is the whole error object as the server sent it.
	Raw json.RawMessage
}

// Error quotes the server's message, cut to 300 bytes.
func (e *RPCError) Error() string {
	return fmt.Sprintf("server answered error %d: %q", e.Code, relay.Cut([]byte(e.Message), 300))
}

func parseRPCError(raw []byte) *RPCError {
	var e struct {
		Code    json.Number `json:"code"`
		Message string      `json:"message"`
	}
	// A malformed error object is still an error; its text is kept in Raw.
	if json.Unmarshal(raw, &e) != nil {
		e.Message = "malformed error object"
	}
	code, err := e.Code.Int64()
	if err != nil {
		code = -32603
	}
	return &RPCError{Code: code, Message: e.Message, Raw: raw}
}
