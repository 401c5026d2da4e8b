//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Sentinels for errors.Is, beside those of package sandbox.
var (
	// ErrRunning means that another engine serves the socket.
	ErrRunning = errors.New("another engine is running")
	// ErrQuota means that the engine's or the caller's share of sandboxes,
	// connections or openings is used up.
	ErrQuota = errors.New("engine quota reached")
	// ErrProtocol means that the other side broke the protocol: a different
	// version, or not an engine at all.
	ErrProtocol = errors.New("engine protocol error")
	// errGone means that the connection to the engine ended.
	errGone = errors.New("the engine went away")
)

// errorCode is a closed set: what a caller can act upon.
type errorCode uint8

const (
	codeInternal errorCode = iota + 1
	codeInvalid
	codeUnavailable
	codeClosed
	codeQuota
	codeCanceled
	codeProtocol
)

// remoteError is an error that the engine reported: its text is the engine's,
// its sentinel what the code stands for.
type remoteError struct {
	sentinel error
	text     string
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.sentinel }

// toMessage translates an error at the server's edge.
func toMessage(err error) *errorMsg {
	m := &errorMsg{Code: codeInternal, Text: printable(err.Error(), maxText)}
	var missing *sandbox.UnavailableError
	switch {
	case errors.As(err, &missing):
		m.Code, m.Tier = codeUnavailable, missing.Tier
		m.Text, m.Next = printable(missing.What, maxText), printable(missing.Next, maxText)
	case errors.Is(err, sandbox.ErrUnavailable):
		m.Code = codeUnavailable
	case errors.Is(err, sandbox.ErrInvalid):
		m.Code = codeInvalid
	case errors.Is(err, sandbox.ErrClosed):
		m.Code = codeClosed
	case errors.Is(err, ErrQuota):
		m.Code = codeQuota
	case errors.Is(err, ErrProtocol), errors.Is(err, errMalformed):
		m.Code = codeProtocol
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		m.Code = codeCanceled
	}
	return m
}

// toError is toMessage's other half, at the client's edge.
func (m *errorMsg) toError() error {
	text := printable(m.Text, maxText)
	switch m.Code {
	case codeUnavailable:
		return &sandbox.UnavailableError{Tier: m.Tier, What: text, Next: printable(m.Next, maxText)}
	case codeInvalid:
		return &remoteError{sandbox.ErrInvalid, text}
	case codeClosed:
		return &remoteError{sandbox.ErrClosed, text}
	case codeQuota:
		return &remoteError{ErrQuota, text}
	case codeCanceled:
		return &remoteError{context.Canceled, text}
	case codeProtocol:
		return &remoteError{ErrProtocol, text}
	case codeInternal:
	}
	return fmt.Errorf("engine: %s", text)
}

// printable makes text fit for one line of a log or a terminal and cuts it to
// limit bytes.
func printable(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
