package outbound

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/mcpbridge/schema"
	"github.com/sandboxd/sandboxd/mcpbridge/streamhttp"
)

// maxMessage bounds what of an error, a question or a step is shown, in bytes.
const maxMessage = 4 << 10

func encoded(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // maps of strings and raw values that were checked
		return []byte(`{}`)
	}
	return b
}

func resultLine(id, result []byte) []byte {
	out := make([]byte, 0, len(id)+len(result)+40)
	out = append(append(out, `{"jsonrpc":"2.0","id":`...), id...)
	return append(append(append(out, `,"result":`...), result...), '}')
}

// textResult is a result of one text: most often what a model can learn from a
// failure (2025-11-25, Tools, Error Handling).
func textResult(text string, isError bool, a about) []byte {
	return toolResult(text, nil, isError, a)
}

func toolResult(text string, structured json.RawMessage, isError bool, a about) []byte {
	r := struct {
		Type    string           `json:"resultType,omitempty"`
		Content []map[string]any `json:"content"`
		Data    json.RawMessage  `json:"structuredContent,omitempty"`
		IsError bool             `json:"isError,omitempty"`
	}{"", []map[string]any{{"type": "text", "text": text}}, structured, isError}
	if a.modern {
		r.Type = "complete"
	}
	return encoded(r)
}

// timeoutError ends a run that took too long.
type timeoutError struct{ after time.Duration }

func (e timeoutError) Error() string {
	return fmt.Sprintf("the run did not end within %s: it was cancelled", e.after)
}

// outcome is the result of a run that ended.
func (s *session) outcome(c *call, id []byte, a about) []byte {
	outputs, err := c.outputs, c.err
	var late timeoutError
	switch cause := c.cause(); {
	case errors.As(cause, &late):
		return resultLine(id, textResult(late.Error(), true, a))
	case err != nil && (errors.Is(cause, errCancelled) || errors.Is(cause, errClosed)):
		return relay.ErrorLine(id, -32000, cause.Error())
	case err != nil:
		return resultLine(id, textResult("the run failed: "+relay.Cut([]byte(err.Error()), maxMessage), true, a))
	}
	if err := c.t.checkOutputs(outputs, s.p.cfg.MaxOutput); err != nil {
		s.p.cfg.Logger.Warn("a run's outputs are not usable", "workflow", c.t.ID, "error", err.Error())
		return resultLine(id, textResult("the run ended, but its outputs cannot be used: "+err.Error(), true, a))
	}
	streamhttp.OneLine(outputs)
	return resultLine(id, toolResult(string(outputs), outputs, false, a))
}

// checkOutputs refuses what a client could stumble over.
func (t *tool) checkOutputs(outputs []byte, limit int) error {
	if len(outputs) > limit {
		return fmt.Errorf("they have %d bytes, at most %d are passed on", len(outputs), limit)
	}
	if !utf8.Valid(outputs) {
		return errors.New("they are not UTF-8")
	}
	depth, err := relay.Depth(outputs)
	switch {
	case err != nil:
		return fmt.Errorf("they are %w", err)
	case depth > schema.DefaultValueDepth:
		return fmt.Errorf("they nest %d levels, at most %d are passed on", depth, schema.DefaultValueDepth)
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(outputs, &object) != nil || object == nil {
		return errors.New("they are no JSON object")
	}
	if t.out == nil {
		return nil
	}
	if err := t.out.Validate(outputs); err != nil {
		return fmt.Errorf("they do not match the declared output schema: %w", err)
	}
	return nil
}
