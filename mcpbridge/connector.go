package mcpbridge

import (
	"context"
	"encoding/json"
	"io"
)

// Connector is one server as an engine sees it: a descriptor and a way to
// call. It is safe for concurrent use.
type Connector interface {
	// Descriptor is a snapshot of the last admission.
	Descriptor() Descriptor
	// Call runs an action. args is a JSON object; empty means {}. A tool's own
	// failure is a Result with OK false; the error is an *Error otherwise.
	Call(ctx context.Context, action string, args json.RawMessage) (Result, error)
	// Close stops the server and takes it out of its registry.
	Close(ctx context.Context) error
}

// Descriptor is public through discovery: it holds no credential, command or
// address.
type Descriptor struct {
	Name    string   `json:"name"` // snake_case
	Label   string   `json:"label"`
	Type    string   `json:"type"` // always api
	Actions []Action `json:"actions"`
}

// Action is one admitted tool.
type Action struct {
	Key         string `json:"key"` // the tool's name
	Label       string `json:"label"`
	Description string `json:"description"`
	// The schemas are the server's own bytes, save for a root type that was
	// missing.
	InputSchema  json.RawMessage `json:"inputSchema"`
	OutputSchema json.RawMessage `json:"outputSchema,omitempty"`
}

// Result is what a call gave. Content and StructuredContent are the server's
// own bytes.
type Result struct {
	OK                bool            `json:"ok"`
	Content           json.RawMessage `json:"content"`
	StructuredContent json.RawMessage `json:"structuredContent,omitempty"`
	// Error is set where OK is false.
	Error *Error `json:"error,omitempty"`
	// Raw is the whole tools/call result, for those who relay it.
	Raw json.RawMessage `json:"-"`
}

// WriteJSON writes the result without copying its content, in time linear to
// its size.
func (r Result) WriteJSON(w io.Writer) error {
	head := `{"ok":false,"content":`
	if r.OK {
		head = `{"ok":true,"content":`
	}
	content := r.Content
	if len(content) == 0 {
		content = json.RawMessage(`[]`)
	}
	parts := [][]byte{[]byte(head), content}
	if len(r.StructuredContent) > 0 {
		parts = append(parts, []byte(`,"structuredContent":`), r.StructuredContent)
	}
	if r.Error != nil {
		e, err := json.Marshal(r.Error)
		if err != nil {
			return err
		}
		parts = append(parts, []byte(`,"error":`), e)
	}
	for _, p := range append(parts, []byte("}\n")) {
		if _, err := w.Write(p); err != nil {
			return err
		}
	}
	return nil
}

type connector struct{ e *entry }

func (c connector) Descriptor() Descriptor { return c.e.descriptor() }

func (c connector) Call(ctx context.Context, action string, args json.RawMessage) (Result, error) {
	return c.e.call(ctx, action, args)
}

func (c connector) Close(ctx context.Context) error { return c.e.reg.Remove(ctx, c.e.srv.Name) }
